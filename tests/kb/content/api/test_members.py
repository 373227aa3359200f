import pytest
from rest_framework.test import APIClient

from kb.access.services.sharing import member_add, member_change, member_remove, ownership_transfer
from kb.base.errors import NotAllowed, NotVisible
from kb.models import Invitation, KnowledgeBase, Membership
from tests import factories

pytestmark = pytest.mark.django_db

Role = Membership.Role


@pytest.fixture
def url(kb):
    return f"/api/v1/knowledge-bases/{kb.pk}/members/"


def add(client, url, username, role="viewer"):
    return client.post(url, {"username": username, "role": role}, format="json")


def test_the_owner_comes_first_and_then_the_members_by_name(client, kb, url, owner):
    factories.make_member(kb, Role.EDITOR, factories.make_user("zoe"))
    factories.make_member(kb, Role.VIEWER, factories.make_user("ann"))

    rows = client.get(url).json()

    assert [(row["username"], row["role"], row["is_primary"]) for row in rows] == [
        ("owner", "owner", True),
        ("ann", "viewer", False),
        ("zoe", "editor", False),
    ]


def test_a_new_member_may_do_what_the_role_says_once_they_accept(client, client_of, kb, url):
    ann = factories.make_user("ann")
    anns = client_of(ann)

    response = add(client, url, "ann", "editor")

    assert (response.status_code, response.json()["user_id"]) == (201, ann.pk)
    assert response.json()["is_pending"]
    assert anns.get(f"/api/v1/knowledge-bases/{kb.pk}/").status_code == 404
    (invitation,) = anns.get("/api/v1/invitations/").json()["results"]
    assert {**invitation, "id": 0, "created_at": ""} == {
        "id": 0,
        "knowledge_base_name": kb.name,
        "invited_by": "owner",
        "role": "editor",
        "transfers": False,
        "created_at": "",
    }
    accepted = anns.post(f"/api/v1/invitations/{invitation['id']}/accept/")
    assert accepted.json() == {"knowledge_base_id": kb.pk, "knowledge_base_name": kb.name}
    change = anns.patch(f"/api/v1/knowledge-bases/{kb.pk}/", {"description": "new"}, format="json")
    assert change.status_code == 200


def test_an_invitation_is_declined_and_not_made_again(client, client_of, kb, url):
    anns = client_of(factories.make_user("ann"))
    add(client, url, "ann")
    invitation = Invitation.objects.get()

    assert anns.post(f"/api/v1/invitations/{invitation.pk}/decline/").status_code == 204
    assert anns.get("/api/v1/invitations/").json()["results"] == []
    again = add(client, url, "ann")
    assert (again.status_code, again.json()["code"]) == (409, "declined_lately")
    assert [row["username"] for row in client.get(url).json()] == ["owner"]


def test_an_invitation_shows_among_the_members_and_is_withdrawn_there(client, client_of, url):
    ann = factories.make_user("ann")
    add(client, url, "ann")

    assert [(row["username"], row["is_pending"]) for row in client.get(url).json()] == [("owner", False), ("ann", True)]
    assert client.patch(f"{url}{ann.pk}/", {"role": "editor"}, format="json").json()["code"] == "not_accepted"
    assert client.delete(f"{url}{ann.pk}/").status_code == 204
    assert client_of(ann).get("/api/v1/invitations/").json()["results"] == []


def test_a_key_that_may_only_read_or_is_bound_answers_no_invitation(client, kb, url):
    ann = factories.make_user("ann")
    add(client, url, "ann")
    accept = f"/api/v1/invitations/{Invitation.objects.get().pk}/accept/"

    for fields, code in (({"scope": "read"}, 403), ({"scope": "write", "bound_to": kb}, 404)):
        bound_to = fields.pop("bound_to", None)
        _key, secret = factories.make_api_key(ann, *([bound_to] if bound_to else []), **fields)
        assert APIClient(headers={"Authorization": f"Bearer {secret}"}).post(accept).status_code == code


