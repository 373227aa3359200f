"""When the latency budget ends, a search answers with what it has; only with nothing it fails."""

import pytest

from retrieval.errors import NoChannelAvailable
from tests.kb.search.faults.searches import WARRANTY, ask, building, channels, notes, of_letters, texts
from tests.servers import Reply

ALONE = {"enable_fts": False, "lexical_fallback": False}
BUDGET_MS = 50


@pytest.fixture
def hanging(kb, models, begun):
    models.always("embeddings", Reply(content=of_letters, hang=True))


def test_50_ms_and_a_hanging_embedder_leave_the_keywords(kb, hanging):
    """The code names the model, not the channel: the search's own deadline is the one that the channel waits until."""
    result = ask(kb, latency_budget_ms=BUDGET_MS, overrides=ALONE)

    assert notes(result) == [("vector", "embedder_timeout")]
    assert texts(result)[0] == WARRANTY
    assert channels(result) == {"bm25"}


def test_50_ms_do_for_a_search_whose_vector_is_cached(kb, hanging):
    result = ask(kb, query="电源", latency_budget_ms=10_000, overrides=ALONE)

    assert notes(result) == []
    assert channels(result) == {"vector", "bm25"}


def test_a_cold_index_and_a_hanging_embedder_leave_full_text(kb, hanging):
    with building(kb):
        result = ask(kb, latency_budget_ms=10_000, overrides={"keyword_timeout_ms": 100, "vector_timeout_ms": 100})

    assert notes(result) == [("vector", "embedder_timeout"), ("bm25", "bm25_index_building")]
    assert texts(result)[0] == WARRANTY
    assert channels(result) == {"fts", "lexical"}


def test_50_ms_a_cold_index_and_a_hanging_embedder_leave_nothing(kb, hanging):
    with building(kb), pytest.raises(NoChannelAvailable) as caught:
        ask(kb, latency_budget_ms=BUDGET_MS, overrides=ALONE)

    found = [(each.stage, each.code) for each in caught.value.degradations]
    assert found == [("vector", "embedder_timeout"), ("bm25", "bm25_index_building")]
