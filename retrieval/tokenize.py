"""The one tokenizer for index and query.

What it makes of a text:

* NFKC (full width to half width), case folded; soft hyphens and zero-width characters are dropped. Traditional Chinese
  becomes simplified where the options say so.
* Chinese is cut by jieba in search mode (words and the dictionary words inside them), punctuation dropped.
* Latin, Cyrillic, ... words are stemmed (Snowball English) and English stop words are dropped, so that a query of
  stop words alone has no tokens: index and query are one function, and an index without stop words cannot answer it.
  A stop word in capitals (`IT`) or next to a Chinese character (`A股`) is a name, not a function word, and stays.
* Numbers and codes (`TH-01`, `ERR_404`, `v2.3.1`, `500kg`, `c++`, an e-mail address) are found whole and by part.
* A user's words of Chinese characters are cut as jieba's own are; the others (`T恤`, `Spring Boot`) are found whole and
  by part. A user's stop words are dropped wherever they stand.

Traditional to simplified Chinese, by the OpenCC package, which is optional.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

from typing_extensions import Doc

from retrieval.characters import CJK, LATIN, normal_form
from retrieval.dictionary import DictionaryWord, Phrase, PhraseFinder
from retrieval.errors import import_dependency

# The words of a run of Chinese characters in search mode: each after the shorter words inside it.
Segmenter = Callable[[str], Iterable[str]]
WordFrequency = tuple[str, int | None]

# jieba looks up no other characters: it makes a word of each.
SEGMENTABLE = re.compile("[\u4e00-\u9fd5]+")

# jieba's hidden Markov model copies a path for every character, so that its time grows with the square of a run: texts
# without punctuation are cut here first.
_LONGEST_RUN = 2_000


class Engine(StrEnum):
    """jieba in Python, or jieba-rs, optional, many times faster, and another tokenizer: its cuts differ here and there."""

    JIEBA = "jieba"
    RJIEBA = "rjieba"


def load_segmenter(engine: Engine, words: Sequence[WordFrequency] = ()) -> Segmenter:
    """A segmenter with an own dictionary: the engine's and `words`.

    Words come in any order with their frequencies, positive; None: the least one at which the word is cut out of a text
    that holds nothing else. Raises DependencyMissing where the engine's package is not installed.

    Memory: jieba's segmenters share the strings of one base dictionary. With `words` each holds a table of 15 MB and every
    beginning of a word, some 180 bytes a character: 100 MB, loaded in 3 s, with as many as a dictionary may hold. Each
    of rjieba's with `words` holds a dictionary of 25 MB, 70 MB with as many, loaded in 0.3 s.
    """
    # A frequency that is left open depends on the words that are shorter: these go first, whatever order they came in.
    ordered = sorted(words, key=lambda entry: (entry[1] is None, len(entry[0]), entry[0]))
    return _load_jieba(ordered) if engine is Engine.JIEBA else _load_rjieba(ordered)


@cache
def engine_versions(engine: Engine) -> tuple[str, ...]:
    """The version of an engine's package, and a hash of its dictionary where that is a file of its own.

    Raises DependencyMissing where the package is not installed.
    """
    if engine is Engine.RJIEBA:
        import_dependency("rjieba")
        return (version("rjieba"),)
    jieba = _import_jieba()
    dictionary = Path(str(jieba.__file__)).with_name("dict.txt")
    return (jieba.__version__, sha256(dictionary.read_bytes()).hexdigest())


def _load_jieba(words: Sequence[WordFrequency]) -> Segmenter:
    with _parsing:
        frequencies, total = _base_dictionary()
    segmenter = _import_jieba().Tokenizer()
    segmenter.FREQ, segmenter.total = frequencies.copy() if words else frequencies, total
    segmenter.initialized = True
    for word, frequency in words:
        segmenter.add_word(word, frequency)
    cut: Segmenter = segmenter.cut_for_search

    def cut_pieces(run: str) -> Iterable[str]:
        starts = range(0, len(run), _LONGEST_RUN)
        return cut(run) if len(starts) == 1 else chain.from_iterable(cut(run[at : at + _LONGEST_RUN]) for at in starts)

    return cut_pieces


def _load_rjieba(words: Sequence[WordFrequency]) -> Segmenter:
    rjieba = import_dependency("rjieba")
    segmenter = rjieba.Jieba() if words else rjieba
    for word, frequency in words:
        segmenter.add_word(word, frequency, None)
    cut: Segmenter = segmenter.cut_for_search
    return cut


_parsing = threading.Lock()


@cache
def _base_dictionary() -> tuple[dict[str, int], int]:
    """Jieba's own: frequencies of words, 0 for their mere beginnings, and the sum of them."""
    # Parsing takes half a second. jieba's initialize() would read a marshal file from the shared temporary folder, where
    # anyone may have put one, and that takes longer.
    segmenter = _import_jieba().Tokenizer()
    frequencies, total = segmenter.gen_pfdict(segmenter.get_dict_file())
    return frequencies, total


