"""Names stand as they were typed, and times are written alike in both languages, with their zone."""

import re

import lxml.html
import pytest
from django.urls import reverse

from kb.models import Concept, Document
from tests.factories import make_user
from tests.kb.web.admin.pages import words

LANGUAGES = ("en", "zh-hans")


def header(client, url, language="en"):
    page = lxml.html.fromstring(client.get(url, headers={"accept-language": language}).content.decode())
    return words(page.xpath("//h1")[0])


def test_a_user_name_keeps_its_small_letter(client):
    client.force_login(make_user("root", superuser=True))
    lily = make_user("lily")

    for page in ("change", "delete"):
        shown = header(client, reverse(f"admin:kb_user_{page}", args=[lily.pk]))
        assert "lily" in shown
        assert "Lily" not in shown


def test_a_concept_keeps_its_small_letter(client, kb):
    concept = Concept.objects.create(knowledge_base=kb, name="keyword-led")

    assert "keyword-led" in header(client, reverse("admin:kb_concept_change", args=[concept.pk]))


def test_the_kind_of_a_list_begins_with_a_capital(client):
    assert "Knowledge bases" in header(client, reverse("admin:kb_knowledgebase_changelist"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_time_has_one_form_with_its_zone(client, document, language):
    Document.objects.filter(pk=document.pk).update(created_at="2026-11-24T00:31:00+08:00")
    for url in (
        reverse("admin:kb_document_changelist"),
        reverse("admin:kb_document_change", args=[document.pk]),
    ):
        page = client.get(url, headers={"accept-language": language}).content.decode()

        assert "2026-11-24 00:31 UTC+0800" in page
        assert not re.search(r"a\.m\.|p\.m\.|2026年", page)


@pytest.mark.parametrize("route", ["admin:kb_document_add", "admin:kb_ingestbatch_add"])
def test_plus_on_a_filtered_list_chooses_the_knowledge_base(client, kb, document, foreign, route):
    from tests.factories import make_kb

    make_kb(kb.owner, "another")
    query = {"_changelist_filters": f"knowledge_base__id__exact={kb.pk}"}
    page = lxml.html.fromstring(client.get(reverse(route), query, follow=True).content.decode())

    assert page.xpath("//select[@name='knowledge_base']/option[@selected]/@value") == [str(kb.pk)]


@pytest.mark.parametrize("model", ["concept", "graphfact", "entity", "source", "evalset", "searchprovider"])
def test_a_form_opened_from_a_filtered_list_has_the_knowledge_base(client, kb, model):
    query = {"_changelist_filters": f"knowledge_base__id__exact={kb.pk}"}
    page = lxml.html.fromstring(client.get(reverse(f"admin:kb_{model}_add"), query).content.decode())

    assert page.xpath("//select[@name='knowledge_base']/option[@selected]/@value") == [str(kb.pk)]


def test_plus_on_a_list_of_a_knowledge_base_keeps_it(client, kb):
    url = reverse("admin:kb_knowledgebase_concepts", args=[kb.pk])
    page = lxml.html.fromstring(client.get(url).content.decode())

    links = {each for each in page.xpath("//a/@href") if each.startswith(reverse("admin:kb_concept_add"))}
    forms = [lxml.html.fromstring(client.get(link).content.decode()) for link in sorted(links)]
    chosen = [form.xpath("//select[@name='knowledge_base']/option[@selected]/@value") for form in forms]
    assert chosen
    assert all(each == [str(kb.pk)] for each in chosen), links


def test_an_empty_list_offers_only_what_there_is_to_do(client):
    page = client.get(reverse("admin:kb_failedquery_changelist"), headers={"accept-language": "en"}).content.decode()

    assert "No failed queries yet" in page
    assert "Reset filters" not in page
    assert "Create a new item" not in page


def test_a_list_that_a_search_leaves_empty_offers_to_reset_it(client, kb):
    url = reverse("admin:kb_knowledgebase_changelist")
    page = client.get(url, {"q": "nothing like it"}, headers={"accept-language": "en"}).content.decode()

    assert "Nothing matches the search and the filters." in page
    assert "Reset filters" in page
