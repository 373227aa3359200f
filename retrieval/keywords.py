"""Keywords: of a query, fast, and of a chunk at ingestion, with named entities and key phrases.

TextRank: words that stand near many telling words are telling themselves.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache
from itertools import chain, permutations
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retrieval.characters import CJK, LATIN
from retrieval.errors import import_dependency
from retrieval.rewrite import QUOTED
from retrieval.tokenize import (
    CHINESE_STOP_WORDS,
    CONNECTORS,
    ENGLISH_FUNCTION_WORDS,
    RUNS,
    Engine,
    Segmenter,
    load_segmenter,
    normalize,
)

DAMPING: Final = 0.85
MOST_ROUNDS: Final = 50
SETTLED: Final = 1e-4


def textrank(words: Sequence[str], *, window: int = 5) -> Mapping[str, float]:
    """Ranks words by the words that they stand near, as PageRank ranks pages by links.

    Words come in the order of a text, those that are no keywords left out; `window` of them in a row count as near each
    other. The scores sum up to the number of different words, but for what words without neighbours lack.

    Source: Mihalcea, Tarau, "TextRank: Bringing Order into Texts", 2004, with weighted edges.
    """
    weights: dict[str, dict[str, float]] = {word: defaultdict(float) for word in words}
    for start in range(len(words)):
        for other in words[start + 1 : start + window]:
            if other != words[start]:
                weights[words[start]][other] += 1.0
                weights[other][words[start]] += 1.0
    totals = {word: sum(near.values()) for word, near in weights.items()}
    scores = dict.fromkeys(weights, 1.0)
    for _round in range(MOST_ROUNDS):
        renewed = {
            word: 1 - DAMPING + DAMPING * sum(weight / totals[other] * scores[other] for other, weight in near.items())
            for word, near in weights.items()
        }
        change = max((abs(renewed[word] - scores[word]) for word in scores), default=0.0)
        scores = renewed
        if change < SETTLED:
            break
    return scores


MOST_KEYWORDS: Final = 10
LONGEST_QUOTATION: Final = 30

_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?"
_LATIN_RUN = re.compile(rf"{_NUMBER}|{RUNS.pattern}")
_CHINESE = re.compile(f"[{CJK}]")
_CHINESE_RUN = re.compile(f"[{CJK}]+")
_QUOTATION = re.compile(QUOTED)
# A Chinese character says about as much as so many letters.
_LETTERS_A_CHARACTER = 3


def query_keywords(text: str, tokens: Sequence[str], most: int = MOST_KEYWORDS) -> tuple[str, ...]:
    """At most so many keywords of a query: quotations, then codes and names, then words, longer ones first.

    Of the query's terms by a tokenizer in search mode the Chinese ones are used, the others would be stems. Length
    stands in for rarity: a table of idf would cost a process 50 MB, and 0.3 s of the first search.
    """
    plain = normalize(text)
    chinese = [token for token in tokens if _CHINESE.match(token)]
    words = _content_words_of(chinese)
    latin = list(_latin_words(plain))
    # A capital at the start means nothing.
    marked = [word for word in latin if _is_marked(word) or (word[0].isupper() and not plain.startswith(word))]
    ranked = sorted(
        chain(words, latin),
        key=lambda word: len(word) * (_LETTERS_A_CHARACTER if _CHINESE.match(word) else 1),
        reverse=True,
    )
    return _distinct(chain(_quotations(plain), marked, ranked), most) or _distinct(chinese, most)


class Method(StrEnum):
    TFIDF = "tfidf"
    TEXTRANK = "textrank"


def extract_keywords(
    text: str, language: str, most: int = MOST_KEYWORDS, *, method: Method = Method.TFIDF
) -> tuple[str, ...]:
    """A chunk's named entities and key phrases, the most telling ones first. Loads jieba's tables at the first call.

    TextRank ranks the words that may be keywords by their part of speech in jieba's dictionary, in English all but
    function words. TF-IDF, Chinese: frequency times jieba's idf, with a premium on names; words that stand next to each
    other more than once, and as a rule (Dice coefficient of at least a half), make a phrase. English: RAKE over runs of
    content words, likewise with a premium on names. A language other than "en" is that of a text that is mostly
    Chinese.

    Raises DependencyMissing where jieba is not installed. Source: Rose, Engel, Cramer, Cowley, "Automatic keyword
    extraction from individual documents", 2010.
    """
    plain = normalize(text)
    if method is Method.TEXTRANK:
        scores = textrank(_content_words(plain, language))
    else:
        scores = _english_phrases(plain) if language == "en" else _chinese_words(plain, most)
    titles = _distinct(_quotations(plain, titles_only=True), most // 2)
    return _distinct(chain(titles, sorted(scores, key=lambda word: -scores[word])), most)


def _quotations(plain: str, *, titles_only: bool = False) -> Iterator[str]:
    for found in _QUOTATION.finditer(plain):
        inside = found[0][1:-1].strip()
        if (
            1 < len(inside) <= LONGEST_QUOTATION
            and any(map(str.isalnum, inside))
            and (not titles_only or found[0].startswith(("《", "〈")))
        ):
            yield inside


def _latin_words(plain: str) -> Iterator[str]:
    """Words, codes and numbers as they are written, without function words."""
    for found in _LATIN_RUN.finditer(plain):
        word = found[0].removesuffix("'s")
        if found["cjk"] is None and (word.casefold() not in ENGLISH_FUNCTION_WORDS or _is_name(word)):
            yield word


def _is_name(word: str) -> bool:
    """Whether a word is written in capitals, as names of several letters are (`IT`)."""
    return len(word) > 1 and word.isupper()


def _is_marked(word: str) -> bool:
    """Whether a word is a code, or a name in capitals; a bare number is neither."""
    has_letter = not word.replace(",", "").replace(".", "").isdigit()
    return has_letter and (_is_name(word) or any(map(str.isdigit, word)) or bool(CONNECTORS.search(word)))


def _distinct(words: Iterable[str], most: int) -> tuple[str, ...]:
    """The first so many words, each in its first spelling."""
    first: dict[str, str] = {}
    for word in words:
        if len(first) >= most:
            break
        first.setdefault(word.casefold(), word)
    return tuple(first.values())


def _content_words_of(pieces: Iterable[str]) -> list[str]:
    """Words in search mode, of two or more characters, without stop words.

    Search mode writes the shorter words inside a word before it, those that overlap too (数据 and 据库 of 数据库): of
    these the first stays.
    """
    words: list[str] = []
    for piece in pieces:
        if len(piece) > 2:
            first = len(words)
            while first and len(words[first - 1]) < len(piece) and words[first - 1] in piece:
                first -= 1
            words[first:] = _side_by_side(words[first:], piece) if piece not in CHINESE_STOP_WORDS else ()
        if len(piece) > 1:
            words.append(piece)
    return [word for word in words if word not in CHINESE_STOP_WORDS]


def _side_by_side(parts: Iterable[str], word: str) -> Iterator[str]:
    end = 0
    for part in parts:
        start = word.find(part, end)
        if start >= 0:
            yield part
            end = start + len(part)


def _content_words(plain: str, language: str) -> list[str]:
    words: list[str] = []
    for found in _LATIN_RUN.finditer(plain):
        if found["cjk"] is None:
            words += [word for word in _latin_words(found[0]) if len(word) > 1 and not word[0].isdigit()]
        elif language != "en":
            pieces = _content_words_of(_segmenter()(found[0]))
            words += [word for word, weight in zip(pieces, _load_weights().of(pieces), strict=True) if weight]
    spelling: dict[str, str] = {}
    return [spelling.setdefault(word.casefold(), word) for word in words]


# Chinese chunks

_NAME_TAGS = ("nr", "ns", "nt", "nz")
_TOPIC_TAGS = ("n", "v", "i", "l", "j", "a", "b", "eng", "t", "s")
_NAME_PREMIUM = 1.5


class _Weights(NamedTuple):
    """Weights of words, as arrays: a dictionary of strings takes ten times the memory."""

    hashes: NDArray[np.int64]  # of the words, ascending, shape (n_words,)
    weights: NDArray[np.float32]  # idf, with the premium on names; 0 for function words; shape (n_words,)
    unknown: float  # of any other word: the median idf

    def of(self, words: Sequence[str]) -> list[float]:
        wanted = _hashes(words)
        places = np.minimum(np.searchsorted(self.hashes, wanted), self.hashes.size - 1)
        known = self.hashes[places] == wanted
        weights: list[float] = np.where(known, self.weights[places], self.unknown).tolist()
        return weights


def _hashes(words: Collection[str]) -> NDArray[np.int64]:
    # Python's own hashes are fast, and differ between processes: they must not be stored.
    return np.fromiter(map(hash, words), dtype=np.int64, count=len(words))


@cache
def _load_weights() -> _Weights:
    folder = Path(str(import_dependency("jieba").__file__)).parent
    lines = (folder / "analyse" / "idf.txt").read_text("utf-8").splitlines()
    idf = {word: float(value) for word, value in (line.split(" ") for line in lines)}
    median = float(np.median(np.fromiter(idf.values(), dtype=np.float64)))
    weights = dict(idf)
    for line in (folder / "dict.txt").read_text("utf-8").splitlines():
        word, _, tag = line.split(" ")
        premium = _NAME_PREMIUM if tag.startswith(_NAME_TAGS) else float(tag.startswith(_TOPIC_TAGS))
        weights[word] = idf.get(word, median) * premium
    hashes = _hashes(weights)
    order = np.argsort(hashes)
    return _Weights(hashes[order], np.array(list(weights.values()), dtype=np.float32)[order], median)


@cache
def _segmenter() -> Segmenter:
    return load_segmenter(Engine.JIEBA)


def _chinese_words(plain: str, most: int) -> Mapping[str, float]:
    """Scores of a Chinese text's words and phrases; parts that stand nowhere alone are left out."""
    cut, weights = _segmenter(), _load_weights()
    counts = Counter(_content_words_of(chain.from_iterable(cut(run[0]) for run in _CHINESE_RUN.finditer(plain))))
    scores = {
        word: counts[word] * weight
        for word, weight in zip(counts, weights.of(list(counts)), strict=True)
        if weight and word[0].isalnum()
    }
    for word, count in Counter(word for word in _latin_words(plain) if not word[0].isdigit() and len(word) > 1).items():
        counts[word] = count
        scores[word] = count * weights.unknown * (_NAME_PREMIUM if _is_marked(word) or word[0].isupper() else 1.0)
    best = sorted(scores, key=lambda word: -scores[word])[: 2 * most]
    for first, second in permutations([word for word in best if _CHINESE.match(word)], 2):
        count = plain.count(first + second)
        if count > 1 and 4 * count >= counts[first] + counts[second]:
            counts[first + second] = count
            scores[first + second] = scores[first] + scores[second]
            best.append(first + second)
    return {
        word: scores[word]
        for word in best
        if not any(word in other and word != other and counts[word] <= counts[other] for other in best)
    }


