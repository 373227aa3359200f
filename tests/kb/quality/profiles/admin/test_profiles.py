from urllib.parse import parse_qs, urlsplit

import lxml.html
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from kb.models import KnowledgeBase, Membership, RetrievalProfile
from kb.profiles.services import BUILT_IN, create_version, publish
from kb.search.services.search import SearchRequest, search
from tests.factories import make_kb, make_member, make_user, principal
from tests.kb.web.admin.pages import Page, words

LIST = "admin:kb_retrievalprofile_changelist"
PAGE, ADD, EDIT, PUBLISH, DELETE, DIFF = (
    f"admin:kb_retrievalprofile_{name}" for name in ("change", "add", "edit", "publish", "delete", "diff")
)
PAGES = (PAGE, EDIT, PUBLISH, DELETE)


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def root(client):
    """A superuser, logged in by `client` in the curator's place."""
    root = make_user("root", superuser=True)
    client.force_login(root)
    return root


@pytest.fixture
def tuned(kb, curator):
    return save(kb, curator, top_k=3)


def save(kb, curator, name="tuned", description="", **settings):
    return create_version(principal(curator), name, settings, description=description, knowledge_base=kb)


def url(name, version):
    return reverse(name, args=[version.pk])


class ProfilePages(Page):
    def rows(self, testid):
        """The cells of a table by name, by the heading of their row."""
        rows = self.tree.xpath(f"//*[@data-testid='{testid}']/tbody/tr")
        return {
            words(row.xpath("./th")[0]): {cell.get("data-col"): words(cell) for cell in row.xpath(".//*[@data-col]")}
            for row in rows
        }

    def version(self, number):
        (row,) = self.tree.xpath(f"//tr[@data-version='{number}']")
        return {cell.get("data-col"): words(cell) for cell in row.xpath(".//*[@data-col]")} | {
            "links": [words(link) for link in row.xpath(".//td[last()]//a")]
        }

    def differences(self):
        rows = self.tree.xpath("//*[@data-testid='differences']//tr[@data-setting]")
        return {row.get("data-setting"): [words(cell) for cell in row.xpath("./td")] for row in rows}


def opened(client, name, *args, **query):
    return ProfilePages(client.get(reverse(name, args=args), query))


# -- Who may open what ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [LIST, ADD, DIFF])
def test_a_visitor_is_sent_to_the_login(db, name):
    assert Client().get(reverse(name)).url.startswith(reverse("admin:login"))


@pytest.mark.parametrize("name", PAGES)
def test_the_profile_of_a_stranger_does_not_exist(client, foreign, name):
    theirs = save(foreign.knowledge_base, foreign.knowledge_base.owner)

    assert client.get(url(name, theirs)).status_code == 404
    assert client.post(url(name, theirs)).status_code in {404, 405}


@pytest.mark.parametrize("name", [EDIT, PUBLISH, DELETE])
@pytest.mark.parametrize("method", ["get", "post"])
def test_a_viewer_changes_nothing(client, kb, tuned, name, method):
    client.force_login(make_member(kb, Membership.Role.VIEWER))

    assert getattr(client, method)(url(name, tuned)).status_code == 403
    assert RetrievalProfile.objects.filter(name="tuned", published=False).count() == 1


@pytest.mark.parametrize("name", [EDIT, PUBLISH])
def test_a_curator_may_read_a_shared_profile_and_not_change_it(client, kb, name):
    shared = RetrievalProfile.objects.get(name="default")

    page = opened(client, PAGE, shared.pk)

    assert page.version(1)["links"] == ["Try", "Compare"]
    assert client.get(url(name, shared)).status_code == 403


def test_who_edits_no_knowledge_base_makes_no_profile(client, curator):
    assert client.get(reverse(ADD)).status_code == 403
    assert "New profile" not in client.get(reverse(LIST)).content.decode()


# -- The list ------------------------------------------------------------------------------------------------------------
def test_the_list_tells_where_a_profile_belongs_what_is_published_and_who_uses_it(client, kb, curator, tuned):
    publish(principal(curator), tuned, adopt=True)
    save(kb, curator, top_k=4)

    rows = opened(client, LIST).rows("profiles")

    assert rows.keys() == {*BUILT_IN, "tuned"}
    assert (rows["tuned"]["place"], rows["tuned"]["used"]) == ("legal", "legal")
    assert rows["tuned"]["published"].startswith("version 1")
    assert rows["tuned"]["draft"].startswith("version 2")
    assert (rows["default"]["place"], rows["default"]["draft"], rows["default"]["used"]) == (
        "all (shared)",
        "–",
        "none",
    )


