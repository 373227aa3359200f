"""Answers that curators write."""

from urllib.parse import parse_qs, urlsplit

import lxml.html
import pytest
from django.urls import reverse

from kb.models import Document
from tests.factories import make_kb, make_member
from tests.kb.quality.failed_queries.admin.test_queries import make_failed
from tests.kb.web.admin.pages import Page, words

pytestmark = pytest.mark.django_db

FRAGMENT = {"HX-Request": "true", "accept-language": "en"}
QUESTION = "诉讼时效多久？"


@pytest.fixture(autouse=True)
def _english(settings):
    settings.LANGUAGE_CODE = "en"


def fragment(response):
    assert response.status_code == 200
    return lxml.html.fragment_fromstring(response.content.decode(), create_parent="div")


def write_url(kb, **query):
    return reverse("admin:ask_write") + f"?kb={kb.pk}&q={QUESTION}" + "".join(f"&{k}={v}" for k, v in query.items())


def test_the_form_knows_the_question_and_the_knowledge_base(client, kb, document):
    shown = fragment(client.get(write_url(kb), headers=FRAGMENT))
    assert shown.xpath(".//input[@name='question']/@value") == [QUESTION]
    assert shown.xpath(".//input[@name='knowledge_base']/@value") == [str(kb.pk)]
    assert not shown.xpath(".//main")


def test_an_answer_is_written_and_can_be_asked_for_again(client, kb, document):
    data = {"question": QUESTION, "answer": "三年。", "knowledge_base": kb.pk}
    shown = fragment(client.post(write_url(kb), data, headers=FRAGMENT))
    assert shown.xpath(".//*[@data-testid='written']//@data-ask-again") == [QUESTION]
    assert Document.objects.get(source_type="qa").chunks.get().text == f"{QUESTION}\n三年。"


def test_as_a_page_it_goes_back_to_the_question(client, kb, document):
    assert Page(client.get(write_url(kb))).has("write-form")
    response = client.post(write_url(kb), {"question": QUESTION, "answer": "三年。", "knowledge_base": kb.pk})
    address = urlsplit(response.url)
    assert (address.path, parse_qs(address.query)) == (reverse("admin:ask"), {"kb": [str(kb.pk)], "q": [QUESTION]})


@pytest.mark.parametrize("is_chunk", [True, False])
def test_what_waited_for_the_answer_is_off_the_list_and_the_page_says_so(client, kb, document, is_chunk):
    failed = make_failed(kb, query=QUESTION)
    url = write_url(kb, **({"chunk": document.chunks.last().pk} if is_chunk else {}))
    data = {"question": QUESTION, "answer": "三年。", "knowledge_base": kb.pk}

    shown = fragment(client.post(url, data, headers=FRAGMENT))

    failed.refresh_from_db()
    assert failed.state == "resolved"
    assert QUESTION in words(shown.xpath(".//*[@data-testid='resolved']")[0])


def test_what_is_not_found_all_the_same_stays_and_the_page_says_so(client, kb, document, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "overlap_threshold": None}
    failed = make_failed(kb, query=QUESTION)
    data = {"question": "Something else?", "answer": "Three years.", "knowledge_base": kb.pk}

    page = client.post(write_url(kb), data, follow=True)

    failed.refresh_from_db()
    assert failed.state == "open"
    told = [str(each) for each in page.context["messages"]]
    assert told[0] == "Saved."
    assert "stays on the to-do list" in told[1]


def test_a_passage_that_is_the_answer_gets_the_question(client, kb, document):
    chunk = document.chunks.last()
    url = write_url(kb, chunk=chunk.pk)
    assert not fragment(client.get(url, headers=FRAGMENT)).xpath(".//textarea")
    assert fragment(client.post(url, {"question": QUESTION}, headers=FRAGMENT)).xpath(".//*[@data-ask-again]")
    chunk.refresh_from_db()
    assert chunk.questions == [QUESTION]


def test_an_empty_answer_is_asked_for_again_with_what_was_written(client, kb, document):
    data = {"question": "Something else?", "answer": "", "knowledge_base": kb.pk}
    shown = fragment(client.post(write_url(kb), data, headers=FRAGMENT))
    assert shown.xpath(".//input[@name='question']/@value") == ["Something else?"]
    assert "This field is required" in shown.text_content()


def test_what_the_knowledge_base_refuses_is_told_in_the_form(client, kb, document):
    type(kb).objects.filter(pk=kb.pk).update(embedding_model="no/such-model")
    data = {"question": QUESTION, "answer": "三年。", "knowledge_base": kb.pk}
    shown = fragment(client.post(write_url(kb), data, headers=FRAGMENT))
    assert "no/such-model" in words(shown.xpath(".//*[@role='alert']")[0])
    assert "三年。" in shown.xpath(".//textarea")[0].text_content()


def test_of_several_knowledge_bases_one_is_chosen(client, kb, curator):
    other = make_kb(curator, "another")
    shown = fragment(client.get(write_url(kb) + f"&kb={other.pk}", headers=FRAGMENT))
    assert set(shown.xpath(".//select[@name='knowledge_base']/option/@value")) == {str(kb.pk), str(other.pk)}


def test_who_may_only_read_gets_no_form(client, kb, document):
    client.force_login(make_member(kb))
    assert client.get(write_url(kb)).status_code == 403
    assert client.get(write_url(kb, chunk=document.chunks.first().pk)).status_code == 404


def test_nothing_is_written_to_a_knowledge_base_that_one_may_not_edit(client, kb, foreign):
    data = {"question": QUESTION, "answer": "三年。", "knowledge_base": foreign.knowledge_base_id}
    assert client.post(write_url(kb), data, headers=FRAGMENT).status_code == 200
    assert not Document.objects.filter(source_type="qa").exists()