def _import_jieba() -> ModuleType:
    jieba = import_dependency("jieba")
    # At import jieba sets its logger to DEBUG and gives it a stderr handler of its own.
    logger = logging.getLogger("jieba")
    logger.setLevel(logging.WARNING)
    logger.removeHandler(jieba.log_console)
    return jieba


@cache
def load_simplifier() -> Callable[[str], str]:
    """A function from traditional to simplified Chinese; raises DependencyMissing where opencc is not installed.

    OpenCC's converters may be shared between threads.
    """
    convert: Callable[[str], str] = import_dependency("opencc").OpenCC("t2s").convert
    # OpenCC reads UTF-8, which has no lone surrogates; they are no part of any term.
    return lambda text: convert(text.encode("utf-8", "replace").decode())


# Lucene's EnglishAnalyzer.ENGLISH_STOP_WORDS_SET.
# fmt: off
ENGLISH_STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
})
# Words, cut by a segmenter, that tell nothing of a topic.
CHINESE_STOP_WORDS = frozenset({
    "什么", "怎么", "怎样", "怎么样", "怎么办", "如何", "为什么", "为何", "哪里", "哪儿", "哪些", "哪个", "哪位", "哪种", "哪年", "哪家",
    "多少", "多久", "是否", "能否", "可否", "可以", "能够", "可不可以", "能不能", "是不是", "有没有", "会不会", "没有", "不是", "不能",
    "不会", "应该", "应当", "需要", "必须", "请问", "请教", "知道", "告诉", "了解", "想要", "想知道", "一下", "谢谢", "您好", "你好",
    "我们", "你们", "他们", "她们", "它们", "自己", "大家", "这个", "那个", "这些", "那些", "这里", "那里", "这样", "那样", "这么", "那么",
    "这种", "那种", "一个", "一种", "一些", "一样", "有些", "任何", "各种", "其他", "其它", "其中", "其", "以及", "或者", "还是", "但是",
    "不过", "因为", "所以", "如果", "虽然", "尽管", "并且", "而且", "然而", "然后", "之后", "以后", "之前", "以前", "当时", "由于", "因此",
    "根据", "按照", "通过", "关于", "对于", "除了", "为了", "作为", "属于", "成为", "进行", "包括", "已经", "正在", "曾经", "现在", "目前",
    "就是", "只有", "只是", "只能", "也是", "都是", "还有", "还会", "非常", "比较", "更加", "之间", "之一", "时候", "情况", "意思",
    "不同", "之中", "并不", "仍然", "甚至", "例如", "比如", "等等", "以上", "以下", "左右", "同时", "此外", "另外", "于是", "得到",
})
# Single characters that tell nothing when a segmenter leaves them alone.
CHINESE_PARTICLES_ALONE = frozenset("的地得了着过是在有和与或及也都就要会能可被把让给对从到为吗呢吧么啊呀嘛我你他她它们这那哪谁几")
ENGLISH_FUNCTION_WORDS = ENGLISH_STOP_WORDS | {
    "about", "above", "after", "again", "against", "all", "also", "although", "am", "among", "any", "anyone", "because",
    "been", "before", "being", "below", "between", "both", "can", "can't", "cannot", "could", "did", "didn't", "do",
    "does", "doesn't", "doing", "don't", "down", "during", "each", "either", "else", "ever", "every", "few", "from",
    "further", "get", "give", "given", "had", "has", "hasn't", "have", "haven't", "having", "he", "hello", "help", "her",
    "here", "hers", "hey", "hi", "him", "his", "how", "however", "i", "i'd", "i'm", "i've", "it's", "its", "just", "know",
    "let", "like", "many", "may", "me", "might", "more", "most", "much", "must", "my", "need", "neither", "nor", "off",
    "often", "once", "one", "only", "other", "others", "our", "out", "over", "own", "per", "please", "same", "shall",
    "she", "should", "since", "so", "some", "someone", "something", "still", "tell", "than", "thank", "thanks", "them",
    "themselves", "those", "though", "through", "thus", "too", "under", "until", "up", "upon", "us", "used", "using",
    "very", "two", "three", "four", "five", "first", "second", "least", "less", "usually", "via", "want", "we", "well", "were", "what", "what's", "when", "where", "whether", "which", "while", "who",
    "who's", "whom", "whose", "why", "within", "without", "would", "yes", "yet", "you", "your", "yours",
}
# fmt: on

