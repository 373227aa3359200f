"""Conversations: questions and answers of one user over the same knowledge bases."""

from collections.abc import Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from django.db import transaction
from django.db.models import Count, QuerySet
from django.utils.translation import gettext as _

from kb.access.models import Principal, User
from kb.answers.models import Conversation, Message
from kb.base.errors import found_in
from kb.base.text import storable
from retrieval.answer import NO_ANSWER
from retrieval.packing import shorten
from retrieval.types import Turn

HISTORY_MESSAGES = 10
HISTORY_CHARACTERS = 1_000
"""Of each message."""
TITLE_CHARACTERS = 80


def conversation_overview(principal: Principal) -> QuerySet[Any]:
    """The principal's conversations with `message_count`, the one continued last first."""
    rows = Conversation.objects.visible_to(principal)
    return rows.annotate(message_count=Count("messages")).order_by("-updated_at", "pk")


def conversation_get(principal: Principal, conversation_id: UUID) -> Conversation:
    """A conversation of the principal's own.

    Raises:
        NotVisible: it does not exist, is another user's, or holds a knowledge base that is out of the principal's sight.
    """
    rows = Conversation.objects.visible_to(principal).filter(pk=conversation_id)
    return found_in(rows, _("There is no such conversation."))


def conversation_history(conversation: Conversation) -> list[Turn]:
    """The last turns, oldest first, each cut to what a prompt can bear.

    Where a model has not answered, it does not read the sentence or the passages that stood in for an answer as its own words.
    """
    newest = conversation.messages.order_by("-pk")[:HISTORY_MESSAGES]
    return [Turn(each.role, shorten(_as_said(each), HISTORY_CHARACTERS)) for each in reversed(newest)]


def _as_said(message: Message) -> str:
    is_answered = message.hit is not False and not any(each["stage"] == "answer" for each in message.degraded)
    return message.text if is_answered else NO_ANSWER


def turn_add(
    *,
    principal: Principal,
    conversation: Conversation | None,
    knowledge_base_ids: Sequence[int],
    question: str,
    answer: Mapping[str, Any],
) -> UUID | None:
    """Keeps a question and its answer.

    Args:
        principal: who asked.
        conversation: which they continue; None: they begin one.
        knowledge_base_ids: of a new conversation.
        question: as asked.
        answer: fields of Message.

    Returns:
        The conversation's id; None where it was deleted meanwhile, and nothing was kept.
    """
    question = storable(question)
    with transaction.atomic():
        if conversation is None:
            title = shorten(" ".join(question.split()), TITLE_CHARACTERS)
            user = cast(User, principal.user)  # an anonymous one finds nothing to ask
            conversation = Conversation.objects.create(user=user, knowledge_base_ids=[*knowledge_base_ids], title=title)
        else:
            conversation = Conversation.objects.select_for_update().filter(pk=conversation.pk).first()
            if conversation is None:
                return None
            conversation.save(update_fields=["updated_at"])
        conversation.messages.create(role=Message.Role.USER, text=question)
        conversation.messages.create(role=Message.Role.ASSISTANT, **answer)
    return conversation.pk
