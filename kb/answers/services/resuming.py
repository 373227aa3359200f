"""Answers resumed by a reader who has lost their stream."""

import time
from collections.abc import Generator
from contextlib import suppress
from typing import Final

from kb.answers.models import Message
from kb.answers.selectors import stored_answer
from kb.answers.services import progress
from kb.answers.services.answers import AnswerEvent, require_room
from kb.answers.services.conversations import turn_end
from kb.base.db.transactions import give_connection_back

LOOK_SECONDS: Final = 0.5


def text_so_far(message: Message, known: str = "") -> str:
    """What is written of an answer that is being written, at least what is `known`; the message is read again.

    One of which nothing was heard for too long, because its process was killed, is `broken` from now on.
    """
    noted = progress.noted(message.pk)
    message.refresh_from_db()
    text = (noted.text if noted else "") or known
    if message.status == Message.Status.WRITING and _is_lost(message, noted):
        turn_end(message.pk, Message.Status.BROKEN, text=text if _keeps_text(message) else "")
        progress.forget(message.pk)
        message.refresh_from_db()
    return message.text or text


def answer_stop(message: Message) -> None:
    """Ends an answer where it is, at once also while its model says nothing; whoever writes it stops at the next word."""
    progress.stop(message.pk)
    if noted := progress.noted(message.pk):  # else Redis is away, and it goes on
        turn_end(message.pk, Message.Status.STOPPED, text=noted.text if _keeps_text(message) else "")


def lost_answers_end() -> None:
    """Marks as broken off what nobody writes any more, with the text that is noted for a few hours."""
    for message in Message.objects.filter(status=Message.Status.WRITING):
        with suppress(Message.DoesNotExist):  # deleted meanwhile
            text_so_far(message)


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
        else:
            yield AnswerEvent("delta", {"text": ""})  # by which the server notices that its reader has left
        give_connection_back()
        time.sleep(LOOK_SECONDS)
    data = stored_answer(message) | {"answer": message.text or text}
    if not message.text and message.status == Message.Status.DONE:
        data["status"] = Message.Status.BROKEN  # none is stored: what came after this text is lost
    yield AnswerEvent("done", data)


def _is_lost(message: Message, noted: progress.Noted | None) -> bool:
    if noted is None:
        return time.time() > message.created_at.timestamp() + progress.longest_silence()
    return noted.silent_s > progress.LOST_SECONDS


def _keeps_text(message: Message) -> bool:
    visitor = message.conversation.visitor
    return visitor is None or visitor.assistant.keeps_text
