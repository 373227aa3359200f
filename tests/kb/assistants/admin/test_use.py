import re
import uuid
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from kb.answers.services.conversations import message_judge
from kb.assistants.services.asking import Asked, ask
from kb.assistants.services.assistants import assistant_update
from kb.assistants.services.entry import Visit
from kb.models import AssistantUse, Conversation, Membership, Visitor
from tests.factories import make_document, make_kb, make_user, principal
from tests.kb.assistants.making import make_assistant
from tests.kb.providers.language_model import no_language_model
from tests.kb.web.admin.pages import Page, words
from tests.servers import Reply

pytestmark = pytest.mark.django_db

QUESTION = "How long does the warranty last?"
LIMITS = {
    "visitor_questions": "50",
    "visitor_tokens": "",
    "address_questions": "200",
    "address_tokens": "",
    "total_questions": "9",
    "total_tokens": "5000000",
    "retention_days": "30",
    "keeps_text": "on",
}


@pytest.fixture
def visited(visit, llm):
    llm.always("chat", Reply("Two years [1].", usage={"prompt_tokens": 70, "completion_tokens": 5}))
    return Conversation.objects.get(pk=ask(visit, Asked(question=QUESTION), address="203.0.113.7").conversation_id)


def open_visit(page, conversation):
    return page("conversation", conversation.visitor.assistant_id, conversation.pk)


def test_use_stands_beside_the_limits(page, owner, assistant, visited):
    assistant_update(principal(owner), assistant, total_questions=1)
    opened = Page(page("use", assistant.pk))
    assert "Questions 1 Model tokens 75 Visitors 1 Answered 100%" in opened.text("figures")
    limits = opened.text("limits")
    assert "Everybody together reached today" in limits
    assert "One visitor reached" not in limits
    assert "203.0.113" not in opened.text("limits")


def test_days_are_counted_one_by_one(page, assistant):
    today = timezone.localdate()
    for days, questions in ((0, 3), (29, 4), (30, 500)):
        AssistantUse.objects.create(
            assistant=assistant, day=today - timedelta(days=days), questions=questions, tokens=10
        )
    AssistantUse.objects.create(assistant=assistant, day=today, whose=f"v:{uuid.uuid4()}", questions=2)
    opened = page("use", assistant.pk)
    assert "Questions 7 Model tokens 20" in Page(opened).text("figures")
    assert [chart.verdict for chart in opened.context["charts"]] == ["At most 4 on one day.", "At most 10 on one day."]
    assert opened.context["charts"][0].series[0].values == [4, *[0] * 28, 3]


def test_thumbs_and_misses_are_counted(page, assistant, visited):
    visited.messages.filter(role="assistant").update(hit=False, feedback=-1)
    figures = Page(page("use", assistant.pk)).text("figures")
    assert "Answered 0%" in figures
    assert "0 / 1" in figures


def test_limits_hold_at_once(page, assistant):
    page("use", assistant.pk, data=LIMITS)
    assistant.refresh_from_db()
    assert (assistant.total_questions, assistant.visitor_tokens, assistant.retention_days) == (9, None, 30)
    page("use", assistant.pk, data={name: value for name, value in LIMITS.items() if name != "keeps_text"})
    assistant.refresh_from_db()
    assert not assistant.keeps_text


@pytest.mark.parametrize(
    ("name", "value"), [("total_questions", "0"), ("retention_days", "4000"), ("visitor_tokens", "x")]
)
def test_a_limit_that_cannot_be_is_refused_at_its_field(page, assistant, name, value):
    refused = page("use", assistant.pk, data={**LIMITS, name: value})
    assert refused.status_code == 400
    assert list(refused.context["form"].errors) == [name]


def test_conversations_are_listed_and_read(page, visited):
    assistant = visited.visitor.assistant
    listed = Page(page("conversations", assistant.pk)).text("visits")
    assert QUESTION in listed
    read = Page(open_visit(page, visited)).text("visit")
    assert QUESTION in read
    assert "Two years" in read
    assert "ProductFAQ.md" in read


