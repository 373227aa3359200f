import time

import numpy as np
import pytest

from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.errors import ChannelUnavailable, DegradationCode, RerankerNotApplicable, RerankerUnavailable
from retrieval.rerankers.chain import CosineReranker
from tests.retrieval.rerankers.jobs import candidate, job, soon

TWO_BASES = [candidate(20, 2), candidate(10, 1), candidate(21, 2)]


def table(values):
    return lambda chunk_ids: np.array([values[chunk_id] for chunk_id in chunk_ids.tolist()], dtype=np.float64)


SIMILARITY = {1: table({10: 0.5}), 2: table({20: 0.9, 21: -0.25})}


def test_each_knowledge_base_s_vectors_score_its_own_candidates():
    scores = CosineReranker().scores(job("q", TWO_BASES, spaces={1: "m", 2: "m"}, similarity=SIMILARITY), soon())
    assert scores.tolist() == [0.9, 0.5, -0.25]


def test_rounding_does_not_leave_the_range_of_a_cosine():
    similarity = {1: table({10: 1.0000002})}
    scores = CosineReranker().scores(job("q", [candidate(10)], spaces={1: "m"}, similarity=similarity), soon())
    assert scores.tolist() == [1.0]


def test_no_candidates_have_no_scores():
    assert CosineReranker().scores(job("q", []), soon()).shape == (0,)


@pytest.mark.parametrize(
    ("spaces", "similarity", "reason"),
    [
        ({1: "m", 2: "other"}, SIMILARITY, "do not compare"),
        ({1: HASHING_MODEL_ID, 2: HASHING_MODEL_ID}, SIMILARITY, "compare words"),
        ({1: "m", 2: "m"}, {2: SIMILARITY[2]}, "knowledge base 1"),
        ({1: "m"}, SIMILARITY, "knowledge base 2"),
        ({1: "m", 2: "m"}, {1: table({10: np.nan}), 2: SIMILARITY[2]}, "1 of 3 candidates have no vector"),
    ],
)
def test_it_is_of_no_use_where_the_cosines_do_not_compare(spaces, similarity, reason):
    with pytest.raises(RerankerNotApplicable, match=reason):
        CosineReranker().scores(job("q", TWO_BASES, spaces=spaces, similarity=similarity), soon())


def test_another_space_among_the_knowledge_bases_without_candidates_does_no_harm():
    parts = {"spaces": {1: "m", 2: "other"}, "similarity": SIMILARITY}
    assert CosineReranker().scores(job("q", [candidate(10, 1)], **parts), soon()).tolist() == [0.5]


def test_vectors_that_cannot_be_read_are_a_failure():
    def refuse(_chunk_ids):
        raise ChannelUnavailable(DegradationCode.CHANNEL_TIMEOUT, "the database is busy: look at its load")

    with pytest.raises(RerankerUnavailable, match="the database is busy") as raised:
        CosineReranker().scores(job("q", [candidate(10)], spaces={1: "m"}, similarity={1: refuse}), soon())
    assert raised.value.code == DegradationCode.RERANKER_FAILED


def test_past_the_deadline_no_vector_is_read():
    read = []
    parts = {"spaces": {1: "m"}, "similarity": {1: read.append}}
    with pytest.raises(RerankerUnavailable) as raised:
        CosineReranker().scores(job("q", [candidate(10)], **parts), time.monotonic() - 1)
    assert raised.value.code == DegradationCode.RERANKER_TIMEOUT
    assert read == []
