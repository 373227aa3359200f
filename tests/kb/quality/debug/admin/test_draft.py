from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from django.urls import reverse

from kb.models import KnowledgeBase, Membership, RetrievalProfile, SearchLog
from kb.profiles.services import create_version
from tests.factories import make_kb, make_member, make_user, principal
from tests.kb.quality.debug.admin.debug_page import Page

pytestmark = pytest.mark.django_db


@pytest.fixture
def save(client):
    """Posts the draft of a search; returns the response."""

    def save(given, **fields):
        data = {f"draft-{name}": value for name, value in fields.items()}
        url = f"{reverse('admin:search_debug')}?{urlencode(given, doseq=True)}"
        return client.post(url, data, headers={"accept-language": "en"})

    return save


def drafts():
    return list(RetrievalProfile.objects.filter(published=False, published_at=None))


def test_the_draft_holds_the_profiles_settings_and_those_that_were_changed(save, curator, handbook):
    given = {
        "kb": handbook.pk,
        "q": "flight",
        "fusion": "weighted",
        "keyword_share": "0.6",
        "budget": "900",
        "tags": "x",
    }

    save(given, name="tuned", place=handbook.pk, description="words first")

    (draft,) = drafts()
    assert (draft.name, draft.version, draft.knowledge_base, draft.description) == ("tuned", 1, handbook, "words first")
    assert draft.settings == {
        "vector_weight": 0.1,
        "keyword_weight": 0.9,
        "fusion": "weighted",
        "hybrid_text_weight": 0.6,
    }
    assert draft.created_by == curator


def test_the_page_comes_back_with_the_draft_chosen_and_the_same_search(save, client, handbook):
    response = save(
        {"kb": handbook.pk, "q": "flight", "neighbours": 1, "budget": "900"}, name="tuned", place=handbook.pk
    )

    assert response.status_code == 302
    assert parse_qs(urlsplit(response.url).query) == {
        "kb": [str(handbook.pk)],
        "q": ["flight"],
        "budget": ["900"],
        "profile": [f"{handbook.pk}/tuned@1"],
    }
    page = Page(client.get(response.url, headers={"accept-language": "en"}))
    assert page.text("profile") == "tuned v1"
    assert "“tuned v1” was saved as a draft" in page.tree.text_content()
    assert SearchLog.objects.latest("created_at").configuration["neighbours"] == 1


def test_a_draft_gives_as_many_results_as_the_search_that_tried_it(save, client, flights):
    response = save({"kb": flights.pk, "q": "flight", "top_k": 20}, name="many", place=flights.pk)

    assert Page(client.get(response.url)).text("result-count") == "20"


def test_a_second_draft_is_the_next_version_over_the_one_that_was_chosen(save, curator, handbook):
    create_version(principal(curator), "own", {"top_k": 3, "neighbours": 2}, knowledge_base=handbook)

    save({"kb": handbook.pk, "q": "flight", "profile": "own@1", "neighbours": 0}, name="own", place=handbook.pk)

    newest = RetrievalProfile.objects.filter(name="own").first()
    assert (newest.version, newest.settings) == (2, {"top_k": 3, "neighbours": 0})


def test_a_name_of_another_place_is_refused_at_the_field_and_the_search_stays(save, handbook):
    response = save({"kb": handbook.pk, "q": "flight", "top_k": 2}, name="default", place=handbook.pk)

    page = Page(response)
    assert page.status == 400
    assert page.errors() == ["There is a profile named “default” elsewhere: choose another name."]
    assert page.one("//*[@data-testid='draft']").get("open") is not None
    assert page.value("draft-name") == "default"
    assert page.hits()
    assert not drafts()


@pytest.mark.parametrize(
    ("name", "words"),
    [("", "Give the profile a name."), ("a@b", "neither / nor @ among them: choose another.")],
    ids=["blank", "signs"],
)
def test_a_name_that_cannot_be_one_is_refused_with_the_remedy(save, handbook, name, words):
    page = Page(save({"kb": handbook.pk, "q": "flight", "top_k": 2}, name=name, place=handbook.pk))

    assert page.status == 400
    assert words in page.errors()[0]
    assert not drafts()


def test_settings_that_are_wrong_are_not_saved(save, handbook):
    page = Page(save({"kb": handbook.pk, "q": "flight", "top_k": "abc"}, name="tuned", place=handbook.pk))

    assert page.status == 400
    assert page.tree.xpath("//*[@id='id_top_k_error']")
    assert not drafts()


