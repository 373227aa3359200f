"""The one tokenizer for index and query.

What it makes of a text:

* NFKC (full width to half width), case folded; soft hyphens and zero-width characters are dropped.
* Chinese is cut by jieba in search mode (words and the dictionary words inside them), punctuation dropped.
* Latin, Cyrillic, ... words are stemmed (Snowball English) and English stop words are dropped, so that a query of
  stop words alone has no tokens: index and query are one function, and an index without stop words cannot answer it.
  A stop word in capitals (`IT`) or next to a Chinese character (`A股`) is a name, not a function word, and stays.
* Numbers and codes (`TH-01`, `ERR_404`, `v2.3.1`, `500kg`, `c++`, an e-mail address) are found whole and by part.
"""

import logging
import re
import threading
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from retrieval.dependencies import import_dependency

# Lucene's EnglishAnalyzer.ENGLISH_STOP_WORDS_SET.
# fmt: off
ENGLISH_STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
})
# fmt: on

_CJK = "\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
_PART = rf"[^\W_{_CJK}]+"
RUNS = re.compile(
    rf"(?P<cjk>[{_CJK}]+)"
    # Parts joined by single connectors; a trailing + or # belongs to names such as c++ and c#, not to a+b.
    rf"|(?P<latin>{_PART}(?:[-_.@&']{_PART})*(?:(?:\+{{1,2}}|\#)(?!{_PART}))?)"
)
CONNECTORS = re.compile(r"[-_.@&+#]+")
_LETTERS_AND_DIGITS = re.compile(r"([^\W\d_]+)(\d+)|(\d+)([^\W\d_]+)")
_CHARACTERS = str.maketrans({"\u2019": "'", "\u2010": "-"} | dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", ""))


class JiebaTokenizer:
    """jieba in search mode with Snowball English. Thread-safe; parses its dictionary at the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jieba: Any = None

    @property
    def id(self) -> str:
        """Name, version of the rules in this file, and a hash of everything else that decides the tokens."""
        return f"jieba-search-en-snowball:1:{_vocabulary_hash()}"

    def __call__(self, text: str) -> list[str]:
        """The terms of `text` in order, repeats kept.

        Raises:
            DependencyMissing: jieba or PyStemmer is not installed.
        """
        return list(self._tokens(normalize(text)))

    def _tokens(self, text: str) -> Iterator[str]:
        segmenter = self._segmenter()
        for run in RUNS.finditer(text):
            if run.lastgroup == "cjk":
                yield from (word for word in segmenter.cut_for_search(run[0]) if any(map(str.isalnum, word)))
            else:
                start, end = run.span()
                touches_cjk = text[start - 1 : start].isalnum() or text[end : end + 1].isalnum()
                yield from _latin_terms(run[0], touches_cjk)

    def _segmenter(self) -> Any:
        if self._jieba is None:
            with self._lock:
                if self._jieba is None:
                    self._jieba = _load_segmenter()
        return self._jieba


def normalize(text: str) -> str:
    """NFKC without invisible characters; case is kept, because capitals tell a name from a stop word."""
    return unicodedata.normalize("NFKC", text).translate(_CHARACTERS)


@lru_cache(maxsize=65_536)
def _latin_terms(run: str, touches_cjk: bool) -> tuple[str, ...]:  # noqa: FBT001
    keep_stop_words = touches_cjk or (len(run) > 1 and run.isupper())
    code = run.casefold()
    parts = [part for part in CONNECTORS.split(code) if part]
    terms = [] if parts == [code] else [code]
    for part in parts:
        terms += _part_terms(part, keep_stop_words=keep_stop_words)
    return tuple(terms)


def _part_terms(part: str, *, keep_stop_words: bool) -> list[str]:
    if part.replace("'", "").isalpha():
        if part.removesuffix("'s") in ENGLISH_STOP_WORDS and not keep_stop_words:
            return []
        return [_stem(part)]
    halves = _LETTERS_AND_DIGITS.fullmatch(part)
    return [part, *(_stem(half) for half in halves.groups() if half)] if halves else [part]


class _ThreadStemmer(threading.local):
    """PyStemmer's objects must not be shared between threads."""

    def __init__(self) -> None:
        self.english = import_dependency("Stemmer").Stemmer("english", 0)


@cache
def _thread_stemmer() -> _ThreadStemmer:
    return _ThreadStemmer()


def _stem(word: str) -> str:
    return str(_thread_stemmer().english.stemWord(word))


def _import_jieba() -> ModuleType:
    jieba = import_dependency("jieba")
    # At import jieba sets its logger to DEBUG and gives it a stderr handler of its own.
    logger = logging.getLogger("jieba")
    logger.setLevel(logging.WARNING)
    logger.removeHandler(jieba.log_console)
    return jieba


@cache
def _dictionary_hash() -> str:
    dictionary = Path(str(_import_jieba().__file__)).with_name("dict.txt")
    return sha256(dictionary.read_bytes()).hexdigest()


@cache
def _vocabulary_hash() -> str:
    versions = (_import_jieba().__version__, import_dependency("Stemmer").version())
    return sha256("\n".join([*versions, _dictionary_hash(), *sorted(ENGLISH_STOP_WORDS)]).encode()).hexdigest()[:16]


def _load_segmenter() -> Any:
    segmenter = _import_jieba().Tokenizer()
    # Parsing takes half a second. jieba's initialize() would read a marshal file from the shared temporary folder, where
    # anyone may have put one, and that takes longer.
    segmenter.FREQ, segmenter.total = segmenter.gen_pfdict(segmenter.get_dict_file())
    segmenter.initialized = True
    return segmenter