def test_the_list_counts_the_knowledge_bases_that_one_may_not_see(client, kb, foreign):
    used = opened(client, LIST).rows("profiles")["keyword-led"]["used"]

    assert used == "legal and 1 that you may not see"


def test_the_profiles_of_strangers_are_not_listed(client, foreign):
    save(foreign.knowledge_base, foreign.knowledge_base.owner, "foreign")

    assert "foreign" not in opened(client, LIST).rows("profiles")


# -- A profile -----------------------------------------------------------------------------------------------------------
def test_the_page_tells_of_each_version_its_state_its_maker_and_what_has_changed(client, kb, curator, tuned):
    publish(principal(curator), tuned)
    publish(principal(curator), save(kb, curator, top_k=4, fusion="weighted", description="Wider."))
    save(kb, curator, top_k=4)

    page = opened(client, PAGE, tuned.pk)

    assert [page.version(number)["state"] for number in (1, 2, 3)] == ["earlier version", "published", "draft"]
    assert page.version(1)["changes"] == "Against the environment’s defaults: Top K: 5 → 3"
    assert page.version(2)["changes"] == "Wider. Fusion: RRF → weighted sum Top K: 3 → 4"
    assert page.version(3)["changes"] == "Fusion: weighted sum → RRF"
    assert page.version(1)["links"] == ["Roll back to it", "Try", "Compare", "Edit from here"]
    assert page.version(3)["links"] == ["Publish", "Try", "Compare", "Edit from here", "Delete"]


def test_a_version_that_only_says_something_else_is_told_as_such(client, kb, curator, tuned):
    save(kb, curator, top_k=3)

    assert opened(client, PAGE, tuned.pk).version(2)["changes"] == "Nothing that affects a search."


def test_a_long_history_has_pages_and_the_address_of_a_version_leads_to_its_own(client, kb, curator, tuned):
    for number in range(4, 26):
        save(kb, curator, top_k=number)

    page = opened(client, PAGE, tuned.pk)

    assert len(page.rows("versions")) == 3
    assert page.version(2)["changes"] == "Top K: 3 → 4"
    first = opened(client, PAGE, tuned.pk, page=1)
    assert first.version(4)["changes"] == "Top K: 5 → 6"  # against one on the next page


# -- Saving --------------------------------------------------------------------------------------------------------------
def test_an_edit_begins_with_the_settings_of_its_version_and_saves_the_next(client, kb, curator, tuned):
    form = opened(client, EDIT, tuned.pk).tree.xpath("//form[@data-testid='form']")[0]
    assert form.xpath(".//input[@name='top_k']/@value") == ["3"]

    response = client.post(url(EDIT, tuned), {"top_k": "4", "description": "Wider."})

    saved = RetrievalProfile.objects.get(name="tuned", version=2)
    assert response.url == url(PAGE, saved)
    assert (saved.settings, saved.description, saved.created_by, saved.published) == (
        {"top_k": 4}, "Wider.", curator, False,
    )  # fmt: skip


def test_a_mistake_is_told_at_its_field_and_nothing_is_saved(client, tuned):
    response = client.post(url(EDIT, tuned), {"top_k": "0"})

    assert response.status_code == 400
    assert "Give a whole number from 1 to 200." in response.content.decode()
    assert RetrievalProfile.objects.filter(name="tuned").count() == 1


def test_who_begins_with_an_earlier_version_is_told_what_that_leaves_out(client, kb, curator, tuned):
    newest = save(kb, curator, top_k=4)

    assert "up to version 2 is not in it" in opened(client, EDIT, tuned.pk).text("not-newest")
    assert not opened(client, EDIT, newest.pk).has("not-newest")


