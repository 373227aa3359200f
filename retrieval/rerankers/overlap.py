"""The reranker without a model: how much of the query's words and characters a chunk holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import RerankerNotApplicable, _
from retrieval.evidence import Wording, searched_texts, wordings
from retrieval.postings import hash_terms
from retrieval.protocols import Tokenizer
from retrieval.selection import ScoreScale
from retrieval.types import Candidate, RerankJob

COVERAGE_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class OverlapReranker:
    """How much of the query a chunk holds, 0 to 1: 0.2 x coverage + 0.8 x saturation.

    Coverage is the share that the words and characters in the chunk have of the rarity of all in the query; saturation is
    what BM25 makes of it, as a share of the most that any chunk could have. Both depend on the query, the chunk and the
    statistics of its knowledge base only, so that a cut means the same in every search.

    A query that names a concept is covered in its own words or in those of another name of the concept, and one that
    consists of several questions by an answer to one of them: whichever the chunk holds more of. Likewise a chunk scores
    by its passage or by one of the questions that it answers, a text of its own: whichever is better. Term statistics are
    those of passages in the keyword index; without it texts are tokenised here and all terms weigh the same.
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
            raise RerankerNotApplicable(_("no knowledge base of the candidates has a tokenizer"))
        scores = np.zeros(len(job.candidates), dtype=np.float64)
        for kb_id in kb_ids & self.tokenizers.keys():
            rows = [row for row, candidate in enumerate(job.candidates) if candidate.kb_id == kb_id]
            own = [job.candidates[row] for row in rows]
            held = job.characters.get(kb_id)
            if ways := held.ways if held else wordings(job.analysis, kb_id, self.tokenizers[kb_id]):
                scores[rows] = self._best(kb_id, ways, own, job)
        return scores

    def _best(
        self, kb_id: int, ways: Sequence[Wording], candidates: Sequence[Candidate], job: RerankJob
    ) -> NDArray[np.float64]:
        """The best score over the wordings of query and chunk, from one look at the statistics, shape (n_candidates,)."""
        terms = list(dict.fromkeys(term for way in ways for term in way.terms))
        chunk_ids = np.array([candidate.chunk_id for candidate in candidates], dtype=np.int64)
        saturation, rarity, rows, questions = self._of_terms(kb_id, terms, candidates, chunk_ids, job)
        column = {term: place for place, term in enumerate(terms)}
        picks = [list(map(column.__getitem__, way.terms)) for way in ways]
        if held := job.characters.get(kb_id):
            of_questions = held.counts.saturation(held.codes, questions)
            saturation = np.hstack([saturation, np.vstack([held.saturation(chunk_ids), of_questions])])
            rarity = np.append(rarity, held.counts.rarity(held.codes))
            for pick, way in zip(picks, ways, strict=True):
                pick.extend((len(terms) + np.searchsorted(held.codes, way.codes)).tolist())
        scores = np.max([overlap(saturation[:, pick], rarity[pick]) for pick in picks], axis=0)
        best: NDArray[np.float64] = scores[: len(candidates)]
        np.maximum.at(best, rows, scores[len(candidates) :])
        return best

    def _of_terms(
        self,
        kb_id: int,
        terms: Sequence[str],
        candidates: Sequence[Candidate],
        chunk_ids: NDArray[np.int64],
        job: RerankJob,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], list[str]]:
        """Saturation of each text with each term, of the candidates' and then of their questions, and the terms' rarity.

        Shapes (n_candidates + n_questions, n_terms) and (n_terms,). Then the rows of the questions' candidates, shape
        (n_questions,), and the questions.
        """
        tokenizer, lexicon, asked = self.tokenizers[kb_id], job.lexicons.get(kb_id), job.questions.get(kb_id)
        of = [() if candidate.passage is None else candidate.passage.questions for candidate in candidates]
        if lexicon is None:
            # How often a text holds a term would need the lengths of all chunks: holding it counts in full.
            texts = searched_texts((candidate.passage for candidate in candidates), tokenizer)
            questions = [tokenizer.simplify(question) for each in of for question in each]
            held = [set(tokenizer(text)) for text in (*texts, *questions)]
            saturation = np.array([[term in each for term in terms] for each in held], dtype=np.float64)
            return saturation, np.ones(len(terms)), np.repeat(np.arange(len(of)), list(map(len, of))), questions
        hashes = hash_terms(terms)
        saturation, rarity = lexicon.saturation(hashes, chunk_ids), lexicon.rarity(hashes)
        if asked is None:
            return saturation, rarity, np.empty(0, dtype=np.int64), []
        rows, places, frequencies, lengths = asked.counts(hashes, chunk_ids)
        saturation = np.vstack([saturation, lexicon.saturation_of(frequencies, lengths)])
        # One that was deleted after the index was read holds no characters.
        found = zip(rows.tolist(), places.tolist(), strict=True)
        questions = [tokenizer.simplify(of[row][place]) if place < len(of[row]) else "" for row, place in found]
        return saturation, rarity, rows, questions


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
