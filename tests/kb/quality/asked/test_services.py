import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from kb.assistants.services.asking import Asked, ask
from kb.assistants.services.assistants import assistant_update
from kb.assistants.services.entry import Visit
from kb.models import Conversation, Message, Visitor
from kb.quality.asked.services import questions_asked
from tests.factories import principal
from tests.kb.assistants.making import make_assistant

pytestmark = pytest.mark.django_db

WEEK = timedelta(days=7)


@pytest.fixture
def put(assistant):
    """Stores a turn as a visitor would leave it."""

    def call(question, *, hit=True, days=0, visitor=None, **fields):
        visitor = visitor or Visitor.objects.create(assistant=assistant)
        conversation = Conversation.objects.create(visitor=visitor, knowledge_base_ids=[])
        conversation.messages.create(role="user", text=question)
        answer = conversation.messages.create(role="assistant", text="An answer.", hit=hit, **fields)
        Message.objects.filter(pk=answer.pk).update(created_at=timezone.now() - timedelta(days=days))
        return visitor

    return call


def asked(assistant, **options):
    return questions_asked(principal(assistant.publisher), assistant, timezone.now() - WEEK, **options)


def test_questions_of_nearly_the_same_words_are_one(assistant, put):
    for question in ("How long is the warranty?", "how long is the warranty?", "How long is the warranty?"):
        put(question)
    put("Who pays for returns?", hit=False)
    first, second = asked(assistant).clusters
    assert (first.count, first.visitors, first.answered) == (3, 3, 1.0)
    assert first.question == "How long is the warranty?"
    assert (second.question, second.answered) == ("Who pays for returns?", 0.0)


def test_chinese_questions_are_compared_by_their_words(assistant, put, kb):
    for question in ("保修期有多长？", "请问保修期有多长", "保修期是有多长呢？", "怎么退货？"):
        put(question)
    found = asked(assistant).clusters
    assert [each.count for each in found] == [3, 1]


def test_a_cluster_tells_what_readers_said_and_what_it_cost(assistant, put):
    visitor = put("Warranty?", feedback=1, input_tokens=70, output_tokens=5, days=1)
    put("Warranty?", feedback=-1, hit=False, input_tokens=30, output_tokens=1, visitor=visitor)
    [found] = asked(assistant).clusters
    assert (found.count, found.visitors, found.answered, found.helpful, found.unhelpful) == (2, 1, 0.5, 1, 1)
    assert (found.input_tokens, found.output_tokens) == (100, 6)
    assert list(found.by_day.values()) == [1, 1]


def test_what_its_visitor_put_in_other_words_was_asked_too(assistant, put):
    put("Replaced?", is_replaced=True, feedback=-1)
    [found] = asked(assistant).clusters
    assert (found.question, found.count, found.unhelpful) == ("Replaced?", 1, 1)


def test_what_is_old_or_of_another_is_not_there(assistant, owner, kb, put):
    put("Old?", days=8)
    other = make_assistant(owner, kb, name="Other")
    put("Theirs?", visitor=Visitor.objects.create(assistant=other))
    assert asked(assistant).clusters == ()
    assert [each.question for each in asked(other).clusters] == ["Theirs?"]


def test_only_what_had_no_answer(assistant, put):
    put("Warranty?")
    put("Returns?", hit=False)
    assert [each.question for each in asked(assistant, only_unanswered=True).clusters] == ["Returns?"]


def test_where_no_text_is_kept_only_the_number_is_known(assistant, owner, llm):
    assistant_update(principal(owner), assistant, keeps_text=False)
    ask(Visit(assistant, uuid.uuid4()), Asked(question="How long does the warranty last?"))
    found = asked(assistant)
    assert (found.clusters, found.turns, found.unread) == ((), 1, 1)


def test_many_questions_take_one_query_of_turns(assistant, put, django_assert_max_num_queries):
    for number in range(30):
        put(f"Question about thing{number}?")
    with django_assert_max_num_queries(4):
        assert len(asked(assistant).clusters) > 1