def test_a_profile_is_copied_to_a_knowledge_base(client, kb):
    shared = RetrievalProfile.objects.get(name="keyword-led")
    page = client.get(reverse(ADD), {"from": shared.pk, "kb": kb.pk})
    assert b'value="0.1"' in page.content

    response = client.post(
        f"{reverse(ADD)}?from={shared.pk}&kb={kb.pk}",
        {"name": "legal led", "place": str(kb.pk), "vector_weight": "0.2", "keyword_weight": "0.8"},
    )

    made = RetrievalProfile.objects.get(name="legal led")
    assert response.url == url(PAGE, made)
    assert (made.knowledge_base, made.version, made.settings) == (kb, 1, {"vector_weight": 0.2, "keyword_weight": 0.8})


def test_only_superusers_make_shared_profiles(client, kb):
    response = client.post(reverse(ADD), {"name": "ours", "place": "shared"})

    assert response.status_code == 400
    assert not RetrievalProfile.objects.filter(name="ours").exists()


def test_a_superuser_makes_a_shared_profile(client, root):
    client.post(reverse(ADD), {"name": "ours", "place": "shared"})

    assert RetrievalProfile.objects.get(name="ours").knowledge_base is None


@pytest.mark.parametrize(
    ("name", "message"), [("tuned", "choose another name"), ("a@1", "neither / nor @"), ("", "required")]
)
def test_a_name_that_cannot_be_taken_is_told_at_its_field(client, kb, tuned, name, message):
    response = client.post(reverse(ADD), {"name": name, "place": str(kb.pk)})

    (error,) = lxml.html.fromstring(response.content.decode()).xpath("//*[@id='id_name_error']")
    assert (response.status_code, message in words(error)) == (400, True)
    assert RetrievalProfile.objects.filter(knowledge_base=kb).count() == 1


def test_a_name_that_a_stranger_uses_is_like_a_free_one(client, kb, foreign):
    theirs = save(foreign.knowledge_base, foreign.knowledge_base.owner, name="secret", top_k=4)

    for name in ("secret", "free"):
        response = client.post(reverse(ADD), {"name": name, "place": str(kb.pk), "top_k": "2"})
        assert (response.status_code, response.url) == (302, url(PAGE, RetrievalProfile.objects.get(name=name, knowledge_base=kb)))  # fmt: skip

    ours = RetrievalProfile.objects.get(name="secret", knowledge_base=kb)
    page = opened(client, PAGE, ours.pk)
    assert page.version(1)
    assert len(page.tree.xpath("//tr[@data-version]")) == 1
    assert client.post(url(PUBLISH, ours)).status_code == 302
    draft = save(kb, kb.owner, name="secret")
    assert draft.version == 2
    assert client.get(url(EDIT, ours)).context["next_version"] == 3
    assert client.post(url(DELETE, draft)).url == url(PAGE, ours)
    theirs.refresh_from_db()
    assert not theirs.published


def test_a_knowledge_base_of_a_stranger_cannot_be_chosen(client, kb, foreign):
    response = client.post(reverse(ADD), {"name": "mine", "place": str(foreign.knowledge_base_id)})

    assert response.status_code == 400


# -- Comparing -----------------------------------------------------------------------------------------------------------
def test_two_versions_are_compared(client, kb, curator, tuned):
    later = save(kb, curator, top_k=4, rerankers=["overlap"])

    page = opened(client, DIFF, before=tuned.pk, after=later.pk)

    assert page.differences() == {
        "top_k": ["3", "4"],
        "rerankers": ["cross-encoder, rerank server, word overlap, cosine default", "word overlap"],
    }


def test_a_version_is_compared_with_the_environment(client, tuned):
    page = opened(client, DIFF, before="environment", after=tuned.pk)

    assert page.differences() == {"top_k": ["5 default", "3"]}


def test_equal_versions_are_told_to_be(client, tuned):
    assert opened(client, DIFF, before=tuned.pk, after=tuned.pk).has("same")


def test_versions_of_different_profiles_are_compared(client, tuned):
    other = RetrievalProfile.objects.get(name="weighted")

    assert opened(client, DIFF, before=other.pk, after=tuned.pk).differences().keys() == {
        "fusion",
        "top_k",
    }


@pytest.mark.parametrize(
    "query", [{}, {"before": "x", "after": "1"}, {"before": "environment", "after": "environment"}]
)
def test_what_cannot_be_compared_is_not_found(client, query):
    assert client.get(reverse(DIFF), query).status_code == 404