def test_weights_that_are_both_nothing_are_not_saved(save, handbook):
    given = {"kb": handbook.pk, "q": "flight", "vector_weight": "0", "keyword_weight": "0"}

    page = Page(save(given, name="tuned", place=handbook.pk))

    assert page.status == 400
    assert "Both weights are 0: give at least one channel a weight." in page.errors()
    assert not drafts()


@pytest.mark.parametrize("place", ["shared", "other"])
def test_nobody_saves_where_they_may_not(save, handbook, place):
    other = make_kb()

    page = Page(
        save({"kb": handbook.pk, "q": "flight", "top_k": 2}, name="x", place=other.pk if place == "other" else place)
    )

    assert page.status == 400
    assert not drafts()


def test_without_changed_settings_there_is_nothing_to_save(open_debug, save, handbook):
    assert Page(open_debug(kb=handbook.pk, q="flight")).one("//*[@data-testid='draft']").get("hidden") is not None
    assert save({"kb": handbook.pk, "q": "flight"}, name="x", place=handbook.pk).status_code == 400
    assert not drafts()


def test_a_viewer_has_no_place_to_save_to(client, open_debug, handbook):
    client.force_login(make_member(handbook))

    page = Page(open_debug(kb=handbook.pk, q="flight", top_k=2))

    assert page.hits()
    assert not page.has("draft")


def test_an_editor_is_offered_a_profile_of_the_knowledge_base(client, open_debug, handbook):
    client.force_login(make_member(handbook, Membership.Role.EDITOR))

    page = Page(open_debug(kb=handbook.pk, q="flight", top_k=2))

    assert page.value("draft-name") == "Handbook"
    assert page.tree.xpath("//select[@id='id_draft-place']/option/text()") == ["Handbook"]


def test_a_superuser_is_proposed_a_profile_of_the_knowledge_base_and_told_whom_the_shared_one_changes(
    client, open_debug, curator, handbook
):
    make_kb(curator, "Neighbour")
    client.force_login(make_user(superuser=True))

    page = Page(open_debug(kb=handbook.pk, q="flight", top_k=2))

    assert (page.value("draft-name"), page.chosen("draft-place")) == ("Handbook", str(handbook.pk))
    (shared,) = page.tree.xpath("//select[@id='id_draft-place']/option[@value='shared']/text()")
    assert shared == "“keyword-led”, shared: changes 1 other knowledge base too (Neighbour)"


def test_the_next_version_of_a_profile_of_its_own_is_proposed(open_debug, curator, handbook):
    own = create_version(principal(curator), "own", {"top_k": 3}, knowledge_base=handbook)
    KnowledgeBase.objects.filter(pk=handbook.pk).update(profile=own)

    page = Page(open_debug(kb=handbook.pk, q="flight", top_k=2))

    assert (page.value("draft-name"), page.chosen("draft-place")) == ("own", str(handbook.pk))


def test_a_cut_that_was_tried_becomes_that_of_its_scale(save, client, handbook):
    given = {"kb": handbook.pk, "q": "flight"}

    response = save(given, name="tuned", place=handbook.pk, threshold="0.9", scale="overlap")

    assert drafts()[0].settings == {"vector_weight": 0.1, "keyword_weight": 0.9, "overlap_threshold": 0.9}
    assert not Page(client.get(response.url)).hits("results")


def test_a_cut_that_was_tried_replaces_a_threshold_for_all_scales(save, curator, handbook):
    own = create_version(principal(curator), "own", {"score_threshold": 0.1}, knowledge_base=handbook)
    KnowledgeBase.objects.filter(pk=handbook.pk).update(profile=own)

    save({"kb": handbook.pk, "q": "flight"}, name="own", place=handbook.pk, threshold="0.9", scale="overlap")

    assert RetrievalProfile.objects.filter(name="own").first().settings == {"score_threshold": 0.9}


def test_where_knowledge_bases_differ_the_default_profile_is_what_the_settings_stand_over(save, curator, handbook):
    other = make_kb(curator)
    KnowledgeBase.objects.filter(pk=other.pk).update(profile=RetrievalProfile.objects.get(name="balanced"))

    save({"kb": [handbook.pk, other.pk], "q": "flight", "neighbours": 1}, name="tuned", place=handbook.pk)

    assert drafts()[0].settings == {"neighbours": 1}