_PART = rf"{LATIN}+"
RUNS = re.compile(
    rf"(?P<cjk>[{CJK}]+)"
    # Parts joined by single connectors; a trailing + or # belongs to names such as c++ and c#, not to a+b.
    rf"|(?P<latin>{_PART}(?:[-_.@&']{_PART})*(?:(?:\+{{1,2}}|\#)(?!{_PART}))?)"
)
CONNECTORS = re.compile(r"[-_.@&+#]+")
_LETTERS_AND_DIGITS = re.compile(r"([^\W\d_]+)(\d+)|(\d+)([^\W\d_]+)")
INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
_CHARACTERS = str.maketrans({"\u2019": "'", "\u2010": "-"} | dict.fromkeys(INVISIBLE, ""))
_TRANSLATED = re.compile(f"[{''.join(map(chr, _CHARACTERS))}]")

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class TokenizerOptions:
    """What a knowledge base may choose."""

    engine: Engine = Engine.JIEBA  # what cuts Chinese
    dictionary: tuple[DictionaryWord, ...] = ()  # a user's words; of two entries for one word the last counts
    stop_words: frozenset[str] = frozenset()  # a user's, beside the built-in English ones; their stems are dropped too
    simplify: bool = False  # traditional Chinese becomes simplified: in texts, dictionary and stop words


class TokenKind(StrEnum):
    WORD = "word"  # the segmenter cut it
    DICTIONARY = "dictionary"  # a user's word
    CODE = "code"  # a whole number or code
    PART = "part"  # a part of a code
    STEM = "stem"  # a word, stemmed


@dataclass(frozen=True, slots=True)
class Token:
    """A term and where it comes from; `kind` is the rule that made it."""

    term: Annotated[str, Doc("What is indexed and searched.")]
    surface: Annotated[str, Doc("What of the normalised text it was made of.")]
    kind: TokenKind
    is_dropped: Annotated[bool, Doc("A stop word: neither indexed nor searched.")] = False


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """A user's words, normalised as texts are."""

    words: tuple[WordFrequency, ...]  # of Chinese characters, for the segmenter
    phrases: tuple[str, ...]  # the other words
    stop_words: frozenset[str]  # with their stems


