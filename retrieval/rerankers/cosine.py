import time

import numpy as np
from numpy.typing import NDArray

from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.errors import ChannelUnavailable, RerankerNotApplicable, RerankerUnavailable
from retrieval.messages import message_of
from retrieval.rerankers.guarded import out_of_time
from retrieval.selection import ScoreScale
from retrieval.trace import DegradationCode
from retrieval.types import RerankJob


class CosineReranker:
    """Exact cosine similarity of the stored vectors to the query's, where one model of meanings made all of them."""

    name = "cosine"
    scale = ScoreScale.COSINE

    def scores(self, job: RerankJob, deadline: float) -> NDArray[np.float64]:
        """Returns shape (n_candidates,), from -1 to 1.

        Raises:
            RerankerUnavailable: the vectors cannot be read, or there is no time left to read them.
            RerankerNotApplicable: the candidates do not share one space, or one has no vector, or the space is the
                hashing embedder's, whose cosines compare words as `overlap` does, and worse.
        """
        kb_ids = sorted({candidate.kb_id for candidate in job.candidates})
        _check_space(job, kb_ids)
        if time.monotonic() >= deadline:
            raise out_of_time(self.name)
        scores = np.empty(len(job.candidates), dtype=np.float64)
        for kb_id in kb_ids:
            rows = [row for row, candidate in enumerate(job.candidates) if candidate.kb_id == kb_id]
            chunk_ids = np.array([job.candidates[row].chunk_id for row in rows], dtype=np.int64)
            try:
                scores[rows] = job.similarity[kb_id](chunk_ids)
            except ChannelUnavailable as error:
                raise RerankerUnavailable(DegradationCode.RERANKER_FAILED, message_of(error)) from error
        if np.isnan(scores).any():
            raise RerankerNotApplicable(f"{int(np.isnan(scores).sum())} of {len(scores)} candidates have no vector")
        return np.clip(scores, -1.0, 1.0)


def _check_space(job: RerankJob, kb_ids: list[int]) -> None:
    if missing := [kb_id for kb_id in kb_ids if kb_id not in job.spaces or kb_id not in job.similarity]:
        raise RerankerNotApplicable(f"the vectors of knowledge base {missing[0]} have not answered")
    spaces = {job.spaces[kb_id] for kb_id in kb_ids}
    if len(spaces) > 1:
        raise RerankerNotApplicable(
            f"the candidates are of {len(spaces)} embedding models: their cosines do not compare"
        )
    if HASHING_MODEL_ID in spaces:
        raise RerankerNotApplicable("the hashing embedder's cosines compare words, not meanings")
