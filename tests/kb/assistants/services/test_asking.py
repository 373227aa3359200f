import dataclasses
import uuid

import pytest

from kb.answers.services.conversations import message_judge
from kb.assistants.services.asking import Asked, ask, reader_of, stream_ask, stream_preview
from kb.assistants.services.assistants import (
    assistant_close,
    assistant_update,
    draft_of,
    version_create,
    version_publish,
)
from kb.assistants.services.entry import Visit
from kb.assistants.services.limits import LimitReached
from kb.assistants.settings import AssistantSettings
from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.models import AssistantUse, Conversation, FailedQuery, Membership, Message, SearchLog, Visitor
from kb.search.services import search_log
from retrieval.errors import NoChannelAvailable
from tests.factories import make_document, make_kb, make_user, principal
from tests.kb.assistants.making import WARRANTY, make_assistant
from tests.kb.providers.language_model import no_language_model, prompts
from tests.servers import Reply

pytestmark = pytest.mark.django_db

QUESTION = Asked(question="How long does the warranty last?")


def published(assistant, owner, **settings):
    version = version_create(principal(owner), assistant, AssistantSettings(**settings))
    version_publish(principal(owner), version)
    assistant.refresh_from_db()


# -- An answer -----------------------------------------------------------------------------------------------------


def test_a_visitor_is_answered_from_the_assistants_knowledge_bases(visit, llm):
    llm.always("chat", Reply("Two years [1].", usage={"prompt_tokens": 70, "completion_tokens": 5}))
    found = ask(visit, QUESTION)
    assert (found.answer, found.hit) == ("Two years [1].", True)
    conversation = Conversation.objects.get(pk=found.conversation_id)
    assert (conversation.user, conversation.visitor_id) == (None, visit.visitor_id)
    kept = conversation.messages.last()
    assert (kept.text, kept.version, kept.input_tokens) == ("Two years [1].", visit.assistant.published, 70)


def test_a_stream_is_the_same_in_steps(visit, llm):
    llm.always("chat", Reply(["Two ", "years", " [1]."]))
    first, *deltas, done = stream_ask(visit, QUESTION)
    assert "".join(event.data["text"] for event in deltas) == done.data["answer"] == "Two years [1]."
    assert first.data["message_id"] == done.data["message_id"]


def test_the_search_is_logged_for_its_assistant(visit, llm):
    found = ask(visit, QUESTION)
    search_log.flush()
    logged = SearchLog.objects.get(pk=found.trace_id)
    assert (logged.assistant_id, logged.query) == (visit.assistant.pk, QUESTION.question)


def test_settings_reach_the_chat_model(visit, owner, llm):
    published(visit.assistant, owner, instructions="Answer like a pirate.", temperature=0.7, answer_tokens=200)
    ask(visit, dataclasses.replace(QUESTION, instructions=["In one sentence."]))
    body = llm.requests[-1].body
    assert (body["temperature"], body["max_tokens"]) == (0.7, 200)
    system = body["messages"][0]["content"]
    order = ["cite the fragments", "whoever runs this assistant asks", "like a pirate"]
    order += ["It speaks for whoever asks", "In one sentence."]
    assert [system.index(each) for each in order] == sorted(system.index(each) for each in order)


def test_the_instructions_of_one_assistant_are_not_in_the_prompt_of_another(visit, owner, kb, llm):
    published(visit.assistant, owner, instructions="Answer like a pirate.")
    other = make_assistant(owner, kb, name="Other", access="public")
    ask(Visit(other, uuid.uuid4()), QUESTION)
    assert "pirate" not in str(prompts(llm)[-1])


def test_an_assistant_may_have_its_own_sentence_where_nothing_is_found(visit, owner, llm, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "overlap_threshold": 1.0}
    published(visit.assistant, owner, no_answer="Call us.")
    assert ask(visit, Asked(question="Where is the moon?")).answer == "Call us."
    assert llm.requests == []


def test_without_a_model_no_passage_stands_in_the_text(visit, settings):
    no_language_model(settings)
    assert WARRANTY not in ask(visit, QUESTION).answer