def test_a_member_leaves_and_the_owner_is_told_what_to_do(client, client_of, kb):
    anns = client_of(factories.make_member(kb))
    leave = f"/api/v1/knowledge-bases/{kb.pk}/leave/"

    assert anns.post(leave).status_code == 204
    assert anns.post(leave).status_code == 404
    refused = client.post(leave)
    assert (refused.status_code, refused.json()["code"]) == (409, "last_owner")
    assert "hand the knowledge base over" in refused.json()["detail"]


def test_a_role_is_changed_and_a_member_removed(client, client_of, kb, url):
    ann = factories.make_member(kb, Role.EDITOR)

    assert client.patch(f"{url}{ann.pk}/", {"role": "viewer"}, format="json").json()["role"] == "viewer"
    assert client.delete(f"{url}{ann.pk}/").status_code == 204
    assert client_of(ann).get(f"/api/v1/knowledge-bases/{kb.pk}/").status_code == 404


def test_an_unknown_name_and_an_inactive_account_get_the_same_answer(client, url):
    gone = factories.make_user("gone")
    gone.is_active = False
    gone.save()

    answers = [add(client, url, name) for name in ("gone", "nobody", "nul\0")]

    assert [each.status_code for each in answers[:2]] == [400, 400]
    assert answers[0].content == answers[1].content
    assert answers[0].json()["code"] == "unknown_user"


def test_who_is_no_owner_learns_of_no_name(client_of, kb, url):
    editor = client_of(factories.make_member(kb, Role.EDITOR))

    assert add(editor, url, "owner").content == add(editor, url, "nobody").content
    assert add(editor, url, "owner").status_code == 403


def test_a_member_is_not_added_twice(client, kb, url):
    factories.make_member(kb, user=factories.make_user("ann"))

    assert [add(client, url, name).status_code for name in ("ann", "owner")] == [409, 409]


def test_the_primary_owner_neither_leaves_nor_steps_back(client, url, owner):
    assert client.delete(f"{url}{owner.pk}/").json()["code"] == "last_owner"
    assert client.patch(f"{url}{owner.pk}/", {"role": "viewer"}, format="json").status_code == 409
    assert client.patch(f"{url}{owner.pk}/", {"role": "owner"}, format="json").status_code == 200


def test_the_last_owner_with_an_active_account_stays(client_of, kb, url, owner):
    other = factories.make_member(kb, Role.OWNER)
    owner.is_active = False
    owner.save()
    client = client_of(other)

    assert client.delete(f"{url}{other.pk}/").status_code == 409
    assert client.patch(f"{url}{other.pk}/", {"role": "editor"}, format="json").status_code == 409
    another = factories.make_member(kb, Role.OWNER)
    assert client.delete(f"{url}{another.pk}/").status_code == 204


def test_a_knowledge_base_is_handed_over_once_it_is_accepted(client, client_of, kb, owner):
    ann = factories.make_member(kb, Role.VIEWER, factories.make_user("ann"))
    url = f"/api/v1/knowledge-bases/{kb.pk}/owner/"

    response = client.put(url, {"username": "ann"}, format="json")

    assert response.status_code == 202
    assert response.json() == {
        "user_id": ann.pk,
        "username": "ann",
        "role": "viewer",
        "is_primary": False,
        "is_pending": False,
        "is_offered": True,
    }
    assert client.delete(url).status_code == 204
    assert client.delete(url).status_code == 404
    client.put(url, {"username": "ann"}, format="json")
    client_of(ann).post(f"/api/v1/invitations/{Invitation.objects.get().pk}/accept/")
    assert KnowledgeBase.objects.get().owner == ann
    assert list(Membership.objects.values_list("user", "role")) == [(owner.pk, "owner")]


