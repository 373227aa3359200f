import uuid

import pytest

from kb.models import FailedQuery, SearchLog
from tests.factories import make_api_key, make_user

FOUND = {"query": "年假", "top_k": 3}


@pytest.fixture
def trace_id(client, document):
    body = {**FOUND, "knowledge_base_ids": [document.knowledge_base_id]}
    return client.post("/api/v1/search/", body, format="json").json()["trace_id"]


def say(client, trace_id, value):
    return client.post(f"/api/v1/traces/{trace_id}/feedback/", {"value": value}, format="json")


@pytest.mark.parametrize("value", [1, -1, None])
def test_what_is_said_is_kept(client, trace_id, value):
    response = say(client, trace_id, value)

    assert (response.status_code, response.json()) == (200, {"value": value})
    assert SearchLog.objects.get(pk=trace_id).feedback == value


def test_what_was_of_no_help_is_a_failed_query(client, trace_id):
    say(client, trace_id, -1)

    assert FailedQuery.objects.get().reasons == {"disliked": 1}


@pytest.mark.parametrize("body", [{}, {"value": 2}, {"value": "1"}, {"value": True}, {"value": 0.5}, {"thumb": 1}, []])
def test_anything_else_is_refused(client, trace_id, body):
    response = client.post(f"/api/v1/traces/{trace_id}/feedback/", body, format="json")

    assert response.status_code == 400
    assert SearchLog.objects.get(pk=trace_id).feedback is None


def test_a_key_that_may_read_may_say_so(client_with, owner, trace_id):
    _, secret = make_api_key(owner)

    assert say(client_with(secret), trace_id, 1).status_code == 200


def test_a_search_that_is_out_of_sight_is_not_there(client, client_of, trace_id):
    assert say(client_of(make_user()), trace_id, -1).status_code == 404
    assert say(client, uuid.uuid4(), -1).status_code == 404
    assert not FailedQuery.objects.exists()


def test_a_session_needs_the_token_against_forgery(owner, trace_id):
    from rest_framework.test import APIClient

    client = APIClient(enforce_csrf_checks=True)
    client.force_login(owner)

    assert say(client, trace_id, 1).status_code == 403
