import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from kb.answers.services.conversations import (
    HISTORY_MESSAGES,
    HISTORY_TOKENS,
    MESSAGE_CHARACTERS,
    conversation_get,
    conversation_history,
    conversation_overview,
    turn_begin,
    turn_end,
)
from kb.base.errors import NotVisible, Rejected
from kb.models import Conversation, Message
from kb.tasks import purge_search_log
from retrieval.characters import estimate_tokens
from tests.factories import make_kb, make_user, principal

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb()


@pytest.fixture
def caller(kb):
    return principal(kb.owner)


@pytest.fixture
def begin(kb):
    def call(question, conversation=None, instead_of=None):
        return turn_begin(
            owner=kb.owner,
            conversation=conversation,
            knowledge_base_ids=[kb.pk],
            question=question,
            trace_id=uuid.uuid4(),
            instead_of=instead_of,
        )

    return call


@pytest.fixture
def add(begin):
    def call(question, answer="An answer.", conversation=None):
        made = begin(question, conversation)
        assert turn_end(made.pk, Message.Status.DONE, text=answer)
        return Conversation.objects.get(pk=made.conversation_id)

    return call


def test_a_conversation_is_called_by_its_first_question(add):
    conversation = add("What is\n  a heater?")
    assert add("And a boiler?", conversation=conversation).title == "What is a heater?"


def test_a_long_question_makes_a_short_title(add):
    title = add("word " * 100).title
    assert len(title) <= 80
    assert title.endswith("…")


def test_the_history_is_the_last_turns_oldest_first(add):
    conversation = add("question 0", "answer 0")
    for number in range(1, HISTORY_MESSAGES):
        add(f"question {number}", f"answer {number}", conversation)
    history = conversation_history(conversation)
    assert len(history) == HISTORY_MESSAGES
    last = HISTORY_MESSAGES - 1
    assert [(turn.role, turn.text) for turn in history[-2:]] == [
        ("user", f"question {last}"),
        ("assistant", f"answer {last}"),
    ]
    assert history[0].role == "user"


def test_long_messages_are_cut_in_the_history(add):
    history = conversation_history(add("word " * 10_000, "字" * 10_000))
    assert all(0 < len(turn.text) <= MESSAGE_CHARACTERS for turn in history)


def test_the_history_holds_no_more_tokens_than_a_prompt_can_bear(add):
    conversation = add("问" * 900, "答" * 900)
    for _ in range(3):
        add("问" * 900, "答" * 900, conversation)
    history = conversation_history(conversation)
    assert len(history) == 2
    assert sum(estimate_tokens(turn.text) for turn in history) <= HISTORY_TOKENS


def test_what_was_replaced_or_is_being_written_is_no_history(add, begin):
    conversation = add("first", "one")
    add("second", "two", conversation)
    begin("third", conversation, instead_of=conversation.messages.last().pk)
    assert [turn.text for turn in conversation_history(conversation)] == ["first", "one", "third"]


def test_the_second_of_two_who_write_the_same_answer_again_is_refused(add, begin):
    conversation = add("first", "one")
    add("second", "two", conversation)
    last = conversation.messages.last().pk
    again = begin("second again", conversation, instead_of=last)
    turn_end(again.pk, Message.Status.DONE, text="other")
    with pytest.raises(Rejected):
        begin("second once more", conversation, instead_of=last)
    shown = conversation.messages.filter(is_replaced=False)
    assert [each.text for each in shown] == ["first", "one", "second again", "other"]


def test_a_turn_ends_once(begin):
    made = begin("question")
    assert turn_end(made.pk, Message.Status.STOPPED, text="one")
    assert not turn_end(made.pk, Message.Status.DONE, text="other")
    made.refresh_from_db()
    assert (made.status, made.text) == ("stopped", "one")


def test_a_new_turn_moves_a_conversation_to_the_front(add, caller):
    first, second = add("first"), add("second")
    assert list(conversation_overview(caller)) == [second, first]
    add("first again", conversation=first)
    assert list(conversation_overview(caller)) == [first, second]


def test_a_conversation_belongs_to_its_user_alone(add, kb):
    conversation = add("question")
    for other in (
        principal(make_user()),
        principal(make_user(superuser=True)),
        principal(kb.owner, kb_ids=frozenset()),
    ):
        assert not conversation_overview(other).exists()
        with pytest.raises(NotVisible):
            conversation_get(other, conversation.pk)


def test_a_conversation_that_does_not_exist_is_not_there(caller):
    with pytest.raises(NotVisible):
        conversation_get(caller, uuid.uuid4())


def test_an_answer_whose_process_was_killed_is_broken(begin):
    killed, written = begin("Old?"), begin("New?")
    Message.objects.filter(pk=killed.pk).update(created_at=timezone.now() - timedelta(hours=2))
    purge_search_log()
    assert [Message.objects.get(pk=each.pk).status for each in (killed, written)] == ["broken", "writing"]