def test_it_is_not_accepted_by_one_who_has_another_of_its_name(client, client_of, kb, owner):
    ann = factories.make_user("ann")
    factories.make_kb(ann, kb.name)
    client.put(f"/api/v1/knowledge-bases/{kb.pk}/owner/", {"username": "ann"}, format="json")

    response = client_of(ann).post(f"/api/v1/invitations/{Invitation.objects.get().pk}/accept/")

    assert (response.status_code, response.json()["code"]) == (400, "name_taken")
    assert KnowledgeBase.objects.get(pk=kb.pk).owner == owner
    assert not Membership.objects.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda kb, by: member_add(kb=kb, by=by, username="friend"),
        lambda kb, by: member_change(kb=kb, by=by, user_id=by.user.pk, role=Role.VIEWER),
        lambda kb, by: member_remove(kb=kb, by=by, user_id=by.user.pk),
        lambda kb, by: ownership_transfer(kb=kb, by=by, username="friend"),
    ],
    ids=["add", "change", "remove", "transfer"],
)
def test_who_was_an_owner_when_the_request_came_and_is_none_under_the_lock_changes_nothing(kb, change):
    factories.make_user("friend")
    by = factories.principal(factories.make_member(kb, Role.OWNER))
    Membership.objects.update(role=Role.EDITOR)

    with pytest.raises(NotAllowed):
        change(kb, by)
    Membership.objects.all().delete()
    with pytest.raises(NotVisible):
        change(kb, by)


def test_it_is_not_handed_over_to_its_owner(client, kb):
    response = client.put(f"/api/v1/knowledge-bases/{kb.pk}/owner/", {"username": "owner"}, format="json")

    assert response.status_code == 409


READ, CHANGE, MANAGE = "read", "change", "manage"
ROUTES = [
    (READ, "get", "", None),
    (READ, "get", "documents/", None),
    (CHANGE, "patch", "", {"description": "new"}),
    (CHANGE, "post", "documents/", {"title": "t", "text": "some text"}),
    (MANAGE, "get", "members/", None),
    (MANAGE, "post", "members/", {"username": "guest"}),
    (MANAGE, "patch", "members/{guest}/", {"role": "viewer"}),
    (MANAGE, "delete", "members/{guest}/", None),
    (MANAGE, "put", "owner/", {"username": "guest"}),
    (MANAGE, "delete", "", None),
]
MAY = {"viewer": {READ}, "editor": {READ, CHANGE}, "owner": {READ, CHANGE, MANAGE}, "superuser": {READ, CHANGE, MANAGE}}


@pytest.mark.parametrize("role", [*MAY, "stranger"])
@pytest.mark.parametrize(("right", "method", "path", "body"), ROUTES)
def test_each_role_may_do_what_the_readme_says(client_of, kb, role, right, method, path, body):
    guest = factories.make_user("guest")
    if "{guest}" in path:
        factories.make_member(kb, Role.EDITOR, guest)
    client = client_of(_caller(kb, role))

    response = getattr(client, method)(
        f"/api/v1/knowledge-bases/{kb.pk}/{path.format(guest=guest.pk)}", body, **({"format": "json"} if body else {})
    )

    if role == "stranger":
        assert response.status_code == 404
    else:
        assert (response.status_code < 300) is (right in MAY[role]), response.content
        assert response.status_code in {200, 201, 202, 204, 403}


GRANTS = {"visible_to": READ, "editable_by": CHANGE, "owned_by": MANAGE, "managed_by": MANAGE}


@pytest.mark.parametrize("role", [*MAY, "stranger"])
@pytest.mark.parametrize("grant", GRANTS)
def test_each_role_has_the_same_rights_where_services_look(kb, role, grant):
    rows = getattr(KnowledgeBase.objects, grant)(factories.principal(_caller(kb, role)))

    assert rows.exists() is (GRANTS[grant] in MAY.get(role, set()))


@pytest.mark.parametrize("grant", GRANTS)
def test_a_key_that_reads_may_look_at_what_its_user_may_and_change_nothing(kb, owner, grant):
    rows = getattr(KnowledgeBase.objects, grant)(factories.principal(owner, can_write=False))

    assert rows.exists() is (grant in {"visible_to", "managed_by"})


def _caller(kb, role):
    if role == "superuser":
        return factories.make_user(superuser=True)
    return factories.make_user() if role == "stranger" else factories.make_member(kb, role)
