import json
import uuid
from urllib.parse import parse_qs, urlsplit

import lxml.html
import pytest
from django.test import Client
from django.urls import reverse

from kb.models import Conversation, SearchLog
from tests.factories import make_document, make_kb, make_member, make_user
from tests.kb.providers.language_model import language_model, no_language_model
from tests.kb.web.admin.pages import Page, words
from tests.servers import Reply

pytestmark = pytest.mark.django_db

QUESTION = "诉讼时效多久？"


@pytest.fixture(autouse=True)
def _english_with_an_open_gate(settings):
    settings.LANGUAGE_CODE = "en"
    settings.RETRIEVAL = {**settings.RETRIEVAL, "overlap_threshold": 0.0}


@pytest.fixture(autouse=True)
def llm(settings):
    with language_model(settings) as server:
        server.always("chat", Reply("三年[1]，不是四年[7]。"))
        yield server


@pytest.fixture
def open_page(client):
    def get(conversation=None, language="en"):
        query = {"conversation": conversation} if conversation else {}
        return client.get(reverse("admin:ask"), query, headers={"accept-language": language})

    return get


@pytest.fixture
def ask(client):
    def post(*kbs, query=QUESTION, language="en", **fields):
        data = {"query": query, "kb": [kb.pk for kb in kbs], **fields}
        return client.post(reverse("admin:ask_answer"), data, headers={"accept-language": language})

    return post


def events(response):
    blocks = b"".join(response).decode().removesuffix("\n\n").split("\n\n")
    pairs = [block.split("\n") for block in blocks]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]


def done(response):
    name, data = events(response)[-1]
    assert name == "done"
    return data


def html(markup):
    return lxml.html.fragment_fromstring(markup, create_parent="div")


def text_of(markup, testid):
    (found,) = html(markup).xpath(f".//*[@data-testid='{testid}']")
    return words(found)


# -- Who may open it -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ask", "ask_answer"])
def test_a_visitor_is_sent_to_the_login(name):
    response = Client().get(reverse(f"admin:{name}"))
    assert response.status_code == 302
    assert response.url.startswith(reverse("admin:login"))


def test_a_user_who_is_not_staff_gets_no_answer(ask, client, kb, llm):
    client.force_login(make_user(staff=False))
    assert ask(kb).status_code == 302
    assert llm.requests == []


def test_a_question_without_the_forms_token_is_refused(curator, kb):
    client = Client(enforce_csrf_checks=True)
    client.force_login(curator)
    assert client.post(reverse("admin:ask_answer"), {"query": QUESTION, "kb": [kb.pk]}).status_code == 403


def test_the_sidebar_leads_to_it(client):
    assert f'href="{reverse("admin:ask")}"' in client.get(reverse("admin:index")).content.decode()


# -- The page ------------------------------------------------------------------------------------------------------


def test_without_a_knowledge_base_the_page_says_how_to_get_one(open_page):
    page = Page(open_page())
    assert page.has("no-bases")
    assert not page.tree.xpath("//form[@data-ask-form]")


def test_the_knowledge_bases_that_one_may_see_are_offered(open_page, kb, document, foreign):
    make_member(make_kb(name="shared"), user=kb.owner)
    page = Page(open_page())
    assert [words(label) for label in page.tree.xpath("//*[@id='id_kb']//label")] == ["legal", "shared"]


def test_the_only_knowledge_base_is_chosen(open_page, kb, document):
    (box,) = Page(open_page()).tree.xpath("//input[@name='kb']")
    assert box.get("checked") is not None


def test_several_empty_knowledge_bases_take_one_notice(open_page, kb):
    others = [make_kb(kb.owner, f"empty {number}") for number in range(3)]
    page = Page(open_page())
    (notice,) = page.tree.xpath("//*[@data-testid='empty-base']")
    assert "4 knowledge bases hold no chunks yet" in words(notice)
    links = {link.get("href") for link in notice.xpath(".//a")}
    assert links == {f"{reverse('admin:kb_document_upload')}?kb={each.pk}" for each in (kb, *others)}


def test_an_empty_knowledge_base_leads_to_the_upload(open_page, kb):
    page = Page(open_page())
    assert "“legal” holds no chunks yet" in page.text("empty-base")
    assert page.tree.xpath(f"//a[@href='{reverse('admin:kb_document_upload')}?kb={kb.pk}']")


def test_without_a_language_model_the_page_says_which_settings_to_make(open_page, kb, settings):
    no_language_model(settings)
    shown = Page(open_page()).text("no-model")
    assert all(name in shown for name in ("LLM_BASE_URL", "LLM_MODEL", "LLM_API_KEY"))


