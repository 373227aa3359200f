"""The engines that cut Chinese into words, and what of a user dictionary they can take."""

import logging
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from types import ModuleType

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

    Memory: jieba's segmenters share the strings of one base dictionary. With `words` each holds a table of 15 MB and every
    beginning of a word, some 180 bytes a character: 100 MB, loaded in 3 s, with as many as a dictionary may hold. Each
    of rjieba's with `words` holds a dictionary of 25 MB, 70 MB with as many, loaded in 0.3 s.

    Args:
        engine: which one.
        words: with their frequencies, positive, in any order; None: the least one at which the word is cut out of a
            text that holds nothing else.

    Raises:
        DependencyMissing: the engine's package is not installed.
    """
    # A frequency that is left open depends on the words that are shorter: these go first, whatever order they came in.
    ordered = sorted(words, key=lambda entry: (entry[1] is None, len(entry[0]), entry[0]))
    return _load_jieba(ordered) if engine is Engine.JIEBA else _load_rjieba(ordered)


@cache
def engine_versions(engine: Engine) -> tuple[str, ...]:
    """The version of an engine's package, and a hash of its dictionary where that is a file of its own.

    Raises:
        DependencyMissing: the engine's package is not installed.
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
