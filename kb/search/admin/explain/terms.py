"""How the BM25 score of each candidate adds up, term by term."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kb.search.admin.stage_labels import listed, with_figure
from retrieval.postings import hash_terms
from retrieval.types import Analysis, Candidate, Lexicon, Result

DECIMALS = 4


@dataclass(frozen=True, slots=True)
class TermScore:
    """What one term adds.

    Attributes:
        repeats: how often the query holds it, and so how often it counts.
        frequency: how often the chunk holds it.
        share: of the score, in per cent.
    """

    term: str
    repeats: int
    idf: str
    frequency: int
    adds: str
    share: str


@dataclass(frozen=True, slots=True)
class KeywordScore:
    """A BM25 score, exact to the last digit shown.

    Attributes:
        query: the sub-query that it is the score for; blank for the query itself.
        terms: those that the chunk holds, the ones that add most first.
        missing: those that it lacks, each with its idf, the rarest first.
    """

    total: str
    query: str
    terms: tuple[TermScore, ...]
    missing: str


def keyword_scores(result: Result) -> dict[int, KeywordScore]:
    """The scores of all candidates by chunk id, from one look into each knowledge base's index.

    Those of a knowledge base whose keyword index has not answered are missing, and those without any term of the query.
    """
    return {
        chunk_id: score
        for kb_id, lexicon in result.lexicons.items()
        for chunk_id, score in _of_one_base(
            result.analysis, lexicon, [each for each in result.candidates if each.kb_id == kb_id], kb_id
        )
    }


def _of_one_base(
    analysis: Analysis, lexicon: Lexicon, candidates: Sequence[Candidate], kb_id: int
) -> Iterator[tuple[int, KeywordScore]]:
    counts = [Counter(query.search_tokens(kb_id)) for query in analysis.queries]
    terms = tuple(dict.fromkeys(term for count in counts for term in count))
    if not terms or not candidates:
        return
    table = _Table.of(lexicon, terms, np.array([each.chunk_id for each in candidates], dtype=np.int64))
    repeats = np.array([[count[term] for term in terms] for count in counts])
    totals = table.contributions @ repeats.T
    shown = np.array([each.scores.get("bm25", np.nan) for each in candidates])
    # A chunk that several queries have found has the score of the one that put it first.
    of_query = np.where(np.isnan(shown), totals.argmax(axis=1), np.abs(totals - shown[:, np.newaxis]).argmin(axis=1))
    for row, (candidate, query) in enumerate(zip(candidates, of_query.tolist(), strict=True)):
        if totals[row, query] > 0:
            words = analysis.queries[query].text if query else ""
            terms_held, missing = table.terms_of(row, repeats[query])
            yield candidate.chunk_id, KeywordScore(f"{totals[row, query]:.{DECIMALS}f}", words, terms_held, missing)


@dataclass(frozen=True, slots=True)
class _Table:
    """Term statistics of some chunks.

    Attributes:
        idf: shape (n_terms,).
        frequencies: how often each chunk holds each term, shape (n_chunks, n_terms).
        contributions: what each term, named once, adds to each score, shape (n_chunks, n_terms).
    """

    terms: tuple[str, ...]
    idf: NDArray[np.float64]
    frequencies: NDArray[np.uint32]
    contributions: NDArray[np.float64]

    @classmethod
    def of(cls, lexicon: Lexicon, terms: tuple[str, ...], chunk_ids: NDArray[np.int64]) -> "_Table":
        hashes = hash_terms(terms)
        return cls(
            terms,
            lexicon.idf(hashes),
            lexicon.frequencies(hashes, chunk_ids),
            lexicon.contributions(hashes, chunk_ids),
        )

    def terms_of(self, row: int, repeats: NDArray[Any]) -> tuple[tuple[TermScore, ...], str]:
        """What each term of a query adds to a chunk's score, and in words the terms that add nothing."""
        added = self.contributions[row] * repeats
        whole = added.sum()
        order = [place for place in np.lexsort((-self.idf, -added)).tolist() if repeats[place]]
        held = tuple(
            TermScore(
                self.terms[place],
                int(repeats[place]),
                f"{self.idf[place]:.{DECIMALS}f}",
                int(self.frequencies[row, place]),
                f"{added[place]:.{DECIMALS}f}",
                f"{100 * added[place] / whole:.1f}",
            )
            for place in order
            if added[place]
        )
        lacking = [place for place in order if not added[place]]
        return held, listed(with_figure(self.terms[place], f"{self.idf[place]:.{DECIMALS}f}") for place in lacking)
