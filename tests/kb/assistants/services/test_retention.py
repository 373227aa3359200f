import dataclasses
import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from kb.assistants.services import retention
from kb.assistants.services.asking import Asked, ask, stream_ask
from kb.assistants.services.assistants import assistant_update
from kb.assistants.services.entry import Visit
from kb.models import AssistantUse, Conversation, FailedQuery, Message, SearchLog, Visitor
from kb.search.services import search_log
from kb.tasks import purge_search_log
from tests.factories import principal
from tests.kb.assistants.making import make_assistant
from tests.servers import Reply

pytestmark = pytest.mark.django_db

QUESTION = Asked(question="How long does the warranty last?")


@pytest.fixture
def asked(visit, llm):
    found = ask(visit, QUESTION)
    search_log.flush()
    return found


def age(days):
    then = timezone.now() - timedelta(days=days)
    Conversation.objects.update(updated_at=then)
    SearchLog.objects.update(created_at=then)
    Visitor.objects.update(created_at=then)
    AssistantUse.objects.update(day=then.date())


@pytest.mark.parametrize(("days", "kept"), [(8, False), (6, True)])
def test_what_was_asked_is_kept_as_long_as_its_assistant_says(asked, visit, owner, days, kept):
    assistant_update(principal(owner), visit.assistant, retention_days=7)
    age(days)
    purge_search_log()
    for model in (Conversation, Message, SearchLog, Visitor):
        assert model.objects.exists() is kept, model


def test_no_days_keep_it_for_good(asked, visit, owner):
    assistant_update(principal(owner), visit.assistant, retention_days=0)
    age(5_000)
    retention.assistants_purge()
    assert Conversation.objects.exists()
    assert SearchLog.objects.exists()


def test_it_goes_on_until_all_batches_are_gone(asked, visit, owner, llm, monkeypatch):
    monkeypatch.setattr("kb.base.db.transactions.BATCH", 1)
    for _ in range(2):
        ask(visit, QUESTION)
    assistant_update(principal(owner), visit.assistant, retention_days=7)
    age(8)
    retention.assistants_purge()
    assert not Conversation.objects.exists()


def test_counts_of_visitors_go_and_those_of_all_stay(asked):
    age(3)
    retention.assistants_purge()
    assert list(AssistantUse.objects.values_list("whose", flat=True)) == [""]


def test_a_conversation_goes_with_its_searches(asked, visit, llm):
    kept = ask(visit, QUESTION)
    retention.conversation_delete(Conversation.objects.get(pk=asked.conversation_id))
    search_log.flush()
    assert SearchLog.objects.get().pk == kept.trace_id
    assert Conversation.objects.get().pk == kept.conversation_id


@pytest.mark.parametrize(
    ("asked_by_another", "state", "is_left"), [(False, "open", False), (True, "open", True), (False, "resolved", False)]
)
def test_the_words_of_a_failed_query_go_with_the_last_conversation_that_has_them(
    visit, llm, asked_by_another, state, is_left
):
    llm.always("chat", Reply("NO_ANSWER"))
    asked = ask(visit, QUESTION)
    if asked_by_another:
        again = dataclasses.replace(QUESTION, question=f" {QUESTION.question.upper()}")
        ask(dataclasses.replace(visit, visitor_id=uuid.uuid4()), again)
    FailedQuery.objects.update(state=state)
    retention.conversation_delete(Conversation.objects.get(pk=asked.conversation_id))
    assert FailedQuery.objects.exists() is is_left


def test_the_words_of_a_failed_query_go_with_the_time_of_its_assistant(visit, owner, llm):
    llm.always("chat", Reply("NO_ANSWER"))
    ask(visit, QUESTION)
    search_log.flush()
    assistant_update(principal(owner), visit.assistant, retention_days=7)
    age(6)
    retention.assistants_purge()
    assert FailedQuery.objects.exists()
    age(8)
    retention.assistants_purge()
    assert not FailedQuery.objects.exists()


def test_a_question_whose_conversation_is_deleted_while_it_is_answered_comes_to_no_inbox(visit, llm):
    llm.always("chat", Reply("NO_ANSWER"))
    events = stream_ask(visit, QUESTION)
    assert next(events).name == "sources"
    retention.conversation_delete(Conversation.objects.get())
    assert [event.name for event in events][-1] == "done"
    search_log.flush()
    assert not FailedQuery.objects.exists()


def test_everything_of_one_visitor_is_deleted_and_nothing_of_another(asked, visit, owner, kb, llm):
    other = Visit(make_assistant(owner, kb, name="Other", access="public"), visit.visitor_id.__class__(int=7))
    kept = ask(other, QUESTION)
    search_log.flush()
    retention.visitor_delete(Visitor.objects.get(pk=visit.visitor_id))
    assert Visitor.objects.get().pk == other.visitor_id
    assert Message.objects.filter(role="assistant").get().pk == kept.message_id
    assert SearchLog.objects.get().pk == kept.trace_id
