import json

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from kb.models import KnowledgeBase, Membership, RetrievalProfile
from kb.profiles.services import BUILT_IN, create_version, publish
from tests import factories

pytestmark = pytest.mark.django_db

URL = "/api/v1/profiles/"


@pytest.fixture
def superuser(client_of):
    return client_of(factories.make_user("root", superuser=True))


@pytest.fixture
def tuned(kb, owner):
    """A published version of the knowledge base's own, which it searches by."""
    who = factories.principal(owner)
    profile = create_version(who, "tuned", {"top_k": 1}, knowledge_base=kb)
    publish(who, profile, adopt=True)
    return profile


def create(client, **fields):
    return client.post(URL, fields, format="json")


def version_url(version, *action, name="tuned"):
    return "/".join((f"{URL}{name}/versions/{version}", *action, ""))


# -- Lists ---------------------------------------------------------------------------------------------------------------
def test_lists_shared_profiles_and_those_of_the_callers_knowledge_bases(client, kb, tuned):
    create(client, name="tuned", settings={"top_k": 2})
    other = factories.make_kb()
    create_version(factories.principal(other.owner), "foreign", {}, knowledge_base=other)

    body = client.get(URL).json()

    rows = {row["name"]: row for row in body["results"]}
    assert rows.keys() == {*BUILT_IN, "tuned"}
    assert len(body["results"]) == len(rows)
    assert rows["tuned"] == {
        "name": "tuned",
        "knowledge_base_id": kb.pk,
        "published_version": 1,
        "newest_version": 2,
        "version_count": 2,
        "used_by": [{"id": kb.pk, "name": "handbook"}],
        "used_elsewhere": 0,
    }


def test_other_knowledge_bases_that_use_a_profile_are_only_counted(client, kb):
    factories.make_kb()

    rows = {row["name"]: row for row in client.get(URL).json()["results"]}

    assert rows["keyword-led"]["used_by"] == [{"id": kb.pk, "name": "handbook"}]
    assert rows["keyword-led"]["used_elsewhere"] == 1


def test_the_list_takes_as_many_queries_for_many_profiles(client, kb):
    def queries():
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert client.get(URL).status_code == 200
        return len(captured)

    few = queries()
    for number in range(5):
        create(client, name=f"mine {number}", knowledge_base_id=kb.pk)

    assert queries() == few < 10


def test_lists_the_versions_newest_first(client, tuned):
    create(client, name="tuned", settings={"top_k": 2}, description="wider")

    body = client.get(f"{URL}tuned/versions/").json()

    assert [(row["version"], row["state"], row["settings"]) for row in body["results"]] == [
        (2, "draft", {"top_k": 2}),
        (1, "published", {"top_k": 1}),
    ]
    assert (body["results"][0]["description"], body["results"][0]["created_by"]) == ("wider", "owner")


# -- Saving --------------------------------------------------------------------------------------------------------------
def test_a_new_profile_of_a_knowledge_base_is_a_draft(client, kb):
    response = create(client, name="mine", settings={"fusion": "weighted"}, knowledge_base_id=kb.pk)

    assert response.status_code == 201
    body = response.json()
    assert (body["name"], body["version"], body["state"], body["knowledge_base_id"]) == ("mine", 1, "draft", kb.pk)
    assert RetrievalProfile.objects.get(name="mine").settings == {"fusion": "weighted"}


def test_a_further_version_needs_no_knowledge_base(client, kb, tuned):
    body = create(client, name="tuned", settings={}).json()

    assert (body["version"], body["knowledge_base_id"]) == (2, kb.pk)


def test_a_superuser_makes_shared_ones(superuser):
    assert create(superuser, name="ours", knowledge_base_id=None).json()["knowledge_base_id"] is None


def test_others_make_no_shared_ones(client):
    response = create(client, name="ours")

    assert (response.status_code, response.json()["code"]) == (403, "permission_denied")


def test_a_viewer_makes_none(client_of, kb):
    viewer = client_of(factories.make_member(kb, Membership.Role.VIEWER))

    assert create(viewer, name="mine", knowledge_base_id=kb.pk).status_code == 403


