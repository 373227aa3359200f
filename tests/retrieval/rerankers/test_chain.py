import time

import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.errors import DegradationCode, RerankerNotApplicable, RerankerUnavailable
from retrieval.rerankers import chain
from retrieval.rerankers.chain import (
    COMPARED_CHARACTERS,
    MOST_COMPARED,
    RESERVED_S,
    CosineReranker,
    RerankChain,
    text_of,
)
from retrieval.rerankers.cross_encoder import HttpReranker
from retrieval.rerankers.overlap import OverlapReranker
from retrieval.selection import ScoreScale
from retrieval.types import Analysis, RerankJob
from tests.fakes import WordTokenizer
from tests.retrieval.rerankers.jobs import candidate, of_texts, soon
from tests.servers import ModelServer, Reply

TWO = of_texts("a b", ["a", "a b"])


class Link:
    """Answers with what it is given: scores, or an error to raise. Notes the deadlines it was asked with."""

    def __init__(self, answer, name="cross_encoder", scale=ScoreScale.CROSS_ENCODER):
        self.name, self.scale, self._answer = name, scale, answer
        self.deadlines = []

    def scores(self, job, deadline):
        self.deadlines.append(deadline)
        if isinstance(self._answer, Exception):
            raise self._answer
        return np.array(self._answer)


class LinkThatNotesKnowledgeBases(Link):
    """Notes the knowledge bases of the candidates of each call; scores by chunk id."""

    def __init__(self):
        super().__init__(None)
        self.seen = []

    def scores(self, job, deadline):
        self.seen.append([each.kb_id for each in job.candidates])
        return np.array([0.1 * each.chunk_id for each in job.candidates])


def overlap(answer=(0.25, 0.5)):
    return Link(answer, "overlap", ScoreScale.OVERLAP)


def away(code=DegradationCode.RERANKER_UNAVAILABLE):
    return RerankerUnavailable(code, "it is away: fetch it")


def codes(outcome):
    return [degradation.code for degradation in outcome.degradations]


def test_the_first_link_that_can_score_answers():
    later = overlap()
    outcome = RerankChain([Link([0.9, 0.1]), later]).rerank(TWO, soon())

    assert (outcome.name, outcome.scale) == ("cross_encoder", ScoreScale.CROSS_ENCODER)
    assert outcome.scores.tolist() == [0.9, 0.1]
    assert outcome.degradations == ()
    assert outcome.tried == {}
    assert later.deadlines == []


def test_each_link_that_is_away_is_a_degradation():
    links = [Link(away()), Link(away(DegradationCode.MODEL_CIRCUIT_OPEN), "http"), overlap()]
    outcome = RerankChain(links).rerank(TWO, soon())

    assert (outcome.name, outcome.scale) == ("overlap", ScoreScale.OVERLAP)
    assert outcome.scores.tolist() == [0.25, 0.5]
    assert codes(outcome) == [DegradationCode.RERANKER_UNAVAILABLE, DegradationCode.MODEL_CIRCUIT_OPEN]
    assert {(degradation.stage, degradation.detail) for degradation in outcome.degradations} == {
        ("rerank", "it is away: fetch it")
    }
    assert outcome.tried == {"cross_encoder": "reranker_unavailable", "http": "model_circuit_open"}


def test_a_link_of_no_use_here_is_noted_and_no_degradation():
    cosine = Link(RerankerNotApplicable("two spaces"), "cosine", ScoreScale.COSINE)
    outcome = RerankChain([cosine, overlap()]).rerank(TWO, soon())

    assert outcome.name == "overlap"
    assert outcome.degradations == ()
    assert outcome.tried == {"cosine": "two spaces"}


@pytest.mark.parametrize("links", [[], [Link(RerankerNotApplicable("no tokenizer"), "overlap", ScoreScale.OVERLAP)]])
def test_without_any_answer_there_are_no_scores(links):
    outcome = RerankChain(links).rerank(TWO, soon())
    assert (outcome.name, outcome.scale, outcome.scores) == (None, None, None)


def test_the_scale_that_was_intended_is_that_of_the_first_link_of_use_here():
    of_no_use = Link(RerankerNotApplicable("two spaces"), "cosine", ScoreScale.COSINE)
    assert RerankChain([of_no_use, Link(away()), overlap()]).rerank(TWO, soon()).intended == ScoreScale.CROSS_ENCODER
    assert RerankChain([of_no_use, overlap()]).rerank(TWO, soon()).intended == ScoreScale.OVERLAP
    assert RerankChain([Link(away())]).rerank(TWO, soon()).intended == ScoreScale.CROSS_ENCODER
    assert RerankChain([of_no_use]).rerank(TWO, soon()).intended == ScoreScale.RRF