class JiebaTokenizer:
    """jieba in search mode with Snowball English. Thread-safe; reads its dictionaries at the first call.

    All of it raises DependencyMissing where a package that the options need is not installed.
    """

    def __init__(self, options: TokenizerOptions | None = None) -> None:
        self.options = options or TokenizerOptions()
        self._lock = threading.Lock()
        self._loaded_segmenter: Segmenter | None = None

    @cached_property
    def id(self) -> str:
        """Engine and name, version of the rules in this package, and a hash of all else that decides the tokens."""
        vocabulary, engine = self._vocabulary, self.options.engine
        package, *dictionary = engine_versions(engine)
        parts = [package, str(import_dependency("Stemmer").version()), *dictionary, *sorted(ENGLISH_STOP_WORDS)]
        parts += (f"word {word} {frequency or ''}" for word, frequency in vocabulary.words)
        parts += (f"phrase {phrase}" for phrase in vocabulary.phrases)
        parts += (f"stop word {word}" for word in sorted(vocabulary.stop_words))
        if self.options.simplify:
            # The package brings its own dictionaries.
            parts.append(f"simplified by OpenCC {import_dependency('opencc').__version__}")
        digest = sha256("\n".join(parts).encode()).hexdigest()[:16]
        return f"{engine}-search-en-snowball:1:{digest}"

    def __call__(self, text: str) -> list[str]:
        """The terms of `text` in order, repeats kept."""
        terms = self._walk(self._normalize(text), self._words, _latin_terms, lambda phrase: phrase.term)
        stop_words = self._vocabulary.stop_words
        return [term for term in terms if term not in stop_words] if stop_words else list(terms)

    def explain(self, text: str) -> list[Token]:
        """The tokens behind the terms of `text`, and in their places those that are dropped as stop words."""
        plain = self._normalize(text)
        vocabulary = self._vocabulary
        own = {word for word, _ in vocabulary.words}

        def word_tokens(run: str) -> Iterator[Token]:
            for word in self._words(run):
                yield Token(word, word, TokenKind.DICTIONARY if word in own else TokenKind.WORD)

        def phrase_token(phrase: Phrase) -> Token:
            return Token(phrase.term, plain[phrase.start : phrase.end], TokenKind.DICTIONARY)

        return [
            replace(token, is_dropped=token.is_dropped or token.term in vocabulary.stop_words)
            for token in self._walk(plain, word_tokens, _latin_tokens, phrase_token)
        ]

    def simplify(self, text: str) -> str:
        """A normalised text in the characters that the dictionaries hold."""
        return load_simplifier()(text) if self.options.simplify else text

    def _walk(
        self,
        text: str,
        of_chinese: Callable[[str], Iterable[_Item]],
        of_latin: Callable[[str, bool], Iterable[_Item]],
        of_phrase: Callable[[Phrase], _Item],
    ) -> Iterator[_Item]:
        """What the functions make of a normalised text's runs, and of each phrase, before the first run it touches."""
        phrases = self._phrases.find(text)
        phrase = next(phrases, None)
        for run in RUNS.finditer(text):
            start, end = run.span()
            is_latin = run.lastgroup == "latin"
            touches_cjk = is_latin and (text[start - 1 : start].isalnum() or text[end : end + 1].isalnum())
            known = frozenset(_latin_terms(run[0], touches_cjk)) if is_latin and phrase and phrase.start < end else ()
            while phrase and phrase.start < end:
                inside = start <= phrase.start and phrase.end <= end
                if not (inside and phrase.term in known):
                    yield of_phrase(phrase)
                phrase = next(phrases, None)
            yield from of_latin(run[0], touches_cjk) if is_latin else of_chinese(run[0])

    def _words(self, run: str) -> Iterator[str]:
        # Nearly all words are alphanumeric throughout, which is seen faster.
        return (word for word in self._segmenter(run) if word.isalnum() or any(map(str.isalnum, word)))

    @property
    def _segmenter(self) -> Segmenter:
        if self._loaded_segmenter is None:
            with self._lock:
                if self._loaded_segmenter is None:
                    self._loaded_segmenter = load_segmenter(self.options.engine, self._vocabulary.words)
        return self._loaded_segmenter

    @cached_property
    def _phrases(self) -> PhraseFinder:
        return PhraseFinder(self._vocabulary.phrases)

    @cached_property
    def _vocabulary(self) -> _Vocabulary:
        frequencies = {self._fold(entry.word): entry.frequency for entry in self.options.dictionary}
        stop_words = {self._fold(word) for word in self.options.stop_words}
        return _Vocabulary(
            words=tuple(sorted((word, frequencies[word]) for word in filter(SEGMENTABLE.fullmatch, frequencies))),
            # What has one character the rules find themselves.
            phrases=tuple(sorted(word for word in frequencies if len(word) > 1 and not SEGMENTABLE.fullmatch(word))),
            stop_words=frozenset(stop_words.union(_stem(word) for word in stop_words if _is_word(word))),
        )

    def _fold(self, word: str) -> str:
        return " ".join(self._normalize(word).casefold().split())

    def _normalize(self, text: str) -> str:
        return self.simplify(normalize(text))


