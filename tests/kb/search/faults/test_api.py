"""Over HTTP: 200 with what is missing while any channel lives, 503 with all the reasons when none does."""

import pytest
from rest_framework.test import APIClient

from kb.search.services import search_log
from tests.kb.search.faults.searches import QUERY, WARRANTY, building, out_of_time
from tests.servers import Reply


@pytest.fixture
def post(kb):
    client = APIClient()
    client.force_login(kb.owner)

    def post(**fields):
        body = {"query": QUERY, "knowledge_base_ids": [kb.pk], **fields}
        return client.post("/api/v1/search/", body, format="json")

    yield post
    search_log.flush()


def codes(response):
    return [(each["stage"], each["code"]) for each in response.json()["degraded"]]


def test_a_search_without_the_embedder_is_answered_and_says_so(post, models):
    models.always("embeddings", Reply(status=401))

    response = post()

    assert response.status_code == 200
    assert response.json()["results"][0]["text"] == WARRANTY
    assert codes(response) == [("vector", "model_unavailable")]


def test_a_search_without_any_channel_is_503_with_the_reasons_and_a_time_to_try_again(kb, post, models, monkeypatch):
    models.always("embeddings", Reply(status=401))

    out_of_time(monkeypatch)

    with building(kb):
        response = post(overrides={"enable_fts": False, "lexical_fallback": False})

    assert response.status_code == 503
    assert int(response.headers["Retry-After"]) > 0
    assert response.json()["code"] == "no_channel_available"
    assert codes(response) == [("vector", "model_unavailable"), ("bm25", "bm25_index_building")]
    assert all(each["detail"] for each in response.json()["degraded"])
