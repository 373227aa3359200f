"""Character n-grams: what words share when they are misspelt, cut differently or unknown to any dictionary."""

import re
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retrieval.scripts import CJK, LATIN
from retrieval.tokenize import normalize

CJK_CHARACTERS: Final = 2
LATIN_CHARACTERS: Final = 3

_RUNS = re.compile(rf"([{CJK}]+)|{LATIN}+")


def ngrams(text: str) -> list[str]:
    """The distinct n-grams of a text in order of appearance: NFKC, case folded.

    Pairs of neighbouring Chinese, Japanese and Korean characters, and three letters or digits in a row of words in any
    other script; a shorter word is one itself, a single character of the former is none.

    Source: Foo, Li, "Chinese word segmentation and its effect on information retrieval", 2004, for bigrams; McNamee,
    Mayfield, "Character n-gram tokenization for European language text retrieval", 2004.
    """
    folded = normalize(text).casefold()
    return list(dict.fromkeys(chain.from_iterable(map(_of_run, _RUNS.finditer(folded)))))


def _of_run(run: re.Match[str]) -> list[str]:
    characters = run[0]
    size = CJK_CHARACTERS if run[1] else LATIN_CHARACTERS
    if len(characters) < size:
        return [] if run[1] else [characters]
    return [characters[start : start + size] for start in range(len(characters) - size + 1)]


def inverse_document_frequency(counts: NDArray[np.int64], chunk_count: int) -> NDArray[np.float64]:
    """How much a term tells, by the number of chunks that hold it: positive always, shape (n_terms,).

    Source: Lucene's BM25Similarity, log(1 + (N - n + 0.5) / (n + 0.5)).
    """
    return np.log1p((np.maximum(chunk_count, counts) - counts + 0.5) / (counts + 0.5))
