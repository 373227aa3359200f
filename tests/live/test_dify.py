"""What Dify's documentation says that Dify sends, sent to the web server as it is shipped."""

from datetime import timedelta

import pytest
import requests
from django.utils import timezone

from tests.live.processes import Server, running


@pytest.fixture(scope="module")
def endpoint(world):
    """What an operator enters as the API endpoint in Dify, which appends /retrieval."""
    server = Server(
        "gunicorn", "--config", "python:config.gunicorn", "--bind", "127.0.0.1:{port}", probe="/api/v1/health/"
    )
    with running(server):
        yield f"{server.url}/api/dify"


def retrieve(endpoint, secret, body, slash=""):
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {secret}"}
    return requests.post(f"{endpoint}/retrieval{slash}", headers=headers, json=body, timeout=60)


def probe(endpoint, secret):
    """How Dify checks an endpoint when it is set up: nothing but the header, and 403 and 404 tell it what is wrong."""
    return requests.post(f"{endpoint}/retrieval", headers={"Authorization": f"Bearer {secret}"}, timeout=60)


@pytest.fixture
def body(world):
    return {
        "retrieval_setting": {"top_k": 2, "score_threshold": 0.0},
        "query": "年假有几天？",
        "knowledge_id": str(world.kb.pk),
        "metadata_condition": None,
    }


def test_the_probe(endpoint, world):
    good, bad = probe(endpoint, world.secret), probe(endpoint, "no-such-key")

    assert (good.status_code, set(good.json())) == (400, {"error_code", "error_msg"})
    assert (bad.status_code, bad.json()["error_code"]) == (403, 1002)


def test_the_documented_call(endpoint, world, body):
    answer = retrieve(endpoint, world.secret, body)

    assert answer.status_code == 200
    first, second = answer.json()["records"]
    assert first["content"] == "工作满一年的员工每年享有五天带薪年假。"
    assert first["title"] == "休假制度"
    assert 1 >= first["score"] >= second["score"] >= 0
    assert first["metadata"]["document_id"] == str(world.document.pk)
    assert first["metadata"]["path"] == "leave.md"


def test_the_documented_call_in_english_with_a_slash(endpoint, world, body):
    english = {**body, "query": "How often may I work from home?", "knowledge_id": str(world.english.pk)}

    (record,) = retrieve(endpoint, world.secret, english, slash="/").json()["records"]

    assert record["content"] == "Employees may work from home on two days a week."


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ([{"name": ["category", "部门"], "comparison_operator": "contains", "value": "人事"}], 2),
        ([{"name": "year", "comparison_operator": "\u2039", "value": "2024"}], 0),
        ([{"name": "year", "comparison_operator": "≥", "value": 2024}], 2),
        ([{"name": "tags", "comparison_operator": "in", "value": ["人事"]}], 2),
    ],
)
def test_the_documented_conditions(endpoint, world, body, conditions, found):
    condition = {"logical_operator": "and", "conditions": conditions}

    assert len(retrieve(endpoint, world.secret, {**body, "metadata_condition": condition}).json()["records"]) == found


def test_top_k_null_and_a_threshold(endpoint, world, body):
    every = retrieve(endpoint, world.secret, {**body, "retrieval_setting": {"top_k": None, "score_threshold": 0.0}})
    none = retrieve(endpoint, world.secret, {**body, "retrieval_setting": {"top_k": 3, "score_threshold": 1.0}})

    assert len(every.json()["records"]) == 3
    assert none.json() == {"records": []}


def test_errors(endpoint, world, body):
    malformed = requests.post(f"{endpoint}/retrieval", headers={"Authorization": world.secret}, json=body, timeout=60)
    foreign = retrieve(endpoint, world.secret, {**body, "knowledge_id": str(world.foreign.pk)})
    unknown = retrieve(endpoint, world.secret, {**body, "knowledge_id": "AAA-BBB-CCC"})
    invalid = retrieve(endpoint, world.secret, {**body, "retrieval_setting": {"top_k": "two"}})

    assert (malformed.status_code, malformed.json()["error_code"]) == (403, 1001)
    assert (foreign.status_code, foreign.json()["error_code"]) == (404, 2001)
    assert (unknown.status_code, unknown.json()["error_code"]) == (404, 2001)
    assert (invalid.status_code, invalid.json()["error_code"]) == (400, 400)


def test_keys_that_were_revoked_or_have_expired_or_are_bound_elsewhere(endpoint, world, body, new_key, revoke):
    key, secret = new_key()
    assert retrieve(endpoint, secret, body).status_code == 200
    revoke(key)
    expired = new_key(expiry_date=timezone.now() - timedelta(seconds=1))[1]
    bound = new_key(world.english)[1]

    assert [retrieve(endpoint, each, body).status_code for each in (secret, expired, bound)] == [403, 403, 404]
