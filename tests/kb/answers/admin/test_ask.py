import json
import uuid
from urllib.parse import parse_qs, urlsplit

import lxml.html
import pytest
from django.test import Client
from django.urls import reverse

from kb.answers.admin.turns import TURNS_SHOWN
from kb.answers.services.progress import Progress, forget, note
from kb.answers.services.resuming import text_so_far
from kb.base.streams import Streams
from kb.models import Conversation, Message, SearchLog
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


def test_the_knowledge_base_that_one_was_in_last_is_chosen(open_page, client, kb, curator):
    other = make_kb(curator, "another")
    client.get(reverse("admin:ask"), {"kb": other.pk})
    page = Page(open_page())
    assert page.tree.xpath("//input[@name='kb'][@checked]/@value") == [str(other.pk)]


def test_the_knowledge_base_that_was_asked_last_is_chosen(ask, open_page, kb, curator):
    other = make_kb(curator, "another")
    done(ask(other))
    assert Page(open_page()).tree.xpath("//input[@name='kb'][@checked]/@value") == [str(other.pk)]


def test_several_knowledge_bases_can_be_chosen_by_the_address(client, kb, curator):
    other = make_kb(curator, "another")
    page = Page(client.get(reverse("admin:ask"), {"kb": [kb.pk, other.pk], "q": QUESTION}))
    assert set(page.tree.xpath("//input[@name='kb'][@checked]/@value")) == {str(kb.pk), str(other.pk)}
    assert page.tree.xpath("//textarea[@name='query']")[0].value.strip() == QUESTION


def test_an_empty_knowledge_base_leads_to_the_upload(open_page, kb):
    page = Page(open_page())
    assert "“legal” holds nothing to find yet" in page.text("empty-base")
    assert page.tree.xpath(f"//a[@href='{reverse('admin:kb_document_upload')}?kb={kb.pk}']")


def test_without_a_language_model_superusers_are_told_and_nobody_else(open_page, client, kb, settings):
    no_language_model(settings)
    assert not Page(open_page()).has("no-model")
    client.force_login(make_user(superuser=True))
    assert "No chat model is set up" in Page(open_page()).text("no-model")


def test_with_a_language_model_the_page_says_nothing_of_it(open_page, kb, document):
    page = Page(open_page())
    assert not page.has("no-model")
    assert page.has("no-question")
    assert page.has("no-conversations")


def test_the_page_asks_nothing_of_other_sites(open_page, kb):
    tree = Page(open_page()).tree
    loaded = [*tree.xpath("//script/@src"), *tree.xpath("//link/@href"), *tree.xpath("//img/@src")]
    assert [address for address in loaded if urlsplit(address).netloc] == []


def test_questions_of_the_chosen_knowledge_bases_are_suggested(open_page, client, kb, document, curator):
    other = make_kb(curator, "another")
    make_document(other, "text", title="差旅制度")
    client.get(reverse("admin:ask"), {"kb": kb.pk})
    assert Page(open_page()).text("suggestions") == "Contracts?"
    both = client.get(reverse("admin:ask_suggestions"), {"kb": [kb.pk, other.pk]}).content.decode()
    assert set(html(both).xpath(".//*[@data-ask-question]/text()")) == {"Contracts?", "差旅制度？"}


def test_nothing_is_suggested_of_a_stranger_s(client, kb, foreign):
    shown = client.get(reverse("admin:ask_suggestions"), {"kb": foreign.knowledge_base_id})
    assert not html(shown.content.decode()).xpath(".//*[@data-ask-question]")


# -- An answer -----------------------------------------------------------------------------------------------------


def test_an_answer_streams_in(ask, kb, document):
    response = ask(kb)
    assert response.headers["Content-Type"] == "text/event-stream"
    (first, found), *pieces, (last, whole) = events(response)
    assert (first, {name for name, _ in pieces}, last) == ("sources", {"delta"}, "done")
    assert found["html"] == ""
    text = "".join(data["text"] for _, data in pieces)
    assert text == "三年[1]，不是四年。\n\n来源：notes.txt"
    (answer,) = html(whole["html"]).xpath(".//*[@data-testid='answer']")
    assert (answer.text_content(), answer.get("data-cites")) == ("三年[1]，不是四年。", "1 2 ")
    assert "notes.txt" in text_of(whole["html"], "sources")


def test_a_source_leads_to_its_chunk(ask, kb, document):
    (source,) = html(done(ask(kb))["html"]).xpath(".//*[@data-source='1']")
    chunk = document.chunks.get(text="诉讼时效期间为三年。")
    assert source.get("title") == "Source 1: notes.txt"
    (link,) = source.xpath("./a")
    assert link.get("href") == reverse("admin:kb_chunk_place", args=[chunk.pk])
    assert link.get("data-ask-passage") == reverse("admin:kb_chunk_passage", args=[chunk.pk])