def test_what_a_visitor_asks_in_other_words_stays_with_what_they_said_of_it(page, visit, visited, llm):
    assistant = visited.visitor.assistant
    first = visited.messages.get(role="assistant")
    message_judge(first, -1, "It is about the old heater.")
    ask(visit, Asked(question="How long for the new one?", conversation_id=visited.pk, instead_of=first.pk))
    listed = Page(page("conversations", assistant.pk)).text("visits")
    assert "Not helpful 1" in listed
    assert re.search(r"\b2\b", listed)  # questions
    first_turn, second_turn = map(words, Page(open_visit(page, visited)).tree.xpath("//*[@class='as-turn']"))
    assert QUESTION in first_turn
    assert "“It is about the old heater.”" in first_turn
    assert "Replaced by the next question" in first_turn
    assert "How long for the new one?" in second_turn
    assert "Replaced" not in second_turn


@pytest.mark.parametrize("own_words", ["", "Please **call** us."])
def test_a_conversation_is_read_in_the_words_that_its_visitor_saw(page, owner, llm, own_words):
    assistant = make_assistant(owner, make_kb(owner, language="zh"), access="public", settings={"no_answer": own_words})
    found = ask(Visit(assistant, uuid.uuid4()), Asked(question="Is there a canteen?"))
    read = Page(open_visit(page, Conversation.objects.get(pk=found.conversation_id)))
    assert found.answer
    assert read.text("answer") == found.answer
    assert read.tree.xpath("//*[@data-testid='answer']/@data-answer-text") == [""]


def test_an_answer_that_no_model_wrote_is_read_in_the_language_of_the_page(page, owner, visit, settings):
    no_language_model(settings)
    type(visit.assistant.knowledge_bases.get()).objects.update(language="zh")
    found = ask(visit, Asked(question=QUESTION))
    read = Page(open_visit(page, Conversation.objects.get(pk=found.conversation_id))).text("visit")
    assert "No chat model is set up" in read
    assert "没有" not in read


def test_an_empty_list_says_what_stands_there(page, assistant):
    assert Page(page("conversations", assistant.pk)).has("no-visit")


def test_conversations_over_a_knowledge_base_that_is_not_visible_any_more_are_not_read(page, client, llm):
    editor, kept, lost = make_user(), make_kb(), make_kb(language="en")
    make_document(lost, "The boiler is guaranteed for ten years.", source="Boiler.md")
    for each in (kept, lost):
        Membership.objects.create(user=editor, knowledge_base=each, role="editor")
    assistant = make_assistant(editor, kept, lost, access="public")
    found = ask(Visit(assistant, uuid.uuid4()), Asked(question="boiler guaranteed"))
    assistant_update(principal(editor), assistant, knowledge_base_ids=[kept.pk])
    client.force_login(editor)
    asked_for = Conversation.objects.get(pk=found.conversation_id)
    assert open_visit(page, asked_for).status_code == 200
    Membership.objects.filter(user=editor, knowledge_base=lost).delete()
    assert open_visit(page, asked_for).status_code == 404
    assert "boiler" not in page("conversations", assistant.pk).content.decode()


def test_a_conversation_of_another_assistant_is_not_found(page, owner, kb, visited):
    other = make_assistant(owner, kb, name="Other")
    assert page("conversation", other.pk, visited.pk).status_code == 404


def test_one_visitors_data_is_deleted_after_it_was_asked(page, owner, kb, visited):
    assistant, visitor = visited.visitor.assistant, visited.visitor
    Conversation.objects.create(visitor=visitor, knowledge_base_ids=[kb.pk])
    stays = Conversation.objects.create(visitor=Visitor.objects.create(assistant=assistant), knowledge_base_ids=[kb.pk])
    url = ("conversation", assistant.pk, visited.pk)
    assert "1 other of the same visitor" in Page(page(*url, delete=1)).text("confirm")
    gone = page(*url, data={})
    assert gone.headers["Location"] == reverse("admin:kb_assistant_conversations", args=[assistant.pk])
    assert list(Conversation.objects.all()) == [stays]


def test_where_no_text_is_kept_the_pages_say_so(page, owner, assistant, visit, llm):
    assistant_update(principal(owner), assistant, keeps_text=False)
    visit.assistant.refresh_from_db()
    found = ask(visit, Asked(question=QUESTION))
    assert Page(page("conversations", assistant.pk)).has("keeps-no-text")
    read = Page(page("conversation", assistant.pk, found.conversation_id)).text("visit")
    assert "No text is kept" in read
    assert "warranty" not in read
