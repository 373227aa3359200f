"""How the keyword scores of the candidates of an explained search add up, term by term."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kb.search.admin.labels import with_figure
from kb.web.admin.fields import listed
from retrieval.character_counts import UNITS, written
from retrieval.evidence import CHARACTERS, CharacterEvidence
from retrieval.postings import hash_terms
from retrieval.types import Analysis, Candidate, Lexicon, Result

USUAL_DECIMALS = 4


def keyword_scores(result: Result) -> dict[int, dict[str, Any]]:
    """How the BM25 scores of all candidates add up, by chunk id, from one look into each knowledge base's index.

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
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each chunk's total, the sub-query that it is the score for, the terms that add most first, and those missing."""
    counts = [Counter(query.search_tokens(kb_id)) for query in analysis.queries]
    terms = tuple(dict.fromkeys(term for count in counts for term in count))
    if not terms or not candidates:
        return
    hashes, chunk_ids = hash_terms(terms), np.array([each.chunk_id for each in candidates], dtype=np.int64)
    idf = lexicon.idf(hashes)  # (n_terms,)
    frequencies = lexicon.frequencies(hashes, chunk_ids)  # (n_chunks, n_terms)
    contributions = lexicon.contributions(hashes, chunk_ids)  # (n_chunks, n_terms), of each term named once
    repeats = np.array([[count[term] for term in terms] for count in counts])
    totals = contributions @ repeats.T
    shown = np.array([each.scores.get("bm25", np.nan) for each in candidates])
    # A chunk that several queries have found has the score of the one that put it first.
    of_query = np.where(np.isnan(shown), totals.argmax(axis=1), np.abs(totals - shown[:, np.newaxis]).argmin(axis=1))
    for row, (candidate, query) in enumerate(zip(candidates, of_query.tolist(), strict=True)):
        if totals[row, query] <= 0:
            continue
        added = contributions[row] * repeats[query]
        order = [place for place in np.lexsort((-idf, -added)).tolist() if repeats[query, place]]
        held = [
            {
                "term": terms[place],
                "repeats": int(repeats[query, place]),
                "idf": f"{idf[place]:.{USUAL_DECIMALS}f}",
                "frequency": int(frequencies[row, place]),
                "adds": f"{added[place]:.{USUAL_DECIMALS}f}",
                "share": f"{100 * added[place] / added.sum():.1f}",
            }
            for place in order
            if added[place]
        ]
        yield (
            candidate.chunk_id,
            {
                "total": f"{totals[row, query]:.{USUAL_DECIMALS}f}",
                "query": analysis.queries[query].text if query else "",
                "terms": held,
                "missing": listed(
                    with_figure(terms[place], f"{idf[place]:.{USUAL_DECIMALS}f}") for place in order if not added[place]
                ),
            },
        )


def character_scores(result: Result) -> dict[int, dict[str, Any]]:
    """What words, pairs of characters and single ones add to the scores "characters", by chunk id."""
    return {
        chunk_id: score
        for kb_id, held in result.characters.items()
        for chunk_id, score in _of_characters(
            held, [each for each in result.candidates if each.kb_id == kb_id and CHARACTERS in each.scores]
        )
    }


def _of_characters(held: CharacterEvidence, candidates: Sequence[Candidate]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Of the wording that gives a chunk the most, as its score is; what adds most comes first, and what is missing last."""
    adds = held.adds(np.array([each.chunk_id for each in candidates], dtype=np.int64))
    best = np.argmax([each.sum(axis=1) for each in adds], axis=0)
    for row, (candidate, way) in enumerate(zip(candidates, best.tolist(), strict=True)):
        added, codes = adds[way][row], held.ways[way].codes.tolist()
        parts = [
            (codes[place] < UNITS, {"text": written(codes[place]), "adds": f"{added[place]:.{USUAL_DECIMALS}f}"})
            for place in np.argsort(-added, kind="stable").tolist()
            if added[place]
        ]
        total = candidate.scores[CHARACTERS]
        yield (
            candidate.chunk_id,
            {
                "total": f"{total:.{USUAL_DECIMALS}f}",
                "words": f"{max(total - added.sum(), 0.0):.{USUAL_DECIMALS}f}",
                "pairs": [each for is_single, each in parts if not is_single],
                "singles": [each for is_single, each in parts if is_single],
                "missing": [written(code) for code, adds_to_it in zip(codes, added, strict=True) if not adds_to_it],
            },
        )