def test_an_answer_leads_to_search_debug_with_the_same_question(ask, kb, document):
    (link,) = html(done(ask(kb))["html"]).xpath(".//a[@data-testid='debug']")
    address = urlsplit(link.get("href"))
    assert address.path == reverse("admin:search_debug")
    assert parse_qs(address.query) == {"kb": [str(kb.pk)], "q": [QUESTION]}


def test_what_documents_and_models_write_is_shown_as_text(ask, kb, llm):
    make_document(kb, "诉讼时效 <script>alert(1)</script>", source="<img src=x>.txt")
    llm.always("chat", Reply("三年 <b>bold</b> [1]。"))
    whole = done(ask(kb))["html"]
    assert not html(whole).xpath(".//script | .//img")
    assert "<b>bold</b>" in text_of(whole, "answer")


def test_where_the_model_fails_the_passages_are_listed_with_a_way_to_ask_again(ask, kb, document, llm):
    llm.always("chat", Reply(status=401))
    markup = done(ask(kb))["html"]
    assert "No answer was written" in text_of(markup, "unwritten")
    assert html(markup).xpath(".//*[@data-testid='unwritten']//button[@data-ask-again]")
    assert "诉讼时效期间为三年。" in text_of(markup, "sources")
    assert html(markup).xpath(".//*[@data-code='llm_unavailable']")


def test_without_a_model_the_passages_come_at_once_and_nothing_complains(ask, kb, document, settings):
    no_language_model(settings)
    (_, found), *_, (_, whole) = events(ask(kb))
    for markup in (found["html"], whole["html"]):
        assert "诉讼时效期间为三年。" in text_of(markup, "sources")
        assert not html(markup).xpath(".//*[@data-testid='unwritten'] | .//*[@data-testid='degraded']")


def test_a_table_is_shown_by_its_rows(ask, kb, settings):
    no_language_model(settings)
    make_document(kb, "| 假别 | 审批人 |\n| --- | --- |\n| 婚假 | 部门经理 |")
    markup = done(ask(kb, query="婚假的审批人"))["html"]
    (shown,) = html(markup).xpath(".//*[@data-ask-excerpt]/text()")
    assert shown.splitlines() == ["| 假别 | 审批人 |", "| 婚假 | 部门经理 |"]


def test_what_is_usual_for_a_knowledge_base_is_no_notice(ask, kb, document):
    tree = html(done(ask(kb))["html"])
    assert tree.xpath(".//*[@data-testid='info']")
    assert not tree.xpath(".//*[@data-testid='degraded'] | .//*[@data-code]")


def test_who_only_reads_is_told_of_no_degradation(ask, client, kb, document, llm):
    client.force_login(make_member(kb))
    llm.always("chat", Reply(status=401))
    tree = html(done(ask(kb))["html"])
    assert tree.xpath(".//*[@data-testid='unwritten']")
    assert not tree.xpath(".//*[@data-testid='info'] | .//*[@data-code]")


@pytest.mark.parametrize(("language", "words"), [("en", "The chat model is out of reach"), ("zh-hans", "无法连接")])
def test_the_words_of_an_answer_are_in_the_language_of_the_page(ask, kb, document, llm, language, words):
    llm.always("chat", Reply(status=401))
    (notice,) = html(done(ask(kb, language=language))["html"]).xpath(".//*[@data-code='llm_unavailable']")
    assert words in notice.text_content()


def test_nothing_found_is_said(ask, kb):
    markup = done(ask(kb))["html"]
    assert text_of(markup, "answer") == "Nothing found is relevant enough"
    assert not html(markup).xpath(".//*[@data-testid='sources']")


def test_a_knowledge_base_s_own_sentence_for_that_is_kept(ask, kb):
    type(kb).objects.filter(pk=kb.pk).update(no_answer="请致电客服。")
    assert "请致电客服。" in html(done(ask(kb))["html"]).text_content()


# -- What cannot be asked ------------------------------------------------------------------------------------------


def test_near_misses_are_listed_apart_and_again_when_the_conversation_is_opened(ask, open_page, kb, document, cut_at):
    cut_at(0.98)
    data = done(ask(kb))
    for shown in (html(data["html"]), Page(open_page(data["conversation"])).tree):
        (near,) = shown.xpath(".//*[@data-testid='near-misses']")
        assert "The nearest passages" in words(near)
        assert "low relevance" in words(near)
        assert "诉讼时效期间为三年。" in words(near)
        assert "[1]" not in words(near)