# English chunks

_LONGEST_PHRASE = 3
_BREAK = re.compile(rf"(?:(?!{LATIN})[^\s'_-])+|\n")


def _english_phrases(plain: str) -> Mapping[str, float]:
    """Scores of an English text's phrases: the sum of degree by frequency of their words."""
    phrases = [phrase for clause in _BREAK.split(plain) for phrase in _content_runs(clause)]
    frequency: Counter[str] = Counter()
    degree: Counter[str] = Counter()
    for phrase in phrases:
        for word in phrase:
            frequency[word.casefold()] += 1
            degree[word.casefold()] += len(phrase)
    scores: dict[str, float] = {}
    for phrase in phrases:
        score = sum(degree[word.casefold()] / frequency[word.casefold()] for word in phrase)
        is_name = any(_is_marked(word) or word[0].isupper() for word in phrase)
        spelling = " ".join(phrase)
        scores[spelling] = max(scores.get(spelling, 0.0), score * (_NAME_PREMIUM if is_name else 1.0))
    return scores


def _content_runs(clause: str) -> Iterator[tuple[str, ...]]:
    """Runs of words without function words; of a long run its last words, where the head of a noun phrase stands."""
    run: list[str] = []
    for word in chain(clause.split(), [""]):
        plain = word.strip("'_-").removesuffix("'s")
        if plain and (plain.casefold() not in ENGLISH_FUNCTION_WORDS or _is_name(plain)):
            run.append(plain)
            continue
        if run and not all(word.isdigit() for word in run):
            yield tuple(run[-_LONGEST_PHRASE:])
        run = []
