"""Conversations, whose answers are stored from when they begin to be written, and what a prompt reads of them."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Count, QuerySet
from django.dispatch import Signal
from django.utils.translation import gettext as _

from kb.access.models import Principal, User
from kb.answers.models import Conversation, Message
from kb.answers.selectors import model_failure
from kb.base.errors import Rejected, found_in
from kb.base.text import storable
from retrieval.answer import NO_ANSWER
from retrieval.characters import estimate_tokens
from retrieval.packing import shorten
from retrieval.types import Turn

# Sent with `message` and `value`: its reader said what they think of an answer.
message_judged = Signal()

# Of the newest messages those that together hold so many tokens go into a prompt; of one at most a half of them.
HISTORY_MESSAGES = 20
HISTORY_TOKENS = 2_000
MESSAGE_CHARACTERS = 1_000
TITLE_CHARACTERS = 80
FEEDBACK_CHARACTERS = 500


def conversation_overview(principal: Principal) -> QuerySet[Any]:
    """The principal's conversations with `message_count`, the one continued last first."""
    rows = Conversation.objects.visible_to(principal)
    return rows.annotate(message_count=Count("messages")).order_by("-updated_at", "pk")


def conversation_get(principal: Principal, conversation_id: UUID) -> Conversation:
    """A conversation of the principal's own; NotVisible also where one of its knowledge bases is not visible."""
    rows = Conversation.objects.visible_to(principal).filter(pk=conversation_id)
    return found_in(rows, _("There is no such conversation."))


def conversation_of_visitor(visitor_id: UUID, conversation_id: UUID) -> Conversation:
    """A visitor's own conversation with an assistant; raises NotVisible."""
    rows = Conversation.objects.filter(pk=conversation_id, visitor=visitor_id)
    return found_in(rows, _("There is no such conversation."))


def conversation_rename(conversation: Conversation, title: str) -> None:
    """Gives a conversation another name; its place among the others stays."""
    conversation.title = title_of(title)
    conversation.save(update_fields=["title"])


def message_judge(message: Message, value: int | None, text: str = "") -> None:
    """What its reader thinks of an answer: 1, -1, or None for nothing any more, with what they say of it."""
    kept = storable(text).strip()[:FEEDBACK_CHARACTERS] if value is not None else ""
    Message.objects.filter(pk=message.pk).update(feedback=value, feedback_text=kept)
    message_judged.send_robust(Message, message=message, value=value)


def title_of(question: str) -> str:
    return shorten(" ".join(storable(question).split()), TITLE_CHARACTERS)


def require_last(conversation: Conversation, message_id: int) -> None:
    """Raises Rejected unless this is the last answer of a conversation, and written."""
    last = conversation.messages.filter(is_replaced=False).order_by("-pk").first()
    if last is None or last.pk != message_id or last.status == Message.Status.WRITING:
        raise Rejected(
            "not_the_last_answer", _("Only the last answer can be written again: load the page again to see it.")
        )


def conversation_history(conversation: Conversation, instead_of: int | None = None) -> list[Turn]:
    """The last turns that fit into HISTORY_TOKENS, oldest first; without the answer of that id and its question.

    Where a model has not answered, it does not read the sentence or the passages that stood in for an answer as its own
    words.
    """

    def turn(message: Message) -> Turn:
        is_answered = message.hit is not False and not model_failure(message.degraded)
        return Turn(message.role, message.text if is_answered else NO_ANSWER)

    shown = conversation.messages.filter(is_replaced=False).exclude(status=Message.Status.WRITING)
    last = shown.order_by("-pk")[2 * (instead_of is not None) :][:HISTORY_MESSAGES]
    return packed_history(list(map(turn, last))[::-1])


def packed_history(turns: Sequence[Turn]) -> list[Turn]:
    """The last of these turns that fit into HISTORY_TOKENS, long ones shortened; oldest first, as they are given."""
    packed: list[Turn] = []
    left = HISTORY_TOKENS
    for each in turns[-HISTORY_MESSAGES:][::-1]:
        turn = Turn(each.role, shorten(each.text, MESSAGE_CHARACTERS))
        left -= estimate_tokens(turn.text)
        if left < 0:
            break
        packed.append(turn)
    return packed[::-1]


def turn_begin(
    *,
    owner: User | UUID,
    conversation: Conversation | None,
    knowledge_base_ids: Sequence[int],
    question: str,
    version_id: int | None = None,
    trace_id: UUID,
    instead_of: int | None = None,
    **found: Any,
) -> Message | None:
    """Stores a question and that its answer is being written, in a conversation or a new one over knowledge bases.

    `owner` is a user, or the id of a visitor of an assistant; `found` are fields of the answer that the search gave. The
    answer `instead_of` which it is and its question are put aside: no page and no prompt holds them any more. Returns the
    answer; None where the conversation was deleted meanwhile, and nothing was stored. Raises Rejected where `instead_of`
    is no longer its last answer.
    """
    question = storable(question)
    with transaction.atomic():
        if conversation is None:
            of = {"user": owner} if isinstance(owner, User) else {"visitor_id": owner}
            conversation = Conversation.objects.create(
                **of, knowledge_base_ids=[*knowledge_base_ids], title=title_of(question)
            )
        else:
            conversation = Conversation.objects.select_for_update().filter(pk=conversation.pk).first()
            if conversation is None:
                return None
            conversation.save(update_fields=["updated_at"])
        if instead_of is not None:
            require_last(conversation, instead_of)  # again, now that nobody else changes the conversation
            replaced = conversation.messages.filter(pk__lte=instead_of, is_replaced=False).order_by("-pk").values("pk")
            conversation.messages.filter(pk__in=list(replaced.values_list("pk", flat=True)[:2])).update(
                is_replaced=True
            )
        conversation.messages.create(role=Message.Role.USER, text=question)
        return conversation.messages.create(
            role=Message.Role.ASSISTANT,
            text="",
            status=Message.Status.WRITING,
            version_id=version_id,
            trace_id=trace_id,
            **found,
        )


def turn_end(message_id: int, status: Message.Status, **fields: Any) -> bool:
    """Stores an answer that was being written; False where its conversation was deleted meanwhile, or it has ended already.

    One that was taken for broken off, and was not, is stored all the same. One that its reader has stopped stays so: whoever
    writes it says once more how far it was.
    """
    more = {Message.Status.BROKEN: set(), Message.Status.STOPPED: {Message.Status.BROKEN, Message.Status.STOPPED}}
    open_ones = {Message.Status.WRITING, *more.get(status, {Message.Status.BROKEN})}
    rows = Message.objects.filter(pk=message_id, status__in=open_ones)
    return bool(rows.update(status=status, **fields))