def test_from_a_miss_editors_find_out_why_and_write_the_answer(ask, client, kb, document, cut_at):
    cut_at(0.98)
    missed = html(done(ask(kb))["html"])
    nearest = document.chunks.get(text="诉讼时效期间为三年。")
    (why,) = missed.xpath(".//a[@data-testid='why']/@href")
    assert urlsplit(why).path == reverse("admin:why_not")
    assert parse_qs(urlsplit(why).query) == {"kb": [str(kb.pk)], "q": [QUESTION], "chunk": [str(nearest.pk)]}
    assert client.get(why).status_code == 200
    (write,) = missed.xpath(".//a[@data-testid='write']/@hx-get")
    assert client.get(write).status_code == 200
    (is_answer,) = missed.xpath(".//*[@data-testid='is-answer']/@hx-get")
    assert client.get(is_answer).status_code == 200


def test_from_a_miss_who_only_reads_is_led_nowhere(ask, client, kb, document, cut_at):
    cut_at(0.98)
    client.force_login(make_member(kb))
    missed = html(done(ask(kb))["html"])
    assert missed.xpath(".//*[@data-testid='near-misses']")
    assert not missed.xpath(".//*[@data-testid='why'] | .//*[@data-testid='write'] | .//*[@data-testid='is-answer']")


def test_after_the_answer_is_written_asking_again_finds_it(ask, client, kb, document, llm, settings):
    """At the default cuts, and with the model that compares words."""
    settings.RETRIEVAL = {**settings.RETRIEVAL, "overlap_threshold": None}
    question = "狗可以带进办公室吗？"
    missed = html(done(ask(kb, query=question))["html"])
    (write,) = missed.xpath(".//a[@data-testid='write']/@hx-get")
    client.post(write, {"question": question, "answer": "周五可以。", "knowledge_base": kb.pk})
    llm.always("chat", Reply("周五可以[1]。"))

    answered = done(ask(kb, query=question))["html"]

    assert text_of(answered, "answer") == "周五可以[1]。"
    assert question in text_of(answered, "sources")


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


def test_a_question_beyond_the_bound_of_streams_is_for_later(ask, kb, llm, monkeypatch):
    monkeypatch.setattr("kb.answers.services.answers.STREAMS", Streams(0))
    response = ask(kb)
    assert (response.status_code, response.headers["Retry-After"]) == (503, "30")
    assert response.json()["detail"].startswith("The server is writing as many answers as it can")
    assert llm.requests == []


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
    assert page.tree.xpath("//*[@data-ask-turns]//*[@data-cites]/@data-cites") == ["1 2 ", "1 2 "]
    assert page.text("scope").endswith("Answers from: legal")


def test_the_list_of_conversations_comes_with_the_answer(ask, kb, document):
    found = done(ask(kb))
    assert text_of(found["conversations"], "conversations").startswith(QUESTION)
    assert html(found["conversations"]).xpath(f".//a[@href='{found['url']}' and @aria-current='page']")


def test_a_long_conversation_opens_with_its_last_turns_and_reads_the_others_when_asked(client, open_page, kb, curator):
    conversation = Conversation.objects.create(user=curator, knowledge_base_ids=[kb.pk], title="long")
    count = 2 * TURNS_SHOWN + 5
    rows = [
        Message(
            conversation=conversation, role=role, text=f"{role} {number}", hit=True if role == "assistant" else None
        )
        for number in range(count)
        for role in ("user", "assistant")
    ]
    Message.objects.bulk_create(rows)

    shown, opened = [], Page(open_page(conversation.pk)).tree
    while True:
        shown = [words(each) for each in opened.xpath("//*[@data-ask-query]") if words(each)] + shown
        earlier = opened.xpath("//a[@data-testid='earlier']/@hx-get")
        if not earlier:
            break
        opened = html(client.get(earlier[0]).content.decode()).getroottree()

    assert shown == [f"user {number}" for number in range(count)]


def test_a_long_conversation_takes_no_more_queries(open_page, kb, curator, django_assert_max_num_queries):
    conversation = Conversation.objects.create(user=curator, knowledge_base_ids=[kb.pk], title="long")
    rows = [Message(conversation=conversation, role=role, text="x", hit=True) for role in ("user", "assistant") * 200]
    Message.objects.bulk_create(rows)
    open_page(conversation.pk)
    with django_assert_max_num_queries(11):
        response = open_page(conversation.pk)
    assert len(response.content) < 100_000


