import uuid

import pytest

from kb.answers.services.answers import (
    HISTORY_CHARACTERS,
    HISTORY_MESSAGES,
    conversation_get,
    conversation_history,
    conversation_overview,
    turn_add,
)
from kb.base.errors import NotVisible
from kb.models import Conversation
from tests.factories import make_kb, make_user, principal

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb()


@pytest.fixture
def caller(kb):
    return principal(kb.owner)


@pytest.fixture
def add(kb, caller):
    def call(question, answer="An answer.", conversation=None):
        made = turn_add(
            principal=caller,
            conversation=conversation,
            knowledge_base_ids=[kb.pk],
            question=question,
            answer={"text": answer},
        )
        return Conversation.objects.get(pk=made)

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
    assert all(0 < len(turn.text) <= HISTORY_CHARACTERS for turn in history)


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
