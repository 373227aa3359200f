import pytest

from kb.models import Conversation, Message
from tests.factories import make_kb, make_member, make_user, principal

pytestmark = pytest.mark.django_db


def make_conversation(user, *bases):
    return Conversation.objects.create(user=user, knowledge_base_ids=[kb.pk for kb in bases])


def visible(user, **scope):
    return set(Conversation.objects.visible_to(principal(user, **scope)))


def test_a_user_sees_the_own_conversations_only():
    kb = make_kb()
    member = make_member(kb)
    mine = make_conversation(kb.owner, kb)
    make_conversation(member, kb)

    assert visible(kb.owner) == {mine}


def test_a_superuser_sees_no_conversation_of_others():
    kb = make_kb()
    make_conversation(kb.owner, kb)

    assert visible(make_user(superuser=True)) == set()


def test_a_conversation_goes_with_the_right_to_one_of_its_knowledge_bases():
    kb, other = make_kb(), make_kb()
    user = make_member(kb)
    make_member(other, user=user)
    conversation = make_conversation(user, kb, other)
    assert visible(user) == {conversation}

    other.memberships.all().delete()

    assert visible(user) == set()


def test_an_api_key_opens_conversations_within_its_scope_only():
    kb = make_kb()
    other = make_kb(kb.owner)
    narrow = make_conversation(kb.owner, kb)
    make_conversation(kb.owner, kb, other)

    assert visible(kb.owner, kb_ids=frozenset([kb.pk])) == {narrow}


def test_an_inactive_user_sees_nothing():
    kb = make_kb()
    make_conversation(kb.owner, kb)
    kb.owner.is_active = False

    assert visible(kb.owner) == set()


def test_messages_come_in_the_order_they_were_written():
    kb = make_kb()
    conversation = make_conversation(kb.owner, kb)
    for role, text in [("user", "one"), ("assistant", "two"), ("user", "three")]:
        Message.objects.create(conversation=conversation, role=role, text=text)

    assert [message.text for message in conversation.messages.all()] == ["one", "two", "three"]