def test_a_draft_is_tried_without_a_trace(assistant, owner, llm):
    tried = AssistantSettings(instructions="Answer like a pirate.")
    *_, done = stream_preview(principal(owner), assistant, tried, QUESTION)
    assert done.data["hit"]
    assert "pirate" in str(prompts(llm)[-1])
    assert not Conversation.objects.exists()
    assert not AssistantUse.objects.exists()


# -- A conversation ------------------------------------------------------------------------------------------------


def test_a_conversation_goes_on_with_its_history(visit, llm):
    llm.always("chat", Reply("Two years [1]."))
    first = ask(visit, QUESTION)
    ask(visit, Asked(question="And the warranty of others?", conversation_id=first.conversation_id))
    _system, *history, _question = prompts(llm)[-1]
    assert history == [("user", QUESTION.question), ("assistant", "Two years.")]


def test_an_assistant_that_does_not_remember_reads_no_history(visit, owner, llm):
    published(visit.assistant, owner, remembers=False)
    first = ask(visit, QUESTION)
    ask(visit, Asked(question="And the warranty of others?", conversation_id=first.conversation_id))
    assert len(prompts(llm)[-1]) == 2


def test_the_last_answer_is_written_again_in_its_place(visit, llm):
    llm.always("chat", Reply("Two years [1]."))
    first = ask(visit, QUESTION)
    again = ask(
        visit,
        Asked(
            question="For how long is the warranty?", conversation_id=first.conversation_id, instead_of=first.message_id
        ),
    )
    shown = Message.objects.filter(conversation=first.conversation_id, is_replaced=False)
    assert [each.text for each in shown] == ["For how long is the warranty?", "Two years [1]."]
    assert len(prompts(llm)[-1]) == 2
    with pytest.raises(Rejected):
        ask(visit, Asked(question="?", conversation_id=first.conversation_id, instead_of=first.message_id))
    assert again.conversation_id == first.conversation_id


def test_a_conversation_of_another_visitor_is_not_there(visit, llm):
    first = ask(visit, QUESTION)
    other = dataclasses.replace(visit, visitor_id=uuid.uuid4())
    with pytest.raises(NotVisible):
        ask(other, Asked(question="And?", conversation_id=first.conversation_id))


def test_nothing_of_the_text_is_kept_where_the_assistant_keeps_none(visit, owner, llm):
    assistant_update(principal(owner), visit.assistant, keeps_text=False)
    found = ask(visit, QUESTION)
    search_log.flush()
    assert [each.text for each in Message.objects.all()] == ["", ""]
    assert Message.objects.last().sources == []
    assert Conversation.objects.get().title == ""
    assert SearchLog.objects.get(pk=found.trace_id).query == ""
    assert "warranty" not in str(SearchLog.objects.values().get()).lower()


# -- Whose rights --------------------------------------------------------------------------------------------------


def test_a_knowledge_base_that_the_publisher_lost_is_not_searched(owner, kb, llm):
    editor, theirs = make_user(), make_kb(language="en")
    make_document(theirs, "The boiler is guaranteed for ten years.", source="Boiler.md")
    for each in (kb, theirs):
        Membership.objects.create(user=editor, knowledge_base=each, role="editor")
    visit = Visit(make_assistant(editor, kb, theirs, access="public"), uuid.uuid4())
    assert "Boiler.md" in [each.source for each in ask(visit, Asked(question="boiler guaranteed")).sources]
    Membership.objects.filter(user=editor, knowledge_base=theirs).delete()
    assert {each.source for each in ask(visit, Asked(question="boiler guaranteed")).sources} <= {"ProductFAQ.md"}
    Membership.objects.filter(user=editor).delete()
    with pytest.raises(NotAllowed):
        ask(visit, QUESTION)