def test_with_a_language_model_the_page_says_nothing_of_it(open_page, kb, document):
    page = Page(open_page())
    assert not page.has("no-model")
    assert page.has("no-question")
    assert page.has("no-conversations")


def test_the_page_asks_nothing_of_other_sites(open_page, kb):
    tree = Page(open_page()).tree
    loaded = [*tree.xpath("//script/@src"), *tree.xpath("//link/@href"), *tree.xpath("//img/@src")]
    assert [address for address in loaded if urlsplit(address).netloc] == []


# -- An answer -----------------------------------------------------------------------------------------------------


def test_an_answer_streams_in(ask, kb, document):
    response = ask(kb)
    assert response.headers["Content-Type"] == "text/event-stream"
    (first, found), *pieces, (last, whole) = events(response)
    assert (first, {name for name, _ in pieces}, last) == ("sources", {"delta"}, "done")
    assert "诉讼时效期间为三年。" in text_of(found["html"], "sources")
    text = "".join(data["text"] for _, data in pieces)
    assert text == "三年[1]，不是四年。\n\n来源：notes.txt"
    (answer,) = html(whole["html"]).xpath(".//*[@data-testid='answer']")
    assert answer.text_content() == text


def test_a_citation_leads_to_its_chunk(ask, kb, document):
    (link,) = html(done(ask(kb))["html"]).xpath(".//a[@class='ask-cite']")
    chunk = document.chunks.get(text="诉讼时效期间为三年。")
    assert (words(link), link.get("href")) == ("1", reverse("admin:kb_chunk_change", args=[chunk.pk]))


def test_a_source_leads_to_its_document(ask, kb, document):
    tree = html(done(ask(kb))["html"])
    assert tree.xpath(f".//a[@href='{reverse('admin:kb_document_change', args=[document.pk])}']")


def test_an_answer_leads_to_search_debug_with_the_same_question(ask, kb, document):
    (link,) = html(done(ask(kb))["html"]).xpath(".//a[@data-testid='debug']")
    address = urlsplit(link.get("href"))
    assert address.path == reverse("admin:search_debug")
    assert parse_qs(address.query) == {"kb": [str(kb.pk)], "q": [QUESTION]}


def test_what_documents_and_models_write_is_shown_as_text(ask, kb, llm):
    make_document(kb, "诉讼时效 <script>alert(1)</script>", source="<img src=x>.txt")
    llm.always("chat", Reply("三年 <b>bold</b> [1]。"))
    sources, *_, whole = (data["html"] for name, data in events(ask(kb)) if name != "delta")
    for markup in (sources, whole):
        assert not html(markup).xpath(".//script | .//img")
    assert "<b>bold</b>" in text_of(whole, "answer")


def test_a_model_that_fails_is_told_in_words(ask, kb, document, llm):
    llm.always("chat", Reply(status=401))
    markup = done(ask(kb))["html"]
    (notes,) = html(markup).xpath(".//details[contains(@class, 'ask-notes')]")
    assert notes.get("open") is not None
    assert "The language model is out of reach" in words(notes)
    assert "诉讼时效期间为三年。" in text_of(markup, "answer")


def test_the_words_of_an_answer_are_in_the_language_of_the_page(ask, kb, document):
    notes = {language: html(done(ask(kb, language=language))["html"]) for language in ("en", "zh-hans")}
    headings = {
        language: words(tree.xpath(".//*[@data-code='hashing_embedder']//h2")[0]) for language, tree in notes.items()
    }
    assert headings["en"] == "Searched without an embedding model: vectors compare words, not meaning"
    assert headings["en"] != headings["zh-hans"]


def test_nothing_found_is_said(ask, kb):
    markup = done(ask(kb))["html"]
    assert text_of(markup, "answer") == "抱歉，知识库中没有找到相关内容。"
    assert not html(markup).xpath(".//*[@data-testid='sources']")


# -- What cannot be asked ------------------------------------------------------------------------------------------


def test_near_misses_are_listed_apart_and_again_when_the_conversation_is_opened(ask, open_page, kb, document, cut_at):
    cut_at(0.98)
    data = done(ask(kb))
    for shown in (html(data["html"]), Page(open_page(data["conversation"])).tree):
        (near,) = shown.xpath(".//*[@data-testid='near-misses']")
        assert "Not certain" in words(near)
        assert "low relevance" in words(near)
        assert "诉讼时效期间为三年。" in words(near)
        assert "[1]" not in words(near)


