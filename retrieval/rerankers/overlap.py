"""The reranker without a model: how much of the query's words and characters a chunk holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import RerankerNotApplicable
from retrieval.evidence import Wording, searched_texts, wordings
from retrieval.postings import hash_terms
from retrieval.protocols import Tokenizer
from retrieval.selection import ScoreScale
from retrieval.types import Candidate, Lexicon, RerankJob

COVERAGE_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class OverlapReranker:
    """How much of the query a chunk holds, 0 to 1: 0.2 x coverage + 0.8 x saturation.

    Coverage is the share that the words and characters in the chunk have of the rarity of all in the query; saturation is
    what BM25 makes of it, as a share of the most that any chunk could have. Both depend on the query, the chunk and the
    statistics of its knowledge base only, so that a cut means the same in every search.

    A query that names a concept is covered in its own words or in those of another name of the concept, and one that
    consists of several questions by an answer to one of them: whichever the chunk holds more of. Term statistics come
    from the keyword index; without it the passage is tokenised here and all terms weigh the same.
    """

    name = "overlap"
    scale = ScoreScale.OVERLAP

    tokenizers: Mapping[int, Tokenizer]

    def scores(self, job: RerankJob, deadline: float) -> NDArray[np.float64]:  # noqa: ARG002 - needs no time to speak of
        """Returns shape (n_candidates,), from 0 to 1, 0 for a candidate of a knowledge base without a tokenizer.

        RerankerNotApplicable where none of them has one.
        """
        kb_ids = {candidate.kb_id for candidate in job.candidates}
        if kb_ids and kb_ids.isdisjoint(self.tokenizers):
            raise RerankerNotApplicable("no knowledge base of the candidates has a tokenizer")
        scores = np.zeros(len(job.candidates), dtype=np.float64)
        for kb_id in kb_ids & self.tokenizers.keys():
            rows = [row for row, candidate in enumerate(job.candidates) if candidate.kb_id == kb_id]
            own = [job.candidates[row] for row in rows]
            ways = wordings(job.analysis, kb_id, self.tokenizers[kb_id])
            if ways:
                scores[rows] = self._best(kb_id, ways, own, job)
        return scores

    def _best(
        self, kb_id: int, ways: Sequence[Wording], candidates: Sequence[Candidate], job: RerankJob
    ) -> NDArray[np.float64]:
        """The best score over the wordings, from one look at the statistics, shape (n_candidates,)."""
        terms = list(dict.fromkeys(term for way in ways for term in way.terms))
        codes = np.unique(np.concatenate([way.codes for way in ways]))
        saturation, rarity = self._of_terms(kb_id, terms, candidates, job.lexicons.get(kb_id))
        if (characters := job.characters.get(kb_id)) is None:
            ways = [way._replace(codes=codes[:0]) for way in ways]
        else:
            texts = searched_texts([candidate.passage for candidate in candidates], self.tokenizers[kb_id])
            saturation = np.hstack([saturation, characters.saturation(codes, texts)])
            rarity = np.append(rarity, characters.rarity(codes))
        column = {term: place for place, term in enumerate(terms)}
        picks = [
            [*map(column.__getitem__, way.terms), *(len(terms) + np.searchsorted(codes, way.codes)).tolist()]
            for way in ways
        ]
        best: NDArray[np.float64] = np.max([overlap(saturation[:, pick], rarity[pick]) for pick in picks], axis=0)
        return best

    def _of_terms(
        self, kb_id: int, terms: Sequence[str], candidates: Sequence[Candidate], lexicon: Lexicon | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Saturation of each candidate with each term, shape (n_candidates, n_terms), and the terms' rarity."""
        if lexicon is None:
            # How often a chunk holds a term would need the lengths of all chunks: holding it counts in full.
            tokenizer = self.tokenizers[kb_id]
            held = [set(tokenizer(text)) for text in searched_texts((each.passage for each in candidates), tokenizer)]
            return np.array([[term in each for term in terms] for each in held], dtype=np.float64), np.ones(len(terms))
        hashes = hash_terms(terms)
        chunk_ids = np.array([candidate.chunk_id for candidate in candidates], dtype=np.int64)
        return lexicon.saturation(hashes, chunk_ids), lexicon.rarity(hashes)


def overlap(saturation: NDArray[np.float64], rarity: NDArray[np.float64]) -> NDArray[np.float64]:
    """The score of each chunk, shape (n_chunks,), from 0 to 1.

    Saturation of each chunk with each term has the shape (n_chunks, n_terms), from 0 to 1; 0 where the chunk lacks it.
    The rarity of each term is positive.
    """
    shares = rarity / rarity.sum()
    scores: NDArray[np.float64] = COVERAGE_SHARE * ((saturation > 0) @ shares) + (1 - COVERAGE_SHARE) * (
        saturation @ shares
    )
    return scores
