"""Roles of groups over the API: for owners to see and lower, for superusers to give."""

import pytest

from kb.models import GroupMembership
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def url(kb):
    return f"/api/v1/knowledge-bases/{kb.pk}/groups/"


@pytest.fixture
def root(client_of):
    return client_of(factories.make_user("root", superuser=True))


def test_a_superuser_gives_a_role_to_a_group_that_nobody_was_in_yet(root, client_of, kb, url):
    answer = root.post(url, {"name": "engineering", "role": "editor"}, format="json")

    assert answer.status_code == 201
    assert {**answer.json(), "group_id": 0} == {"group_id": 0, "name": "engineering", "role": "editor", "user_count": 0}
    ann = factories.make_user("ann")
    ann.groups.add(answer.json()["group_id"])
    answer = client_of(ann).get(f"/api/v1/knowledge-bases/{kb.pk}/")
    assert (answer.status_code, answer.json()["role"]) == (200, "editor")
    assert root.get(url).json()[0]["user_count"] == 1


def test_an_owner_sees_lowers_and_removes_and_gives_nothing(client, kb, url):
    group = factories.make_group(kb, "editor", name="engineering")

    assert [row["name"] for row in client.get(url).json()] == ["engineering"]
    assert client.post(url, {"name": "sales"}, format="json").status_code == 403
    assert client.patch(f"{url}{group.pk}/", {"role": "owner"}, format="json").status_code == 403
    assert client.patch(f"{url}{group.pk}/", {"role": "viewer"}, format="json").json()["role"] == "viewer"
    assert client.delete(f"{url}{group.pk}/").status_code == 204
    assert not GroupMembership.objects.exists()
    assert client.get(f"{url}{group.pk}/").status_code == 404


def test_a_group_has_one_role(root, kb, url):
    factories.make_group(kb, "editor", name="engineering")

    answer = root.post(url, {"name": "engineering"}, format="json")

    assert (answer.status_code, answer.json()["code"]) == (409, "already_member")


@pytest.mark.parametrize("role", ["viewer", "editor"])
def test_others_than_owners_learn_of_no_group(client_of, kb, url, role):
    group = factories.make_group(kb, "editor", name="engineering")
    member = client_of(factories.make_member(kb, role))

    for answer in (
        member.get(url),
        member.get(f"{url}{group.pk}/"),
        member.patch(f"{url}{group.pk}/", {"role": "owner"}, format="json"),
        member.delete(f"{url}{group.pk}/"),
    ):
        assert answer.status_code == 403
        assert "engineering" not in answer.content.decode()


def test_who_owns_by_a_group_shares_and_invites(client_of, kb, url):
    ann = factories.make_user("ann")
    factories.make_user("bo")
    factories.make_group(kb, "owner", ann)
    anns = client_of(ann)

    answer = anns.post(f"/api/v1/knowledge-bases/{kb.pk}/members/", {"username": "bo"}, format="json")

    assert answer.status_code == 201
    assert answer.json()["is_pending"]
    from kb.models import Invitation

    assert Invitation.objects.open().count() == 1
    ann.groups.clear()
    assert Invitation.objects.open().count() == 0
