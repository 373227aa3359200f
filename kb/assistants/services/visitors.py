"""What a visitor has asked, and what the sources of an answer lead to now."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from kb.access.models import Principal
from kb.answers.models import Conversation, Message
from kb.answers.selectors import questions_of
from kb.assistants.services.entry import Visit
from kb.assistants.settings import AssistantSettings
from kb.base.errors import found_in
from kb.content.models import Chunk, Document
from retrieval.answer import check_citations

NEAR = "n"


def conversations_of(visit: Visit) -> QuerySet[Conversation]:
    """A visitor's own, the one continued last first; those of which no text is kept are none."""
    rows = Conversation.objects.filter(visitor=visit.visitor_id, visitor__assistant=visit.assistant)
    return rows.exclude(title="").order_by("-updated_at", "pk")


def own_answer(visit: Visit, message_id: int) -> Message:
    """An answer to a visitor's own question; raises NotVisible for any other message."""
    of_visitor = {"conversation__visitor": visit.visitor_id, "conversation__visitor__assistant": visit.assistant}
    rows = Message.objects.filter(pk=message_id, role=Message.Role.ASSISTANT, **of_visitor)
    return found_in(rows, _("There is no such answer."))


def cited_chunk(reader: Principal, message: Message, place: str) -> Chunk:
    """The chunk of a source of an answer ("3") or of a near miss ("n1"), as it is now.

    Raises NotVisible where the answer has none there, and where the reader may not see it any more, or it was deleted or
    switched off.
    """
    is_near = place.startswith(NEAR)
    stored: Iterable[Mapping[str, Any]] = message.near_misses if is_near else message.sources
    chunk_ids = [each["chunk_id"] for each in stored if str(each["number"]) == place.removeprefix(NEAR)]
    rows = Chunk.objects.visible_to(reader).filter(enabled=True).select_related("document__knowledge_base")
    otherwise = _("The document has changed since: this is what the answer rested on.")
    return cast(Chunk, found_in(rows.filter(pk__in=[each for each in chunk_ids if each is not None]), otherwise))


def suggestions(reader: Principal, settings: AssistantSettings) -> Sequence[str]:
    """What can be asked first: the assistant's own questions, else some of its knowledge bases."""
    if settings.suggested_questions:
        return settings.suggested_questions
    documents = Document.objects.visible_to(reader)
    return questions_of(documents, from_names=settings.shows != "nothing")


def follow_ups(reader: Principal, settings: AssistantSettings, message: Message) -> list[str]:
    """Questions that the documents which an answer cites answer too, without those of its conversation."""
    if not settings.follow_ups or not message.hit or message.status != Message.Status.DONE:
        return []
    asked = Message.objects.filter(conversation=message.conversation_id, role=Message.Role.USER).values_list(
        "text", flat=True
    )
    numbers = check_citations(message.text, [each["number"] for each in message.sources]).cited
    document_ids = {each["document_id"] for each in message.sources if each["number"] in numbers} - {None}
    documents = Document.objects.visible_to(reader).filter(pk__in=document_ids)
    from_names = settings.shows != "nothing"
    return questions_of(documents, asked_already=list(asked), from_names=from_names) if document_ids else []
