from datetime import timedelta

import pytest
from django.utils import timezone

from kb.models import AuditEntry
from tests import factories

pytestmark = pytest.mark.django_db

URL = "/api/v1/audit/"


@pytest.fixture
def renamed(client, kb, document):
    AuditEntry.objects.all().delete()
    client.patch(f"/api/v1/documents/{document.pk}/", {"title": "New"}, format="json")
    client.patch(f"/api/v1/knowledge-bases/{kb.pk}/", {"description": "new"}, format="json")
    return document


def rows(client, **query):
    response = client.get(URL, query)
    assert response.status_code == 200, response.content
    return response.json()["results"]


def test_an_entry_says_who_changed_what(client, kb, owner, renamed):
    newest, oldest = rows(client)

    assert newest["object_type"] == "knowledge_base"
    expected = {
        "user_id": owner.pk,
        "username": "owner",
        "how": "api",
        "knowledge_base_id": kb.pk,
        "knowledge_base_name": "handbook",
        "action": "update",
        "object_id": str(renamed.pk),
        "object_name": "New",
        "changes": {"title": ["员工手册", "New"]},
    }
    assert {name: oldest[name] for name in expected} == expected
    assert client.get(f"{URL}{oldest['id']}/").json() == oldest


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"object_type": "document"}, 1),
        ({"username": "owner", "how": "api", "action": "update"}, 2),
        ({"username": "nobody"}, 0),
        ({"action": "delete"}, 0),
        ({"since": (timezone.now() + timedelta(days=1)).isoformat()}, 0),
        ({"until": (timezone.now() + timedelta(days=1)).isoformat()}, 2),
        ({"knowledge_base_id": 987654321}, 0),
        ({"page_size": 1}, 1),
    ],
)
def test_entries_are_filtered(client, renamed, query, found):
    assert len(rows(client, **query)) == found


@pytest.mark.parametrize("query", [{"how": "x"}, {"action": "x"}, {"since": "yesterday"}, {"knowledge_base_id": "x"}])
def test_a_filter_that_is_none_is_refused(client, query):
    assert client.get(URL, query).status_code == 400


def test_nobody_sees_entries_of_others(client_of, kb, renamed):
    for role in ("viewer", "editor"):
        seen = rows(client_of(factories.make_member(kb, role)))
        assert not [row for row in seen if row["knowledge_base_id"] == kb.pk]
    assert rows(client_of(factories.make_user())) == []
    assert len(rows(client_of(factories.make_member(kb, "owner")), username="owner", object_type="document")) == 1


def test_a_bound_key_sees_entries_of_its_knowledge_bases_only(client_with, owner, renamed):
    _, secret = factories.make_api_key(owner, factories.make_kb(owner))

    assert not [row for row in rows(client_with(secret)) if row["object_type"] == "document"]