@pytest.mark.parametrize("change", ["closed", "publisher deleted", "publisher inactive"])
def test_an_assistant_without_a_publisher_answers_nobody(owner, kb, llm, change):
    editor = make_user()
    Membership.objects.create(user=editor, knowledge_base=kb, role="editor")
    assistant = make_assistant(editor, kb, access="public")
    if change == "closed":
        assistant_close(assistant)
    elif change == "publisher deleted":
        editor.delete()
    else:
        editor.is_active = False
        editor.save()
    assistant.refresh_from_db()
    with pytest.raises(NotAllowed):
        ask(Visit(assistant, uuid.uuid4()), QUESTION)
    assert llm.requests == []


def test_nobody_reads_for_an_assistant_that_has_no_publisher(assistant):
    with pytest.raises(NotAllowed, match="not published"):
        reader_of(assistant, None)


def test_a_superuser_publishes_what_the_assistant_names_and_nothing_else(kb, llm):
    other = make_kb(language="en")
    make_document(other, "The warranty of the secret lasts for ever.", source="Secret.md")
    assistant = make_assistant(make_user(superuser=True), kb, access="public")
    found = ask(Visit(assistant, uuid.uuid4()), QUESTION)
    assert {each.source for each in found.sources} == {"ProductFAQ.md"}


def used_today(assistant):
    return AssistantUse.objects.get(assistant=assistant, whose="")


# -- Limits --------------------------------------------------------------------------------------------------------


def test_a_limit_is_reached_before_anything_is_searched(visit, owner, llm):
    assistant_update(principal(owner), visit.assistant, visitor_questions=1)
    ask(visit, QUESTION)
    asked = len(llm.requests)
    with pytest.raises(LimitReached) as refused:
        ask(visit, QUESTION)
    assert (refused.value.whose, len(llm.requests), used_today(visit.assistant).questions) == ("v", asked, 1)
    ask(dataclasses.replace(visit, visitor_id=uuid.uuid4()), QUESTION)


@pytest.mark.parametrize(("limit", "whose"), [("total_questions", ""), ("address_questions", "a")])
def test_a_limit_holds_for_all_visitors_together(visit, owner, llm, limit, whose):
    assistant_update(principal(owner), visit.assistant, **{limit: 2})
    for _ in range(2):
        ask(dataclasses.replace(visit, visitor_id=uuid.uuid4()), QUESTION, address="203.0.113.7")
    with pytest.raises(LimitReached) as refused:
        ask(dataclasses.replace(visit, visitor_id=uuid.uuid4()), QUESTION, address="203.0.113.7")
    assert refused.value.whose == whose
    assert "203.0.113" not in str(list(AssistantUse.objects.values()))


def test_tokens_are_counted_as_they_were_taken(visit, owner, llm):
    llm.always("chat", Reply("Two years [1].", usage={"prompt_tokens": 700, "completion_tokens": 300}))
    assistant_update(principal(owner), visit.assistant, total_tokens=6_500)
    ask(visit, QUESTION)
    assert used_today(visit.assistant).tokens == 1_000
    list(stream_ask(visit, QUESTION))
    assert used_today(visit.assistant).tokens == 2_000
    with pytest.raises(LimitReached):
        ask(visit, QUESTION)  # which may take 5,024


def test_a_small_limit_of_tokens_admits_a_question(visit, owner, llm):
    llm.always("chat", Reply("Two years [1].", usage={"prompt_tokens": 70, "completion_tokens": 5}))
    assistant_update(principal(owner), visit.assistant, visitor_tokens=100)
    assert ask(visit, QUESTION).hit
    with pytest.raises(LimitReached) as refused:
        ask(visit, QUESTION)
    assert refused.value.whose == "v"


def test_a_question_that_could_not_be_answered_is_not_counted(visit, llm, monkeypatch):
    def fails(*_args, **_kwargs):
        raise NoChannelAvailable([])

    monkeypatch.setattr("kb.assistants.services.asking.stream_answer", fails)
    with pytest.raises(NoChannelAvailable):
        stream_ask(visit, QUESTION)
    use = used_today(visit.assistant)
    assert (use.questions, use.tokens) == (0, 0)