@pytest.mark.parametrize(
    "answer", [[0.5], [0.5, 0.5, 0.5], [[0.5, 0.5]], [np.nan, 0.5], [np.inf, 0.5], ["high", "low"], [None, 0.5]]
)
def test_an_answer_that_is_not_one_finite_score_each_is_a_failure(answer):
    outcome = RerankChain([Link(answer), overlap()]).rerank(TWO, soon())
    assert outcome.name == "overlap"
    assert codes(outcome) == [DegradationCode.RERANKER_FAILED]


def test_an_error_that_nobody_foresaw_is_logged_and_a_failure(caplog):
    outcome = RerankChain([Link(ZeroDivisionError("its own fault")), overlap()]).rerank(TWO, soon())

    assert outcome.name == "overlap"
    assert codes(outcome) == [DegradationCode.RERANKER_FAILED]
    assert "its own fault" not in outcome.degradations[0].detail
    assert "its own fault" in caplog.text


def test_a_model_leaves_some_time_to_the_links_after_it():
    model, last = Link(away()), overlap()
    deadline = soon()
    RerankChain([model, last]).rerank(TWO, deadline)
    assert model.deadlines == [pytest.approx(deadline - RESERVED_S)]
    assert last.deadlines == [deadline]


def test_a_model_at_the_end_of_the_chain_has_all_the_time():
    model = Link([0.5, 0.5])
    deadline = soon()
    RerankChain([model]).rerank(TWO, deadline)
    assert model.deadlines == [deadline]


def test_past_the_deadline_models_are_passed_over_and_overlap_answers():
    models = [Link([0.5, 0.5]), Link([0.5, 0.5], "http")]
    outcome = RerankChain([*models, overlap()]).rerank(TWO, time.monotonic() - 1)

    assert outcome.name == "overlap"
    assert codes(outcome) == [DegradationCode.RERANKER_TIMEOUT] * 2
    assert [model.deadlines for model in models] == [[], []]


def test_candidates_of_several_knowledge_bases_are_scored_together():
    link = LinkThatNotesKnowledgeBases()
    job = RerankJob(Analysis("q"), (candidate(1, 1), candidate(2, 2), candidate(3, 1)))
    outcome = RerankChain([link]).rerank(job, soon())
    assert link.seen == [[1, 2, 1]]
    assert outcome.scores.tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_a_server_that_hangs_costs_its_scores_only():
    with ModelServer() as server:
        server.always("rerank", Reply(hang=True))
        http = HttpReranker(server.base_url, timeout_s=0.1)
        query = Analysis("a b", {1: ("a", "b")})
        job = RerankJob(query, TWO.candidates)
        outcome = RerankChain([http, CosineReranker(), OverlapReranker({1: WordTokenizer()})]).rerank(job, soon())

    assert outcome.name == "overlap"
    assert outcome.scores.tolist() == pytest.approx([0.0, 1.0])  # “a” is a function word
    assert outcome.tried["http"] == "reranker_timeout"
    assert "did not answer" in outcome.tried["cosine"]


words = st.lists(st.sampled_from("abcde"), max_size=6)


@given(
    query=words,
    variants=st.lists(words, max_size=3),
    texts=st.lists(st.tuples(words, st.floats(0, 1), st.integers(1, 2)), min_size=1, max_size=8),
)
def test_overlap_scores_every_candidate_from_0_to_1(query, variants, texts):
    candidates = [
        candidate(place, kb_id, text=" ".join(text), agreement=agreement)
        for place, (text, agreement, kb_id) in enumerate(texts)
    ]
    analysis = Analysis(" ".join(query), {1: tuple(query)}, {1: tuple(map(tuple, variants))})
    tokenizers = {1: WordTokenizer(), 2: WordTokenizer()}
    outcome = RerankChain([OverlapReranker(tokenizers)]).rerank(RerankJob(analysis, tuple(candidates)), soon())
    assert outcome.scores.shape == (len(texts),)
    assert ((outcome.scores >= 0) & (outcome.scores <= 1)).all()


def test_the_closest_question_is_read_only_of_a_candidate_that_was_found_by_its_questions():
    asked = candidate(1, text="abc", questions=("who pays?", "who pays the bill?"))
    found = asked._replace(ranks={"question": 1})
    assert text_of(asked, "who pays the bill") == "abc"
    assert text_of(found, "who pays the bill") == "who pays the bill?\nabc"


def test_of_many_and_long_questions_so_much_is_compared_and_no_more(monkeypatch):
    compared = []
    monkeypatch.setattr(chain, "ngrams", lambda text: compared.append(len(text)) or text.split())
    question = "who pays " + "x" * 2_000
    many = candidate(1, text="abc", questions=[question, *["no"] * 99], ranks={"question": 1})
    assert text_of(many, "who pays" + " y" * 1_000) == f"{question}\nabc"
    assert max(compared) <= COMPARED_CHARACTERS
    assert len(compared) == MOST_COMPARED + 1