def normalize(text: str) -> str:
    """NFKC without invisible characters; case is kept, because capitals tell a name from a stop word. As `normal_form`."""
    plain = normal_form("NFKC", text)
    # Looking for the characters is several times as fast as translating. What they stood between may join now.
    return normal_form("NFKC", plain.translate(_CHARACTERS)) if _TRANSLATED.search(plain) else plain


# Characters of a word up to which what is made of it is cached: caches count entries, not bytes, and a file may hold
# words of any length.
CACHED_CHARACTERS = 64


def _latin_terms(run: str, touches_cjk: bool) -> tuple[str, ...]:  # noqa: FBT001
    return (_cached_terms if len(run) <= CACHED_CHARACTERS else _terms)(run, touches_cjk)


def _terms(run: str, touches_cjk: bool) -> tuple[str, ...]:  # noqa: FBT001
    return tuple(token.term for token in _latin_tokens(run, touches_cjk) if not token.is_dropped)


_cached_terms = lru_cache(maxsize=65_536)(_terms)


def _latin_tokens(run: str, touches_cjk: bool) -> list[Token]:  # noqa: FBT001
    keep_stop_words = touches_cjk or (len(run) > 1 and run.isupper())
    parts = [part for part in CONNECTORS.split(run) if part]
    if parts == [run]:
        return _part_tokens(run, TokenKind.CODE, TokenKind.STEM, keep_stop_words=keep_stop_words)
    tokens = [Token(run.casefold(), run, TokenKind.CODE)]
    for part in parts:
        tokens += _part_tokens(part, TokenKind.PART, TokenKind.PART, keep_stop_words=keep_stop_words)
    return tokens


def _part_tokens(surface: str, of_code: TokenKind, of_word: TokenKind, *, keep_stop_words: bool) -> list[Token]:
    part = surface.casefold()
    if _is_word(part):
        is_dropped = part.removesuffix("'s") in ENGLISH_STOP_WORDS and not keep_stop_words
        return [Token(_stem(part), surface, of_word, is_dropped)]
    tokens = [Token(part, surface, of_code)]
    if halves := _LETTERS_AND_DIGITS.fullmatch(part):
        tokens += (Token(_stem(half), surface, TokenKind.PART) for half in halves.groups() if half)
    return tokens


def _is_word(part: str) -> bool:
    return part.replace("'", "").isalpha()


class _ThreadStemmer(threading.local):
    """PyStemmer's objects must not be shared between threads."""

    @cached_property
    def english(self) -> Any:
        return import_dependency("Stemmer").Stemmer("english", 0)


_stemmer = _ThreadStemmer()


def _stem(word: str) -> str:
    return str(_stemmer.english.stemWord(word))
