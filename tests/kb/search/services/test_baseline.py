import pytest
from django.utils import timezone

from kb.models import KnowledgeBase, SearchLog
from kb.providers import embedding_models
from kb.search.services.baseline import baseline, beyond_baseline, beyond_usual, codes_beyond_usual
from kb.search.services.search import SearchRequest, search
from retrieval.errors import Degradation
from tests.factories import make_document, make_kb, principal

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    kb = make_kb()
    make_document(kb, "智能温控器的保修期是两年")
    return kb


def of(*codes):
    return [Degradation("stage", code, "detail") for code in codes]


def codes(degradations):
    return [str(each.code) for each in degradations]


def test_hashing_no_reranker_and_no_language_model_are_how_it_is_set_up(kb, settings):
    assert baseline(kb) == ("hashing_embedder", "reranker_unavailable", "llm_not_configured")
    settings.LLM_API_KEY = "k"
    settings.RERANK_BASE_URL = "http://127.0.0.1:9/rerank"
    assert baseline(kb) == ("hashing_embedder",)
    KnowledgeBase.objects.update(embedding_model="openai/m")
    assert baseline(KnowledgeBase.objects.get(pk=kb.pk)) == ()


def test_a_reranker_that_is_not_on_this_machine_is_none(kb, settings, tmp_path):
    settings.RERANKER_MODEL = str(tmp_path / "nowhere")
    assert "reranker_unavailable" in baseline(kb)
    found = search(principal(kb.owner), SearchRequest(query="保修期", knowledge_base_ids=[kb.pk], log=False))
    assert set(codes(found.result.degraded)) == {"hashing_embedder", "reranker_unavailable"}
    assert beyond_baseline(found.result.degraded, [kb]) == ()


def test_a_reranker_that_is_here_and_fails_is_beyond_it(kb, settings, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    settings.RERANKER_MODEL = str(tmp_path)
    assert "reranker_unavailable" not in baseline(kb)
    assert codes(beyond_baseline(of("reranker_unavailable", "hashing_embedder"), [kb])) == ["reranker_unavailable"]


def test_a_profile_may_go_without_the_reranker_that_is_set_up(kb, settings):
    settings.RERANK_BASE_URL = "http://127.0.0.1:9/rerank"
    kb.profile.settings = {"rerankers": ["overlap"]}
    assert "reranker_unavailable" in baseline(kb)


def test_what_passes_is_beyond_it(kb):
    faults = of("hashing_embedder", "channel_timeout", "llm_not_configured", "store_behind")
    assert codes(beyond_baseline(faults, [kb])) == ["channel_timeout", "store_behind"]


def test_the_codes_of_rows_are_told_apart_alike_here_and_in_the_database(kb, settings):
    SearchLog.objects.create(
        knowledge_base_ids=[kb.pk],
        query="q",
        profile="default",
        profile_version=1,
        configuration={},
        trace={},
        result_count=0,
        duration_ms=1,
        created_at=timezone.now(),
        degraded=[each.as_dict() for each in of("hashing_embedder", "reranker_unavailable", "channel_timeout")],
    )
    (row,) = SearchLog.objects.annotate(codes=codes_beyond_usual())
    assert row.codes == ["channel_timeout"] == [each["code"] for each in beyond_usual(row.degraded)]
    settings.RERANK_BASE_URL = "http://127.0.0.1:9/rerank"
    (row,) = SearchLog.objects.annotate(codes=codes_beyond_usual())
    assert row.codes == ["reranker_unavailable", "channel_timeout"]
    assert [each["code"] for each in beyond_usual(row.degraded)] == row.codes


def test_a_language_model_is_missing_only_where_none_is_set_up(kb, settings):
    settings.LLM_API_KEY = "k"
    assert embedding_models.generator() is not None
    assert "llm_not_configured" not in baseline(kb)
