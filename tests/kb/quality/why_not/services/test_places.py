import pytest
from django.utils import translation

from kb.base.shapes import as_values
from kb.index.filters import Filters
from kb.models import ChunkEmbedding
from kb.quality.why_not.services.places import Stage, stage_text, verdict_sentence
from kb.quality.why_not.services.remedies import answer_of
from retrieval.types import CutBy
from tests.factories import make_document
from tests.kb.quality.why_not.services.asking import ask

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _in_english():
    with translation.override("en"):
        yield


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"vector_top_k": 2, "bm25_top_k": 2}, "rank 6 of 6 (2 become candidates)"),
        ({"rerank_candidates": 3, "top_k": 1}, "Its fused rank is 6, and the first 3 go on."),
        ({"use_rerank": False, "vector_top_k": 2}, "Without a reranker only what the vectors find counts"),
        ({"score_threshold": 0.99, "top_k": 10}, "is below the threshold 0.99 on the scale word overlap"),
        ({"general_retrieval": False, "max_web": 0}, "capped at 0, and it would be number 1"),
        ({"top_k": 2}, "It would be result 6, and the search gives 2."),
        ({"top_k": 10}, "The search finds this chunk: It is result 6."),
    ],
)
def test_the_verdict_is_one_sentence_with_the_figures(chunk, overrides, words):
    assert words in verdict_sentence(ask(chunk, overrides=overrides).verdict)


def test_the_filters_are_named(chunk):
    filters = Filters.parse({"tags": ["x"], "metadata": [{"key": "year", "op": "eq", "value": 1}]})

    assert "tags, metadata “year”" in verdict_sentence(ask(chunk, filters=filters).verdict)


def test_the_other_model_is_named(chunk):
    ChunkEmbedding.objects.filter(chunk=chunk).update(model="other/model")

    words = verdict_sentence(ask(chunk, overrides={"vector_top_k": 2, "bm25_top_k": 2}).verdict)

    assert "a vector of the model other/model only, and the search compares those of hashing" in words


def test_what_became_of_the_double_is_told(chunk, kb):
    first, double = (make_document(kb, "保修期为两年", source="same.txt").chunks.get() for _ in range(2))

    assert f"Chunk {first.pk} has the same content" in verdict_sentence(ask(double, overrides={"top_k": 10}).verdict)
    assert "it is result" in verdict_sentence(ask(double, overrides={"top_k": 10}).verdict)
    cut = ask(double, overrides={"rerank_candidates": 1, "top_k": 1, "vector_weight": 0.0})
    assert "it was dropped at the stage “Fusion”" in verdict_sentence(cut.verdict)


@pytest.mark.parametrize(
    "overrides", [{"top_k": 10}, {"use_rerank": False}, {"general_retrieval": False}, {"top_k": 1}]
)
def test_every_stage_has_a_name_and_a_sentence_without_a_gap(chunk, overrides):
    why = ask(chunk, overrides=overrides)

    assert {stage_text(stage) for stage in Stage}
    for step in why.steps:
        assert "%(" not in step.sentence
        assert step.sentence.endswith(".")


def test_as_json_it_can_be_written_and_tells_stages_places_terms_and_remedies(chunk):
    told = as_values(answer_of(ask(chunk, overrides={"vector_top_k": 2, "bm25_top_k": 2})))

    assert told["found"] is False
    assert told["rank"] is None
    assert (told["verdict"]["stage"], told["verdict"]["reason"]) == ("channels", "too_deep")
    assert told["chunk"]["chunk_id"] == chunk.pk
    assert [step["stage"] for step in told["stages"]] == [str(stage) for stage in Stage]
    assert {place["channel"] for place in told["places"]} == {"vector", "bm25", "fts", "lexical"}
    assert told["terms"]["query"][0]["term"] == "保修"
    assert {remedy["code"] for remedy in told["remedies"]} == {"draft", "add_question"}


@pytest.mark.parametrize("reason", CutBy)
def test_every_reason_to_drop_a_candidate_is_a_stage_with_a_name(reason):
    assert stage_text(Stage(reason))
