"""The palette: what it finds, for whom, and where it leads."""

import lxml.html
import pytest
from django.urls import reverse

from kb.models import Document
from tests.factories import make_document, make_kb, make_member
from tests.kb.web.admin.pages import words


@pytest.fixture
def found(client):
    """The groups that the palette shows, each a list of (title, about, address); "" is what it says of all."""

    def ask(query, language="en", **parameters):
        answer = client.get(reverse("admin:search"), {"s": query, **parameters}, headers={"accept-language": language})
        assert answer.status_code == 200
        page = lxml.html.fromstring(f"<div>{answer.content.decode()}</div>")
        groups = {
            words(group.xpath("div")[0]): [
                (words(row.xpath("span[2]")[0]), " ".join(map(words, row.xpath("span[3]"))), row.get("href"))
                for row in group.xpath("a[@role='option']")
            ]
            for group in page.xpath("//*[@role='group']")
        }
        return groups | {"": words(page.xpath("//*[@data-status]")[0])}

    return ask


def test_it_finds_knowledge_bases_documents_and_pages(found, kb, document):
    assert found("legal")["Knowledge bases"] == [
        ("legal", "", reverse("admin:kb_knowledgebase_documents", args=[kb.pk]))
    ]
    url = reverse("admin:kb_document_change", args=[document.pk])
    assert found("tract")["Documents"] == [("Contracts", "legal", url)]
    assert found("notes.t")["Documents"] == [("Contracts", "legal", url)]
    assert found("runs")["Pages"] == [("Runs", "Quality", reverse("admin:kb_evalrun_changelist"))]


def test_it_finds_nothing_of_others(found, foreign, kb):
    assert found("stranger") == {"": "Nothing matches."}
    assert found("Secret") == {"": "Nothing matches."}


def test_pages_are_found_by_their_words_in_the_reader_s_language_and_in_english(found, kb):
    page = reverse("admin:kb_evalset_changelist")

    assert page in {url for *_, url in next(rows for name, rows in found("评测集", "zh-hans").items() if name)}
    assert page in {url for *_, url in next(rows for name, rows in found("quality SETS", "zh-hans").items() if name)}


def test_tabs_of_the_current_knowledge_base_are_found_and_those_of_no_other(client, found, kb, curator):
    make_kb(curator, "other")
    client.get(reverse("admin:kb_knowledgebase_documents", args=[kb.pk]))

    url = reverse("admin:kb_knowledgebase_sources", args=[kb.pk])
    assert [row for row in found("sources")["Pages"] if row[2] == url] == [("Sources", "legal", url)]


def test_a_viewer_finds_only_pages_of_the_menu_that_they_have(client, found, kb):
    client.force_login(make_member(kb))

    assert "Pages" not in found("audit")
    assert "Pages" not in found("evaluation")
    assert "Pages" not in found("upload")


def test_documents_of_the_current_knowledge_base_come_first_the_newest_first(client, found, kb, curator):
    other = make_kb(curator, "other")
    for base, title in ((kb, "plan 1"), (kb, "plan 2"), (other, "plan 3")):
        make_document(base, title=title)
    client.get(reverse("admin:kb_knowledgebase_documents", args=[kb.pk]))

    assert [title for title, *_ in found("PLAN")["Documents"]] == ["plan 2", "plan 1", "plan 3"]


def test_at_most_eight_of_a_kind_are_shown(found, kb):
    for number in range(10):
        make_document(kb, title=f"plan {number}")

    assert len(found("plan")["Documents"]) == 8


@pytest.mark.parametrize("query", ["%", "_", "\0", "'", "<b>", "\\"])
def test_signs_are_looked_for_as_they_are(found, kb, query):
    Document.objects.all().delete()

    assert "Documents" not in found(query)


def test_without_a_query_it_offers_the_last_knowledge_bases_and_pages(client, found, curator):
    bases = [make_kb(curator, name) for name in "ab"]
    client.get(reverse("admin:kb_knowledgebase_documents", args=[bases[1].pk]))

    shown = found("")
    assert [title for title, *_ in shown["Knowledge bases"]] == ["b", "a"]
    assert shown["Pages"]


@pytest.mark.parametrize(
    ("at", "page"),
    [
        ("kb_knowledgebase_sources", "kb_knowledgebase_sources"),
        ("kb_concept_change", "kb_knowledgebase_concepts"),
        ("kb_document_change", "kb_knowledgebase_documents"),
        ("kb_evalrun_changelist", "kb_knowledgebase_documents"),
        ("", "kb_knowledgebase_documents"),
    ],
)
def test_another_knowledge_base_opens_at_a_page_of_the_same_kind(found, kb, at, page):
    assert found("", of="bases", at=at)["Knowledge bases"] == [("legal", "", reverse(f"admin:{page}", args=[kb.pk]))]


@pytest.mark.parametrize("at", ["ask", "search_debug", "why_not", "compare"])
def test_a_page_for_all_opens_with_the_other_knowledge_base(found, kb, at):
    assert found("", of="bases", at=at)["Knowledge bases"] == [("legal", "", f"{reverse(f'admin:{at}')}?kb={kb.pk}")]


def test_many_knowledge_bases_are_narrowed_by_name(found, curator):
    for number in range(60):
        make_kb(curator, f"base {number:02}")

    assert len(found("", of="bases")["Knowledge bases"]) == 50
    assert [title for title, *_ in found("BASE 59", of="bases")["Knowledge bases"]] == ["base 59"]


def test_it_takes_few_queries(client, kb, document, django_assert_max_num_queries):
    client.get(reverse("admin:kb_knowledgebase_documents", args=[kb.pk]))

    with django_assert_max_num_queries(7):
        client.get(reverse("admin:search"), {"s": "con"})


def test_who_is_not_logged_in_finds_nothing(client, kb):
    client.logout()

    assert client.get(reverse("admin:search"), {"s": "legal"}).status_code == 302