def test_a_knowledge_base_that_the_caller_may_not_see_is_404(client):
    assert create(client, name="mine", knowledge_base_id=factories.make_kb().pk).status_code == 404


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "name"),
        ({"name": " "}, "name"),
        ({"name": "x" * 81}, "name"),
        ({"name": "mine", "settings": []}, "settings"),
        ({"name": "mine", "settings": {"topk": 1}}, "settings.topk"),
        ({"name": "mine", "settings": {"top_k": 0}}, "settings.top_k"),
        ({"name": "mine", "settings": {"rerankers": ["best"]}}, "settings.rerankers"),
        ({"name": "mine", "knowledge_base_id": "1"}, "knowledge_base_id"),
        ({"name": "mine", "publish": True}, "publish"),
    ],
)
def test_a_field_at_fault_is_named(client, fields, field):
    response = create(client, **fields)

    assert (response.status_code, list(response.json()["fields"])) == (400, [field])


@pytest.mark.parametrize(("name", "code"), [("a/b", "profile_name_invalid"), ("default", "profile_name_taken")])
def test_a_name_that_cannot_be_taken_is_400(client, kb, name, code):
    response = create(client, name=name, knowledge_base_id=kb.pk)

    assert (response.status_code, response.json()["code"]) == (400, code)


@pytest.mark.parametrize("place", ["own", None, "left out"])
def test_a_name_that_a_stranger_uses_is_like_a_free_one(client, kb, place):
    theirs = factories.make_kb()
    create_version(factories.principal(theirs.owner), "secret", {"top_k": 1}, knowledge_base=theirs)
    fields = {} if place == "left out" else {"knowledge_base_id": kb.pk if place else None}

    def told(name):
        response = create(client, name=name, **fields)
        without_time = {key: value for key, value in response.json().items() if key not in {"created_at", "request_id"}}
        return response.status_code, json.dumps(without_time).replace(name, "NAME")

    assert told("secret") == told("free")
    assert create(client, name="secret", knowledge_base_id=kb.pk).json()["name"] == "secret"


@pytest.fixture
def namesakes(kb, owner):
    """Profiles of one name of two knowledge bases of the same owner."""
    other, who = factories.make_kb(owner, "other"), factories.principal(owner)
    create_version(who, "same", {"top_k": 1}, knowledge_base=kb)
    create_version(who, "same", {"top_k": 2}, knowledge_base=other)
    return other


def test_profiles_of_one_name_are_listed_each(client, kb, namesakes):
    rows = client.get(URL, {"q": "same"}).json()["results"]

    assert sorted(row["knowledge_base_id"] for row in rows) == sorted([kb.pk, namesakes.pk])


def test_a_name_of_two_is_400_and_is_exact_with_the_id_of_the_knowledge_base(client, kb, namesakes):
    for address in (version_url(1, name="same"), f"{URL}same/versions/"):
        refused = client.get(address)
        assert (refused.status_code, refused.json()["code"]) == (400, "profile_ambiguous")
        assert f"{kb.pk}/same" in refused.json()["detail"]
    refused = create(client, name="same").json()
    assert (refused["code"], [*refused["fields"]]) == ("profile_place_ambiguous", ["knowledge_base_id"])

    name = f"{namesakes.pk}/same"
    assert client.get(version_url(1, name=name)).json()["settings"] == {"top_k": 2}
    assert len(client.get(f"{URL}{name}/versions/").json()["results"]) == 1
    assert client.post(version_url(1, "publish", name=name), {}, format="json").status_code == 200
    assert RetrievalProfile.objects.get(published=True, name="same").knowledge_base == namesakes
    against = client.get(version_url(1, "diff", name=f"{kb.pk}/same"), {"against": f"{name}@1"}).json()
    assert [(each["name"], each["before"], each["after"]) for each in against["differences"]] == [("top_k", 2, 1)]


def test_a_search_of_both_names_one_exactly(client, kb, document, namesakes):
    body = {"query": "年假", "knowledge_base_ids": [kb.pk, namesakes.pk], "profile": "same"}
    refused = client.post("/api/v1/search/", body, format="json")
    assert (refused.status_code, refused.json()["code"], [*refused.json()["fields"]]) == (
        400,
        "profile_ambiguous",
        ["profile"],
    )

    for fields in ({"profile": f"{kb.pk}/same"}, {"knowledge_base_ids": [kb.pk]}):
        found = client.post("/api/v1/search/", body | fields, format="json")
        assert (found.status_code, len(found.json()["results"])) == (200, 1)


# -- One version ---------------------------------------------------------------------------------------------------------
def test_a_version_tells_what_it_sets_and_what_comes_of_it(client, tuned):
    body = client.get(version_url(1)).json()

    assert (body["state"], body["settings"]) == ("published", {"top_k": 1})
    assert (body["configuration"]["top_k"], body["configuration"]["rrf_k"]) == (1, 60)


