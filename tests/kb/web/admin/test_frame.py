"""The frame of the admin's pages: menu, title, breadcrumbs, tabs, redirects of old addresses."""

import lxml.html
import pytest
from django.contrib import admin
from django.urls import reverse

from kb.models import Chunk, Concept, User
from kb.web.admin.navigation import Section
from kb.web.admin.site import MOVED
from tests.factories import make_kb, make_member, make_user
from tests.kb.web.admin.pages import words


@pytest.fixture
def opened(client):
    def get(name, *args, query=""):
        page = client.get(reverse(f"admin:{name}", args=args) + query, headers={"accept-language": "en"})
        assert page.status_code == 200
        return lxml.html.fromstring(page.content.decode())

    return get


def crumbs(page):
    """The breadcrumbs as (words, address); the page itself has none."""
    rows = page.xpath("//nav[@aria-label='Breadcrumbs']//li")
    return [(words(row.xpath("a | span")[0]), (row.xpath("a/@href") or [""])[0]) for row in rows]


def titles(page):
    return [words(title) for title in page.xpath("//main//h1")]


def test_the_breadcrumbs_of_a_document_are_its_knowledge_base_and_documents(opened, kb, document):
    page = opened("kb_document_change", document.pk)

    documents = reverse("admin:kb_knowledgebase_documents", args=[kb.pk])
    assert crumbs(page) == [("legal", documents), ("Documents", documents), ("Contracts", "")]
    assert titles(page) == ["Contracts"]
    assert page.findtext(".//title").strip().split(" | ") == ["Contracts", "legal", "Zhiku"]


def test_a_page_below_a_row_leads_back_to_it(opened, kb, document):
    chunk = document.chunks.first()

    above = crumbs(opened("kb_chunk_split", chunk.pk))

    assert ("Contracts #1", reverse("admin:kb_chunk_change", args=[chunk.pk])) in above
    assert above[-1][1] == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kb_evalrun_changelist", ["Quality", "Runs"]),
        ("kb_evalset_add", ["Quality", "Evaluation sets", "New evaluation set"]),
        ("kb_knowledgebase_changelist", ["Knowledge bases"]),
        ("kb_knowledgebase_add", ["Knowledge bases", "New knowledge base"]),
        ("search_debug", ["Retrieval test", "Test"]),
        ("ask_write", ["Ask", "Write the answer"]),
        ("password_change", ["Workbench", "Password change"]),
        ("index", ["Workbench"]),
    ],
)
def test_the_breadcrumbs_of_other_pages_begin_with_their_entry_of_the_menu(opened, kb, name, expected):
    page = opened(name)

    assert [title for title, _url in crumbs(page)] == expected
    assert titles(page)[:1] == [
        "Retrieval test" if name == "search_debug" else expected[-1]
    ]  # a first tab is named as its entry


def test_a_form_for_a_new_row_stands_at_the_knowledge_base_whose_list_it_was_opened_from(opened, kb):
    opened("kb_knowledgebase_concepts", kb.pk)

    page = opened("kb_concept_add", query=f"?_changelist_filters=knowledge_base__id__exact%3D{kb.pk}")

    assert [title for title, _url in crumbs(page)] == ["legal", "Knowledge", "Concepts and synonyms", "New concept"]
    assert [title for title, _url in crumbs(opened("kb_concept_add"))] == ["Knowledge bases", "New concept"]


def test_no_page_says_the_same_twice_above_its_contents(opened, kb):
    page = opened("kb_knowledgebase_documents", kb.pk)

    (title,) = page.xpath("//main//h1")
    assert (words(title), title.get("class")) == ("Documents", "kb-hidden")
    assert [words(tab) for tab in page.xpath("//nav[@aria-label='legal']/a[@aria-current]")] == ["Documents"]


def test_the_menu_marks_the_entry_of_the_page(opened, kb):
    (entry,) = opened("kb_evalrun_changelist").xpath("//nav[@aria-label='Main menu']//a[@aria-current]")

    assert words(entry.xpath("span[2]")[0]) == "Quality"


def test_a_superuser_sees_seven_entries_a_curator_six_and_a_viewer_three(client, opened, kb):
    count = "count(//nav[@aria-label='Main menu']//a)"
    curator = opened("index").xpath(count)
    client.force_login(make_user(superuser=True))
    superuser = opened("index").xpath(count)
    client.force_login(make_member(kb))
    viewer = opened("index").xpath(count)

    assert (superuser, curator, viewer) == (len(Section), len(Section) - 1, 3)


