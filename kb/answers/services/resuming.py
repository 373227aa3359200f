"""Answers taken up again by a reader who has lost their stream, and what is told of answers that are stored."""

import time
from collections.abc import Generator
from typing import Any, Final

from django.db import connection

from kb.answers.models import Message
from kb.answers.services import progress
from kb.answers.services.answers import AnswerEvent, require_room
from kb.answers.services.conversations import turn_end

LOOK_SECONDS: Final = 0.5


def stored_answer(message: Message) -> dict[str, Any]:
    """What the event `done` told of an answer, as far as its conversation holds it."""
    return {
        "answer": message.text,
        "sources": message.sources,
        "near_misses": message.near_misses,
        "hit": message.hit,
        "confidence": message.confidence,
        "trace_id": message.trace_id and str(message.trace_id),
        "status": message.status,
        "conversation_id": str(message.conversation_id),
        "message_id": message.pk,
        "degraded": message.degraded,
    }


def text_so_far(message: Message, known: str = "") -> str:
    """What is written of an answer that is being written, at least what is `known`; the message is read again.

    One of which nothing was heard for too long, because its process was killed, is `broken` from now on.
    """
    noted = progress.noted(message.pk)
    message.refresh_from_db()
    text = (noted.text if noted else "") or known
    if message.status == Message.Status.WRITING and _is_lost(message, noted):
        turn_end(message.pk, Message.Status.BROKEN, text=text if _keeps_text(message) else "")
        message.refresh_from_db()
    return message.text or text


def resume_answer(message: Message, seen: int = 0) -> Generator[AnswerEvent, None, None]:
    """The rest of an answer whose reader has `seen` characters of it, as `stream_answer` has it.

    Of one that is stored already only the event `done`. Raises Rejected where this process streams as many answers as it may.
    """
    require_room()
    return _rest(message, seen)


def _rest(message: Message, seen: int) -> Generator[AnswerEvent, None, None]:
    text = ""
    if message.status == Message.Status.WRITING:
        yield AnswerEvent("sources", stored_answer(message))
    while message.status == Message.Status.WRITING:
        text = text_so_far(message, text)
        if message.status != Message.Status.WRITING:
            break
        if len(text) > seen:
            yield AnswerEvent("delta", {"text": text[seen:]})
            seen = len(text)
        if not connection.in_atomic_block:
            connection.close()
        time.sleep(LOOK_SECONDS)
    answer = stored_answer(message)
    yield AnswerEvent(
        "done", answer | {"answer": answer["answer"] or text}
    )  # where no text is kept, what was seen of it


def _is_lost(message: Message, noted: progress.Noted | None) -> bool:
    if noted is None:
        return time.time() > message.created_at.timestamp() + progress.longest_silence()
    return noted.silent_s > progress.LOST_SECONDS


def _keeps_text(message: Message) -> bool:
    visitor = message.conversation.visitor
    return visitor is None or visitor.assistant.keeps_text