def test_the_version_of_a_stranger_is_not_compared(client, tuned, foreign):
    theirs = save(foreign.knowledge_base, foreign.knowledge_base.owner, "foreign")

    for pair in ({"before": theirs.pk, "after": tuned.pk}, {"before": "environment", "after": theirs.pk}):
        assert client.get(reverse(DIFF), pair).status_code == 404


# -- Publishing ----------------------------------------------------------------------------------------------------------
def test_a_copy_is_compared_with_what_it_was_copied_from(client, curator, kb):
    parent = save(kb, curator, "Cur-方案A", top_k=7, vector_weight=0.2)
    form = {"name": "copy", "place": str(kb.pk), "top_k": "8", "vector_weight": "0.2"}
    client.post(f"{reverse(ADD)}?from={parent.pk}&kb={kb.pk}", form)
    copy = RetrievalProfile.objects.get(name="copy")
    assert copy.copied_from == parent

    page = opened(client, PAGE, copy.pk)
    assert page.version(1)["changes"].startswith("Against “Cur-方案A v1”, which it is a copy of:")
    assert "weight" not in page.version(1)["changes"]  # as in the other one
    diffs = page.tree.xpath("//a[contains(@href, '/diff/')]/@href")
    assert {parse_qs(urlsplit(each).query)["before"][0] for each in diffs} == {str(parent.pk)}

    parent.delete()
    assert "environment’s defaults" in opened(client, PAGE, copy.pk).version(1)["changes"]


def test_a_further_version_is_compared_with_the_one_before(client, curator, kb):
    first = create_version(principal(curator), "own", {"top_k": 7}, knowledge_base=kb)
    second = create_version(principal(curator), "own", {"top_k": 8}, knowledge_base=kb, begun_with=first)
    assert second.copied_from is None


def test_what_a_copy_was_made_of_is_named_to_those_who_may_see_it(client, curator, kb):
    hidden = create_version(principal(make_user(superuser=True)), "hidden", {"top_k": 7}, knowledge_base=make_kb())
    copy = create_version(principal(curator), "own", {"top_k": 8}, knowledge_base=kb, begun_with=hidden)
    assert "“hidden" not in client.get(url(PAGE, copy)).content.decode()


def test_a_publication_asks_first_and_tells_what_moves_and_what_differs(client, kb, curator, tuned):
    publish(principal(curator), tuned, adopt=True)
    draft = save(kb, curator, top_k=4)

    page = opened(client, PUBLISH, draft.pk)

    assert page.text("moving") == "legal"
    assert page.differences() == {"top_k": ["3", "4"]}
    assert KnowledgeBase.objects.get(pk=kb.pk).profile == tuned


def test_a_publication_moves_the_knowledge_bases(client, kb, curator, tuned):
    publish(principal(curator), tuned, adopt=True)
    draft = save(kb, curator, top_k=4)

    response = client.post(url(PUBLISH, draft), follow=True)

    assert "1 knowledge base has moved" in response.content.decode()
    assert KnowledgeBase.objects.get(pk=kb.pk).profile == draft


def test_an_earlier_version_is_rolled_back_to(client, kb, curator, tuned):
    publish(principal(curator), tuned, adopt=True)
    publish(principal(curator), save(kb, curator, top_k=4))

    assert "Roll back to “tuned v1”?" in client.get(url(PUBLISH, tuned)).content.decode()
    client.post(url(PUBLISH, tuned))

    assert KnowledgeBase.objects.get(pk=kb.pk).profile == tuned


@pytest.mark.parametrize(("sent", "profile"), [({"adopt": "on"}, "tuned v1"), ({}, "keyword-led v1")])
def test_a_knowledge_base_adopts_its_own_profile_where_that_is_ticked(client, kb, tuned, sent, profile):
    page = client.get(url(PUBLISH, tuned)).content.decode()
    assert "Let “legal” search by it from now on" in page
    assert "Vector weight: 0.1 → 0.6" in page

    client.post(url(PUBLISH, tuned), sent)

    assert str(KnowledgeBase.objects.get(pk=kb.pk).profile) == profile


def test_a_superuser_sees_all_that_a_shared_profile_moves(client, root, kb, foreign):
    keyword_led = create_version(principal(root), "keyword-led", {"top_k": 9})

    assert opened(client, PUBLISH, keyword_led.pk).text("moving") == "legal , stranger-base"


