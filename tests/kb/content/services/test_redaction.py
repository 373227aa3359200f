"""An installation that keeps queries out of its search log."""

import pytest
from django.db import connection

from kb.base.errors import Rejected
from kb.index.filters import Filters
from kb.models import Concept, ConceptTerm, SearchLog
from kb.search.services.replay import replay
from kb.search.services.search import SearchRequest, search
from retrieval.types import Turn
from tests.factories import make_document, make_kb, principal

pytestmark = pytest.mark.django_db

TABLES_OF_SEARCHES = ("kb_searchlog", "kb_failedquery")


@pytest.fixture
def kb(settings):
    settings.SEARCH_LOG_QUERIES = False
    kb = make_kb()
    make_document(kb, "智能温控器的保修期是两年", "安装前请先关闭电源", tags=["a"])
    concept = Concept.objects.create(knowledge_base=kb, name="thermostat")
    ConceptTerm.objects.create(concept=concept, text="温控器")
    return kb


def ask(kb, **fields):
    request = SearchRequest(query="温控器 zebra 的保修期", knowledge_base_ids=[kb.pk], **fields)
    return search(principal(kb.owner), request)


def written(table):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT coalesce(string_agg(to_jsonb(t)::text, ' '), '') FROM {table} AS t")
        return cursor.fetchone()[0]


@pytest.mark.parametrize("explain", [True, False])
def test_no_word_of_a_query_reaches_the_database(kb, explain):
    history = (Turn("user", "giraffe"), Turn("assistant", "elephant"))
    ask(kb, explain=explain, history=history, overrides={"score_threshold": 1.0})

    kept = " ".join(written(table) for table in TABLES_OF_SEARCHES)
    assert "trace" in kept
    for word in ("温控", "zebra", "保修", "giraffe", "elephant", "thermostat"):
        assert word not in kept


def test_a_degradation_loses_its_sentence_which_may_quote_the_query(kb):
    ask(kb)

    assert [(each["code"], each["detail"]) for each in SearchLog.objects.get().degraded] == [("hashing_embedder", "")]


def test_what_is_no_word_of_the_query_is_kept(kb):
    outcome = ask(kb, explain=True, profile="default", filters=Filters.parse({"tags": ["a"]}))

    entry = SearchLog.objects.get()
    assert entry.result_count == len(outcome.result.hits)
    assert [each["chunk_id"] for each in entry.trace["results"]] == [
        hit.passage.chunk_id for hit in outcome.result.hits
    ]
    assert entry.trace["request"]["filters"] == {"tags": ["a"]}
    assert entry.trace["candidates"][0]["ranks"]
    assert entry.timings["total"] == entry.duration_ms
    spans = {span["stage"]: span for span in entry.trace["spans"]}
    assert spans["bm25"]["cache_tier"]
    assert spans["bm25"]["tiers"]["process"]["misses"] >= 0
    assert spans["rerank"]["reranker"] == "overlap"


def test_a_replay_says_why_it_cannot_be(kb):
    outcome = ask(kb)

    with pytest.raises(Rejected, match="SEARCH_LOG_QUERIES") as refusal:
        replay(principal(kb.owner), outcome.trace_id)
    assert refusal.value.code == "query_not_kept"


def test_a_search_whose_query_was_kept_is_still_replayed(kb, settings):
    settings.SEARCH_LOG_QUERIES = True
    outcome = ask(kb)
    settings.SEARCH_LOG_QUERIES = False

    assert replay(principal(kb.owner), outcome.trace_id).identical