def test_a_reader_who_leaves_is_counted_by_what_was_written(visit, llm):
    llm.always("chat", Reply(["piece "] * 10_000, pause_s=0.01))
    events = stream_ask(visit, QUESTION)
    next(events)
    next(events)
    events.close()
    kept = Message.objects.get(role="assistant")
    assert (kept.status, used_today(visit.assistant).tokens) == ("broken", kept.input_tokens + kept.output_tokens)
    assert kept.input_tokens > 0


def test_a_stream_that_nobody_reads_gives_its_tokens_back(visit, llm):
    stream_ask(visit, QUESTION).close()
    assert (Message.objects.get(role="assistant").status, llm.requests) == ("broken", [])
    assert used_today(visit.assistant).tokens == 0


def test_a_conversation_that_is_deleted_while_it_is_answered_gives_no_tokens_back(visit, llm):
    llm.always("chat", Reply(["Two ", "years"], usage={"prompt_tokens": 70, "completion_tokens": 5}))
    events = stream_ask(visit, QUESTION)
    next(events)
    Conversation.objects.all().delete()
    list(events)
    assert used_today(visit.assistant).tokens == 75
    events = stream_ask(visit, QUESTION)
    next(events)
    Conversation.objects.all().delete()
    events.close()
    assert used_today(visit.assistant).tokens > 75


def test_a_visitors_data_goes_with_the_visitor(visit, llm):
    ask(visit, QUESTION)
    Visitor.objects.get(pk=visit.visitor_id).delete()
    assert not Message.objects.exists()


def test_a_draft_is_the_newest_version(assistant, owner):
    assert draft_of(assistant) == assistant.published
    version_create(principal(owner), assistant, AssistantSettings(temperature=1.0))
    assert (draft_of(assistant).number, assistant.published.number) == (2, 1)


# -- The inbox -----------------------------------------------------------------------------------------------------


def test_a_question_that_the_passages_do_not_answer_is_in_the_inbox_with_its_assistant(visit, llm):
    llm.always("chat", Reply("NO_ANSWER"))
    assert not ask(visit, QUESTION).hit
    list(stream_ask(visit, QUESTION))
    failed = FailedQuery.objects.get()
    assert (failed.query, failed.reasons) == (QUESTION.question, {"unanswered": 2})
    assert failed.assistant_ids == [visit.assistant.pk]


def test_a_question_that_nothing_was_found_for_is_in_the_inbox_with_its_assistant(visit, llm, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "overlap_threshold": 1.0}
    ask(visit, Asked(question="Where is the moon?"))
    search_log.flush()
    failed = FailedQuery.objects.get()
    assert failed.assistant_ids == [visit.assistant.pk]
    assert failed.reasons.keys() <= {"gated", "nothing"}


def test_passages_of_low_relevance_bring_a_question_there_too(visit, llm, monkeypatch):
    monkeypatch.setattr("retrieval.selection.borders", lambda *_: (0.98, 0.99))
    assert ask(visit, QUESTION).hit
    assert FailedQuery.objects.get().reasons == {"weak": 1}


def test_a_thumb_down_brings_a_question_there_and_one_taken_back_out_of_it(visit, llm):
    found = ask(visit, QUESTION)
    message = Message.objects.get(pk=found.message_id)
    message_judge(message, -1, "Too short.")  # before its search is in the log
    failed = FailedQuery.objects.get()
    assert (failed.query, failed.reasons, failed.assistant_ids) == (
        QUESTION.question,
        {"disliked": 1},
        [visit.assistant.pk],
    )
    message.refresh_from_db()
    assert (message.feedback, message.feedback_text) == (-1, "Too short.")
    message_judge(message, None)
    assert not FailedQuery.objects.exists()


def test_a_question_that_is_answered_is_not_in_the_inbox(visit, llm):
    ask(visit, QUESTION)
    search_log.flush()
    assert not FailedQuery.objects.exists()


def test_of_an_assistant_that_keeps_no_text_nothing_comes_into_the_inbox(visit, owner, llm):
    assistant_update(principal(owner), visit.assistant, keeps_text=False)
    llm.always("chat", Reply("NO_ANSWER"))
    ask(visit, QUESTION)
    search_log.flush()
    assert not FailedQuery.objects.exists()