def test_a_shared_profile_is_published_for_the_current_knowledge_base_unless_for_all(client, root, kb, foreign):
    root.last_knowledge_base = kb
    root.save()
    draft = create_version(principal(root), "keyword-led", {"top_k": 9})
    page = opened(client, PUBLISH, draft.pk)
    assert "also affects 1 other knowledge base" in page.text("scope")
    assert page.tree.xpath("//input[@name='scope' and @checked]/@value") == ["own"]

    client.post(url(PUBLISH, draft), {"scope": "own"})

    moved, other = (
        KnowledgeBase.objects.get(pk=kb.pk).profile,
        KnowledgeBase.objects.get(pk=foreign.knowledge_base_id).profile,
    )
    assert (moved.knowledge_base_id, moved.published, moved.settings) == (kb.pk, True, {"top_k": 9})
    assert (other.name, other.version) == ("keyword-led", 1)

    client.post(url(PUBLISH, draft), {"scope": "all"})

    other.refresh_from_db()
    assert KnowledgeBase.objects.get(pk=foreign.knowledge_base_id).profile == draft
    assert KnowledgeBase.objects.get(pk=kb.pk).profile == moved


def test_what_is_published_already_is_not_published_again(client, curator, tuned):
    publish(principal(curator), tuned)

    assert "published one already" in opened(client, PUBLISH, tuned.pk).text("confirm")


# -- Deleting ------------------------------------------------------------------------------------------------------------
def test_a_draft_is_deleted_after_a_question(client, kb, curator, tuned):
    draft = save(kb, curator, top_k=4)
    assert "lost for good" in opened(client, DELETE, draft.pk).text("confirm")

    response = client.post(url(DELETE, draft))

    assert response.url == url(PAGE, tuned)
    assert list(RetrievalProfile.objects.filter(name="tuned")) == [tuned]


def test_after_the_last_version_the_list_is_shown(client, tuned):
    assert client.post(url(DELETE, tuned)).url == reverse(LIST)


def test_why_a_draft_is_kept_is_told_and_it_is(client, kb, curator, tuned, document):
    request = SearchRequest(query="诉讼", knowledge_base_ids=[kb.pk], profile="tuned", explain=True)
    search(principal(curator), request)

    page = opened(client, DELETE, tuned.pk)
    response = client.post(url(DELETE, tuned), follow=True)

    assert "The search log holds searches" in page.text("reason")
    assert "The search log holds searches" in response.content.decode()
    assert RetrievalProfile.objects.filter(pk=tuned.pk).exists()


# -- Queries -------------------------------------------------------------------------------------------------------------
def queries_of(client, address, **query):
    with CaptureQueriesContext(connection) as captured:
        assert client.get(address, query).status_code == 200
    return len(captured)


def test_each_page_takes_less_than_ten_queries_however_much_there_is(client, kb, curator, tuned):
    publish(principal(curator), tuned, adopt=True)
    for number in range(4, 14):
        save(kb, curator, top_k=number)
        save(make_kb(curator), curator, f"further {number}")
    draft = RetrievalProfile.objects.get(name="tuned", version=5)
    addresses = {
        "list": (reverse(LIST), {}),
        "page": (url(PAGE, draft), {}),
        "edit": (url(EDIT, draft), {}),
        "add": (reverse(ADD), {"from": draft.pk, "kb": kb.pk}),
        "publish": (url(PUBLISH, draft), {}),
        "delete": (url(DELETE, draft), {}),
        "diff": (reverse(DIFF), {"before": tuned.pk, "after": draft.pk}),
    }

    client.get(reverse(LIST))  # the process learns of its installation
    taken = {name: queries_of(client, address, **query) for name, (address, query) in addresses.items()}

    assert {name: count for name, count in taken.items() if count >= 10} == {}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_a_profile_leads_back_to_it_and_to_the_list_once(client, kb, curator, name):
    publish(principal(curator), save(kb, curator, top_k=2))
    draft = save(kb, curator, top_k=3)

    page = ProfilePages(client.get(url(name, draft)))

    above = page.tree.xpath("//nav[@aria-label='Breadcrumbs']//a/@href")
    assert above[1:] == [reverse(LIST)] + ([] if name == PAGE else [reverse(PAGE, args=[draft.pk])])
    assert not page.tree.xpath(f"//main//nav//a[@href='{reverse(PAGE, args=[draft.pk])}']")