def test_members_are_a_tab_of_owners_only(client, opened, kb):
    sharing = reverse("admin:kb_knowledgebase_sharing", args=[kb.pk])

    assert sharing in opened("kb_knowledgebase_change", kb.pk).xpath("//nav//a/@href")
    client.force_login(make_member(kb, "editor"))
    assert sharing not in opened("kb_knowledgebase_change", kb.pk).xpath("//nav//a/@href")
    client.force_login(make_member(kb, "owner"))
    assert sharing in opened("kb_knowledgebase_change", kb.pk).xpath("//nav//a/@href")


# -- Old addresses -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("route", sorted(MOVED))
def test_a_page_that_moved_leads_to_where_it_is(client, route):
    answer = client.get(f"{reverse('admin:index')}{route}?q=1")

    assert (answer.status_code, answer.url) == (302, reverse(f"admin:{MOVED[route]}") + "?q=1")


def test_a_list_of_one_knowledge_base_is_shown_at_its_page(client, kb, document):
    old = reverse("admin:kb_document_changelist")
    new = reverse("admin:kb_knowledgebase_documents", args=[kb.pk])

    found = client.get(old, {"knowledge_base__id__exact": kb.pk, "status__exact": "ready"})
    assert (found.status_code, found.url) == (302, f"{new}?status__exact=ready")
    assert client.get(old, {"knowledge_base__id__exact": kb.pk}).url == new
    assert client.get(old).status_code == 200
    assert client.get(reverse("admin:kb_evalset_changelist"), {"knowledge_base__id__exact": kb.pk}).status_code == 200


def test_an_action_on_a_filtered_list_is_done_there(client, kb):
    concept = Concept.objects.create(knowledge_base=kb, name="one")
    url = f"{reverse('admin:kb_concept_changelist')}?knowledge_base__id__exact={kb.pk}"

    client.post(url, {"action": "delete_selected", "_selected_action": [concept.pk], "post": "yes"})

    assert not Concept.objects.exists()


# -- The knowledge bases that a user works with ------------------------------------------------------------------------------
def test_the_last_knowledge_bases_are_remembered_the_newest_first(opened, curator):
    bases = [make_kb(curator, f"base {number}") for number in range(14)]
    for kb in [*bases, bases[5]]:
        opened("kb_knowledgebase_documents", kb.pk)

    user = User.objects.get(pk=curator.pk)
    recent = [bases[5], *(kb for kb in reversed(bases) if kb != bases[5])]
    assert user.last_knowledge_base_id == bases[5].pk
    assert user.recent_knowledge_bases == [kb.pk for kb in recent][:12]


def test_the_current_knowledge_base_stands_on_pages_of_all(opened, kb, document):
    opened("kb_document_change", document.pk)

    (chooser,) = opened("kb_evalrun_changelist").xpath("//header//button[@data-palette='bases']")
    assert chooser.get("aria-label") == "Knowledge base: legal. Switch"


def test_one_that_the_user_may_no_longer_see_is_not_the_current_one(opened, curator, foreign):
    User.objects.filter(pk=curator.pk).update(last_knowledge_base=foreign.knowledge_base_id)

    (chooser,) = opened("kb_evalrun_changelist").xpath("//header//button[@data-palette='bases']")
    assert chooser.get("aria-label") == "Choose a knowledge base"


def test_every_tab_of_the_menu_has_a_page(client):
    """What is registered opens, and what opens in the menu is marked there."""
    client.force_login(make_user(superuser=True))
    for entry in admin.site.each_context(client.get(reverse("admin:index")).wsgi_request)["sidebar_navigation"][0][
        "items"
    ]:
        page = lxml.html.fromstring(client.get(entry["link"]).content.decode())
        assert page.xpath("//nav[contains(@class, 'kb-entries')]//a[@aria-current]/@href") == [entry["link"]]
        for tab in page.xpath("//nav[contains(@class, 'kb-tabs')]/a/@href"):
            assert client.get(tab).status_code == 200, tab


def test_a_long_name_is_cut_in_titles_and_crumbs(opened, kb, document):
    Chunk.objects.update(text="long")
    document.title = "x" * 300
    document.save()

    page = opened("kb_document_change", document.pk)
    assert len(titles(page)[0]) == 120


def test_a_knowledge_base_that_one_has_been_put_out_of_is_remembered_nowhere(client):
    user = make_user("reader")
    client.force_login(user)
    kb = make_kb(name="withheld")
    make_member(kb, user=user)
    client.get(reverse("admin:kb_knowledgebase_documents", args=[kb.pk]))
    pages = [
        reverse("admin:index"),
        reverse("admin:search"),
        reverse("admin:search") + "?of=bases",
        reverse("admin:ask"),
        reverse("admin:integrations"),
        reverse("admin:kb_document_upload"),
    ]
    assert User.objects.get(pk=user.pk).last_knowledge_base_id == kb.pk
    assert "withheld" in client.get(pages[0]).content.decode()

    kb.memberships.all().delete()

    assert [url for url in pages if "withheld" in client.get(url).content.decode()] == []
