import pytest
from django.urls import reverse
from django.utils.translation import override

from kb.models import RetrievalProfile, SearchLog
from kb.profiles.admin import choices
from kb.profiles.admin.choices import as_field_choices
from kb.profiles.services import create_version, publish
from tests.factories import make_kb, make_member, make_user, principal
from tests.kb.quality.debug.admin.debug_page import Page

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(db):
    return principal(make_user("root", superuser=True))


@pytest.fixture
def travel(admin):
    """Four versions: an earlier one, a published one, and two drafts."""
    first = create_version(admin, "travel", {"top_k": 1})
    publish(admin, first)
    second = create_version(admin, "travel", {"top_k": 2})
    publish(admin, second)
    create_version(admin, "travel", {"top_k": 3})
    return create_version(admin, "travel", {"top_k": 4})


def offered(who, name, asked=""):
    with override("en"):
        found = choices.profile_choices(who, asked)
        return {choice.value: choice.label for choice in found if choice.profile.name == name}


def test_the_name_stands_for_the_published_version_and_the_others_are_named_by_their_number(admin, travel):
    assert offered(admin, "travel") == {
        "travel": "travel v2 (published)",
        "travel@4": "travel v4 (draft)",
        "travel@3": "travel v3 (draft)",
        "travel@1": "travel v1 (earlier version)",
    }


def test_where_none_is_published_the_name_stands_for_the_newest(admin):
    create_version(admin, "new", {})
    create_version(admin, "new", {"top_k": 2})

    assert offered(admin, "new") == {"new": "new v2 (draft)", "new@1": "new v1 (draft)"}


@pytest.mark.parametrize("asked", ["travel@1", "travel@2"], ids=["too old", "live"])
def test_a_version_that_is_asked_for_is_offered_however_old(admin, travel, monkeypatch, asked):
    monkeypatch.setattr(choices, "VERSIONS_OFFERED", 2)

    assert asked not in offered(admin, "travel")
    assert asked in offered(admin, "travel", asked)


@pytest.mark.parametrize("asked", ["travel@9", "travel@", "travel@x", "@1", "travel@99999999999999", "\0@1"])
def test_what_names_no_version_is_not_offered(admin, travel, asked):
    assert asked not in offered(admin, "travel", asked)


def test_the_profile_of_a_closed_knowledge_base_is_not_offered(admin, curator):
    closed, own = make_kb(), make_kb(curator, "Open")
    create_version(admin, "closed", {}, knowledge_base=closed)
    create_version(admin, "own", {}, knowledge_base=own)
    member = principal(make_member(own))

    assert not offered(member, "closed", "closed@1")
    assert offered(member, "own")


def test_versions_of_one_name_stand_together_and_say_whose_profile_it_is(admin, travel, curator):
    create_version(admin, "own", {}, knowledge_base=make_kb(curator, "Open"))

    with override("en"):
        grouped = dict(as_field_choices(choices.profile_choices(admin)))

    assert [value for value, _label in grouped["travel"]] == ["travel", "travel@4", "travel@3", "travel@1"]
    assert grouped["own, of “Open”"] == [("own", "own v1 (draft)")]
    assert grouped["default"] == "default v1 (published)"


def test_a_draft_that_is_chosen_answers_and_is_what_empty_settings_inherit(open_debug, handbook, travel):
    page = Page(open_debug(kb=handbook.pk, q="flight", profile="travel@4"))

    log = SearchLog.objects.get()
    assert (log.profile, log.profile_version, log.configuration["top_k"]) == ("travel", 4, 4)
    assert log.trace["request"]["profile_version"] == 4
    assert page.placeholder("top_k") == "4"
    assert page.chosen("profile") == "travel@4"
    assert page.text("profile") == "travel v4"
    assert "draft" in page.text("summary")


def test_the_name_alone_follows_what_is_published(open_debug, admin, handbook, travel):
    open_debug(kb=handbook.pk, q="flight", profile="travel")
    publish(admin, travel)
    open_debug(kb=handbook.pk, q="flight", profile="travel")

    assert list(SearchLog.objects.order_by("created_at").values_list("profile_version", flat=True)) == [2, 4]


def test_the_page_links_to_the_version_that_answered(open_debug, handbook):
    page = Page(open_debug(kb=handbook.pk, q="flight", profile="balanced"))

    profile = RetrievalProfile.objects.get(name="balanced")
    assert page.tree.xpath("//*[@data-testid='profile']//a/@href") == [
        reverse("admin:kb_retrievalprofile_change", args=[profile.pk])
    ]


@pytest.fixture
def namesakes():
    """Two knowledge bases of one owner, each with a profile of the same name."""
    owner = make_user()
    bases = [make_kb(owner, name) for name in ("a", "b")]
    for kb in bases:
        create_version(principal(owner), "same", {"top_k": 1}, knowledge_base=kb)
        create_version(principal(owner), "same", {"top_k": 2}, knowledge_base=kb)
    return bases


def test_profiles_of_one_name_are_offered_with_the_ids_of_their_knowledge_bases(namesakes):
    first, second = namesakes
    found = choices.profile_choices(principal(first.owner))

    groups = dict(each for each in as_field_choices(found) if isinstance(each[1], list))
    assert [[value for value, _label in group] for group in groups.values()] == [
        [f"{kb.pk}/same", f"{kb.pk}/same@1"] for kb in (first, second)
    ]


@pytest.mark.parametrize("asked", ["same", "same@1"])
def test_a_plain_name_is_that_of_the_knowledge_base_that_is_searched(namesakes, asked):
    _first, second = namesakes
    found = choices.profile_choices(principal(second.owner), asked, [second.pk])

    (chosen,) = (choice for choice in found if choice.value == asked)
    assert chosen.profile.knowledge_base == second
    assert len([choice for choice in found if choice.profile.name == "same"]) == 4
    assert asked not in {choice.value for choice in choices.profile_choices(principal(second.owner), asked)}
