from dataclasses import asdict

from retrieval.errors import Degradation, DegradationCode
from retrieval.types import Dropped, Span, Trace


def test_a_span_carries_what_its_stage_noted():
    trace = Trace()
    with trace.span("fusion", k=60) as detail:
        detail["candidates"] = 3
    (span,) = trace.spans
    assert span.as_dict() == {"stage": "fusion", "milliseconds": round(span.milliseconds, 3), "k": 60, "candidates": 3}


def test_a_stage_that_ran_for_several_knowledge_bases_counts_with_its_longest_run():
    trace = Trace()
    trace.spans += [Span("bm25", 2.0, {"kb_id": 1}), Span("bm25", 5.0, {"kb_id": 2})]
    timings = trace.timings_ms()
    assert timings["bm25"] == 5.0
    assert timings["total"] >= 0


def test_the_same_degradation_is_noted_once():
    trace = Trace()
    for _ in range(2):
        trace.degrade(Degradation("vector", DegradationCode.MODEL_UNAVAILABLE, "fetch it"))
    assert [each.as_dict() for each in trace.degradations] == [
        {"stage": "vector", "code": "model_unavailable", "detail": "fetch it"}
    ]


def test_what_a_server_says_is_told_without_what_cannot_be_stored():
    detail = Degradation("rerank", DegradationCode.RERANKER_FAILED, "refused: \0bad \ud800 key").detail
    assert detail == "refused: bad ? key"


def test_a_dropped_chunk_is_told_with_its_ranks_and_what_stands_for_it():
    dropped = Dropped("dedupe", 1, 7, {"bm25": 3}, represented_by=5)
    assert asdict(dropped) == {
        "stage": "dedupe",
        "kb_id": 1,
        "chunk_id": 7,
        "ranks": {"bm25": 3},
        "represented_by": 5,
    }