@pytest.mark.parametrize("name", ["a%00b", "nobodys", "a%2Fb"])
def test_a_profile_that_is_not_there_is_404(client, name):
    assert client.get(version_url(1, name=name)).status_code == 404
    assert client.get(f"{URL}{name}/versions/").status_code == 404


def test_a_draft_is_deleted_and_a_published_version_is_not(client, tuned):
    create(client, name="tuned", settings={"top_k": 2})

    assert client.delete(version_url(2)).status_code == 204
    refused = client.delete(version_url(1))

    assert (refused.status_code, refused.json()["code"]) == (400, "profile_in_use")
    assert list(RetrievalProfile.objects.filter(name="tuned")) == [tuned]


def test_publishing_moves_the_knowledge_bases_and_is_undone_by_publishing_the_one_before(client, kb, tuned):
    create(client, name="tuned", settings={"top_k": 2})

    published = client.post(version_url(2, "publish"), {}, format="json").json()

    assert (published["state"], published["moved"]) == ("published", 1)
    assert KnowledgeBase.objects.get(pk=kb.pk).profile.version == 2
    assert client.post(version_url(1, "publish")).json()["moved"] == 1
    assert client.get(version_url(2)).json()["state"] == "earlier"


def test_a_knowledge_base_adopts_its_own_profile(client, kb):
    create(client, name="tuned", knowledge_base_id=kb.pk)

    assert client.post(version_url(1, "publish"), {"adopt": True}, format="json").json()["moved"] == 1
    assert KnowledgeBase.objects.get(pk=kb.pk).profile.name == "tuned"


# -- Differences ---------------------------------------------------------------------------------------------------------
def test_two_versions_are_compared(client, tuned):
    create(client, name="tuned", settings={"top_k": 2})

    body = client.get(version_url(2, "diff"), {"against": "tuned@1"}).json()

    assert body == {
        "before": {"name": "tuned", "version": 1},
        "after": {"name": "tuned", "version": 2},
        "differences": [{"name": "top_k", "before": 1, "after": 2}],
    }


def test_a_version_is_compared_with_the_environment(client, tuned):
    body = client.get(version_url(1, "diff")).json()

    assert (body["before"], body["differences"]) == (None, [{"name": "top_k", "before": 5, "after": 1}])


@pytest.mark.parametrize(("against", "status"), [("tuned@x", 400), ("tuned@9", 404), ("nobodys", 404), ("a\0b", 404)])
def test_what_it_is_compared_with_must_be_there(client, tuned, against, status):
    assert client.get(version_url(1, "diff"), {"against": against}).status_code == status


# -- Searching and asking by a version -----------------------------------------------------------------------------------
def searched(client, kb, path="search", **fields):
    body = {"query": "年假", "knowledge_base_ids": [kb.pk], **fields}
    return client.post(f"/api/v1/{path}/", body, format="json")


@pytest.mark.parametrize("path", ["search", "ask"])
def test_a_draft_answers_where_its_version_is_named_and_the_response_says_so(client, kb, document, tuned, path):
    create(client, name="tuned", settings={"top_k": 2})

    profiles = [
        searched(client, kb, path, **fields).json()["profile"]
        for fields in ({}, {"profile": "tuned"}, {"profile": "tuned", "profile_version": 2})
    ]

    assert [profile["version"] for profile in profiles] == [1, 1, 2]
    assert {profile["name"] for profile in profiles} == {"tuned"}


@pytest.mark.parametrize("path", ["search", "ask"])
def test_a_version_without_a_profile_is_400(client, kb, path):
    response = searched(client, kb, path, profile_version=1)

    assert (response.status_code, list(response.json()["fields"])) == (400, ["profile_version"])


@pytest.mark.parametrize("path", ["search", "ask"])
def test_a_version_that_is_not_there_is_404(client, kb, path):
    response = searched(client, kb, path, profile="default", profile_version=9)

    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert "no version 9" in response.json()["detail"]


def test_the_api_answers_by_a_version_as_soon_as_it_is_published(client, kb, document, tuned):
    create(client, name="tuned", settings={"top_k": 2})
    before = searched(client, kb).json()

    client.post(version_url(2, "publish"))
    after = searched(client, kb).json()

    assert (before["profile"]["version"], after["profile"]["version"], after["cached"]) == (1, 2, False)