def test_near_misses_beside_an_answer_are_not_shown(ask, kb, document, cut_at):
    cut_at(0.0)
    assert not html(done(ask(kb))["html"]).xpath(".//*[@data-testid='near-misses']")


def test_a_question_without_a_knowledge_base_is_refused_in_words(ask, kb):
    response = ask()
    assert (response.status_code, response.json()) == (400, {"detail": "Choose at least one knowledge base."})


def test_a_knowledge_base_of_a_stranger_cannot_be_asked(ask, foreign, llm):
    assert ask(foreign.knowledge_base).status_code == 400
    assert llm.requests == []


def test_a_conversation_of_a_stranger_cannot_be_continued(ask, kb, llm):
    strange = Conversation.objects.create(user=make_user(), knowledge_base_ids=[kb.pk])
    assert ask(conversation=str(strange.pk)).status_code == 404
    assert llm.requests == []


def test_no_channel_is_told_in_words(ask, kb, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "enable_fts": False, "lexical_fallback": False}
    type(kb).objects.filter(pk=kb.pk).update(embedding_model="no/such-model", tokenizer_id="", lacks_postings=True)
    response = ask(kb)
    assert response.status_code == 503
    assert response.json()["detail"].startswith("No channel could answer: ")


# -- Conversations -------------------------------------------------------------------------------------------------


def test_a_question_begins_a_conversation_and_the_next_continues_it(ask, open_page, kb, document):
    begun = done(ask(kb))
    again = done(ask(conversation=begun["conversation"], query="从何时起算？"))
    assert again["conversation"] == begun["conversation"]
    page = Page(open_page(begun["conversation"]))
    assert [words(each) for each in page.tree.xpath("//*[@data-ask-turns]//*[@data-ask-query]")] == [
        QUESTION,
        "从何时起算？",
    ]
    assert len(page.tree.xpath("//*[@data-ask-turns]//a[@class='ask-cite']")) == 2
    assert page.text("scope") == "Answers from: legal"


def test_the_list_of_conversations_comes_with_the_answer(ask, kb, document):
    found = done(ask(kb))
    assert text_of(found["conversations"], "conversations").startswith(QUESTION)
    assert html(found["conversations"]).xpath(f".//a[@href='{found['url']}' and @aria-current='page']")


@pytest.mark.parametrize("which", ["strange", "missing", "no-uuid"])
def test_a_conversation_that_is_not_ones_own_does_not_exist(open_page, client, kb, which):
    strange = Conversation.objects.create(user=make_user(), knowledge_base_ids=[kb.pk])
    named = {"strange": strange.pk, "missing": uuid.uuid4(), "no-uuid": "7"}[which]
    assert open_page(named).status_code == 404
    if which != "no-uuid":
        assert client.post(reverse("admin:ask_delete", args=[named])).status_code == 404
    assert Conversation.objects.filter(pk=strange.pk).exists()


def test_a_conversation_is_deleted_after_a_question(ask, client, kb, document):
    url = reverse("admin:ask_delete", args=[done(ask(kb))["conversation"]])
    page = client.get(url, headers={"accept-language": "en"}).content.decode()
    assert f"Delete the conversation “{QUESTION}”?" in page
    assert "Its 2 messages are lost for good." in page
    assert Conversation.objects.exists()

    response = client.post(url)

    assert response.url == reverse("admin:ask")
    assert not Conversation.objects.exists()


# -- Feedback ------------------------------------------------------------------------------------------------------------
def thumbs(html):
    """The address that feedback goes to, and what is said already."""
    (group,) = lxml.html.fromstring(html).xpath("//*[@data-testid='feedback']")
    pressed = group.xpath(".//button[@aria-pressed='true']/@data-value")
    return group.get("data-feedback"), [int(value) for value in pressed]


def test_an_answer_can_be_called_helpful_or_not(ask, client, kb, document):
    url, said = thumbs(done(ask(kb))["html"])

    assert said == []
    assert client.post(url, {"value": -1}, "application/json").status_code == 200


@pytest.mark.parametrize("value", [1, -1])
def test_what_was_said_of_an_answer_is_shown(ask, open_page, client, kb, document, value):
    answered = done(ask(kb))
    url, _ = thumbs(answered["html"])
    client.post(url, {"value": value}, "application/json")

    assert thumbs(open_page(answered["conversation"]).content.decode()) == (url, [value])


def test_an_answer_whose_search_is_no_longer_in_the_log_has_no_thumbs(ask, open_page, kb, document):
    conversation = done(ask(kb))["conversation"]
    SearchLog.objects.all().delete()

    page = Page(open_page(conversation))

    assert page.has("answer")
    assert not page.has("feedback")