def test_an_answer_that_a_page_has_lost_is_taken_up_also_where_another_came_after_it(client, open_page, kb, curator):
    conversation = Conversation.objects.create(user=curator, knowledge_base_ids=[kb.pk], title="two")
    for number in ("one", "two"):
        Message.objects.create(conversation=conversation, role="user", text=f"question {number}")
        Message.objects.create(conversation=conversation, role="assistant", text=f"answer {number}", hit=True)
    one, two = conversation.messages.filter(role="assistant").order_by("pk")
    Message.objects.filter(pk=one.pk).update(status=Message.Status.WRITING, text="")

    (lost,) = Page(open_page(conversation.pk)).tree.xpath("//*[@data-testid='writing']/@hx-get")
    assert "answer two" not in client.get(lost).content.decode()
    assert client.post(lost).status_code == 204
    assert [is_to_stop(each) for each in (one, two)] == [True, False]

    Message.objects.filter(pk=one.pk).update(status=Message.Status.STOPPED, text="answer o")
    shown = client.get(lost, headers={"accept-language": "en"}).content.decode()
    assert "answer o" in shown
    assert "You stopped this answer here." in shown
    assert "answer two" not in shown


def is_to_stop(answer):
    progress = Progress(answer.pk)
    note([progress])
    forget(answer.pk)
    return progress.is_stopped


@pytest.mark.parametrize("method", ["get", "post"])
def test_an_answer_to_a_stranger_is_not_taken_up(client, kb, method):
    strange = Conversation.objects.create(user=make_user(), knowledge_base_ids=[kb.pk])
    answer = Message.objects.create(conversation=strange, role="assistant", status=Message.Status.WRITING)
    assert getattr(client, method)(reverse("admin:ask_resume", args=[answer.pk])).status_code == 404
    assert not is_to_stop(answer)


@pytest.mark.parametrize("is_read", [False, True], ids=["before its text is read", "after its text is read"])
def test_an_answer_whose_conversation_was_deleted_meanwhile_is_not_there(client, kb, curator, monkeypatch, is_read):
    conversation = Conversation.objects.create(user=curator, knowledge_base_ids=[kb.pk])
    Message.objects.create(conversation=conversation, role="user", text="question")
    answer = Message.objects.create(conversation=conversation, role="assistant", status=Message.Status.WRITING)

    def look(message):
        text = text_so_far(message) if is_read else ""
        conversation.delete()
        return text if is_read else text_so_far(message)

    monkeypatch.setattr("kb.answers.admin.ask.text_so_far", look)
    assert client.get(reverse("admin:ask_resume", args=[answer.pk])).status_code == 404
    assert client.get("/admin/ask/answers/99999999999999999999/").status_code == 404


def test_earlier_turns_of_a_stranger_do_not_exist(client, kb):
    strange = Conversation.objects.create(user=make_user(), knowledge_base_ids=[kb.pk])
    assert client.get(reverse("admin:ask_earlier"), {"conversation": strange.pk}).status_code == 404


def test_a_conversation_is_renamed_in_its_line(ask, client, kb, document):
    conversation = Conversation.objects.get(pk=done(ask(kb))["conversation"])
    url = reverse("admin:ask_rename", args=[conversation.pk])
    assert html(client.get(url, {"edit": 1}).content.decode()).xpath(".//input[@name='title']/@value") == [QUESTION]

    line = html(client.post(url, {"title": "  时效   问题 ", "current": "1"}).content.decode())

    assert words(line.xpath(".//a[@aria-current='page']")[0]) == "时效 问题"
    was = conversation.updated_at
    conversation.refresh_from_db()
    assert (conversation.title, conversation.updated_at) == ("时效 问题", was)


def test_a_conversation_is_not_renamed_to_nothing(ask, client, kb, document):
    url = reverse("admin:ask_rename", args=[done(ask(kb))["conversation"]])
    line = html(client.post(url, {"title": " "}, headers={"accept-language": "en"}).content.decode())
    assert "This field is required" in line.text_content()
    assert Conversation.objects.get().title == QUESTION


def test_the_page_lists_the_conversations_with_what_can_be_done_with_them(ask, open_page, kb, document):
    conversation = done(ask(kb))["conversation"]
    (line,) = Page(open_page()).tree.xpath("//*[@data-testid='conversation']")
    assert words(line.xpath("./a[@class='ask-title']")[0]) == QUESTION
    assert line.xpath("./button/@aria-label") == [f"Rename “{QUESTION}”"]
    assert line.xpath("./a/@href")[1] == reverse("admin:ask_delete", args=[conversation])


@pytest.mark.parametrize("which", ["strange", "missing", "no-uuid"])
def test_a_conversation_that_is_not_ones_own_does_not_exist(open_page, client, kb, which):
    strange = Conversation.objects.create(user=make_user(), knowledge_base_ids=[kb.pk])
    named = {"strange": strange.pk, "missing": uuid.uuid4(), "no-uuid": "7"}[which]
    assert open_page(named).status_code == 404
    if which != "no-uuid":
        assert client.post(reverse("admin:ask_delete", args=[named])).status_code == 404
        assert client.post(reverse("admin:ask_rename", args=[named]), {"title": "mine"}).status_code == 404
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
