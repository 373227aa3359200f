import pytest

from kb.models import SearchLog
from kb.search import api as view
from kb.search.api import MOST_SEARCHES
from kb.search.services import search_log
from tests import factories

pytestmark = pytest.mark.django_db

URL = "/api/v1/search/batch/"


@pytest.fixture
def ask(client):
    def post(*searches):
        return client.post(URL, {"searches": list(searches)}, format="json")

    return post


def _query(kb, query="带薪年假", **fields):
    return {"query": query, "knowledge_base_ids": [kb.pk], "score_threshold": 0, **fields}


def test_each_search_is_answered_as_by_itself(ask, client, kb, document):
    alone = client.post("/api/v1/search/", _query(kb), format="json").json()

    response = ask(_query(kb), _query(kb, "work from home", top_k=1))

    first, second = response.json()["results"]
    assert (response.status_code, first["status"], second["status"]) == (200, 200, 200)
    assert first["body"]["results"] == alone["results"]
    assert [row["text"][:9] for row in second["body"]["results"]] == ["Employees"]


def test_the_cache_and_the_log_are_those_of_a_single_search(ask, kb, document):
    once, again = (each["body"] for each in ask(_query(kb), _query(kb)).json()["results"])

    search_log.flush()
    assert (once["cached"], again["cached"]) == (False, True)
    assert once["trace_id"] == again["trace_id"]
    assert SearchLog.objects.count() == 1


def test_a_batch_counts_as_many_requests_as_it_has_searches(ask, kb, document, settings):
    settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, "general": "5/hour"}

    fits, refused, smaller = ask(*[_query(kb)] * 3), ask(*[_query(kb)] * 3), ask(_query(kb))

    assert [each.status_code for each in (fits, refused, smaller)] == [200, 429, 200]
    assert [each.headers["RateLimit-Remaining"] for each in (fits, refused, smaller)] == ["2", "1", "0"]
    assert refused.json()["code"] == "throttled"
    assert refused.headers["Retry-After"] == refused.headers["RateLimit-Reset"]


def test_what_fails_keeps_none_of_the_others_from_an_answer(ask, kb, document):
    foreign = factories.make_kb()

    results = ask({"query": ""}, _query(foreign), _query(kb, overrides={"fusion": "magic"}), _query(kb)).json()[
        "results"
    ]

    assert [each["status"] for each in results] == [400, 404, 400, 200]
    for each in results[:3]:
        assert {"code", "detail", "remedy"} <= each["body"].keys()
    assert {"query", "knowledge_base_ids"} <= results[0]["body"]["fields"].keys()


def test_a_fault_in_one_is_told_without_its_insides(client, kb, document, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("insides")

    monkeypatch.setattr(view, "respond", fail)
    client.raise_request_exception = False

    [result] = client.post(URL, {"searches": [_query(kb)]}, format="json").json()["results"]

    assert (result["status"], result["body"]["code"]) == (500, "internal_error")
    assert "insides" not in str(result)


def test_what_has_not_begun_in_time_is_503(ask, kb, document, monkeypatch):
    monkeypatch.setattr(view, "BATCH_SECONDS", -1.0)

    results = ask(_query(kb), _query(kb)).json()["results"]

    assert [(each["status"], each["body"]["code"]) for each in results] == [(503, "batch_out_of_time")] * 2
    assert all(each["body"]["retry_after"] > 0 for each in results)


@pytest.mark.parametrize("searches", [[], [{}] * (MOST_SEARCHES + 1), ["a"], {}, None])
def test_none_or_too_many_searches_are_400(client, searches):
    response = client.post(URL, {"searches": searches}, format="json")

    assert response.status_code == 400
    assert any(path.startswith("searches") for path in response.json()["fields"])


def test_a_key_with_the_scope_read_suffices(client_with, owner, kb, document):
    _, secret = factories.make_api_key(owner, kb)

    response = client_with(secret).post(URL, {"searches": [_query(kb)]}, format="json")

    assert [each["status"] for each in response.json()["results"]] == [200]
