"""What a curator corrects of one chunk wherever a page shows it: its text, and the questions that it is found by."""

from collections.abc import Iterable
from typing import cast

from django.dispatch import Signal
from django.utils.translation import gettext as _

from kb.access.models import Principal
from kb.base.errors import Rejected, found_in, not_editable
from kb.base.text import storable
from kb.content.models import Chunk
from kb.ingest.services.chunks import QUESTION_CHARACTERS, chunk_gone, chunk_update, has_text_of

# Sent with `principal`, `chunk` and the `questions` that it answers from now on; a receiver returns what `checked_again` does.
question_answered = Signal()


def checked_again(principal: Principal, chunk: Chunk, questions: Iterable[str]) -> list[tuple[bool, str]]:
    """What becomes of questions that waited for an answer, once a chunk has it: whether it is found now, and a sentence."""
    answers = question_answered.send(Chunk, principal=principal, chunk=chunk, questions=[*questions])
    return [each for _receiver, found in answers for each in cast("list[tuple[bool, str]]", found)]


def text_change(principal: Principal, *, chunk_id: int, text: str, shown: str) -> Chunk:
    """Gives a chunk another text, where it still has the one with the hash `shown`.

    Raises NotVisible, NotAllowed, and as `chunk_update`.
    """
    chunk = _editable(principal, chunk_id)
    chunk_update(chunk, text=text, enabled=chunk.enabled, require=has_text_of(shown))
    return chunk


def questions_add(principal: Principal, *, chunk_id: int, questions: Iterable[str]) -> Chunk:
    """Has a chunk found by questions that it answers, too; those that it has already, and blank ones, are left out.

    Raises NotVisible, NotAllowed, Rejected where none can be used or one is too long, and as `chunk_update`.
    """
    chunk = _editable(principal, chunk_id)
    new = [usable_question(each) for each in questions if each.strip()] or [usable_question("")]
    chunk_update(chunk, text=chunk.text, enabled=chunk.enabled, questions=[*chunk.questions, *new])
    return chunk


def usable_question(text: str) -> str:
    """A question as it is stored: one line; raises Rejected."""
    question = " ".join(storable(text).split())
    if not 0 < len(question) <= QUESTION_CHARACTERS:
        message = _("Write a question of 1 to %(most)s characters.")
        raise Rejected("unusable_question", message, most=QUESTION_CHARACTERS)
    return question


def _editable(principal: Principal, chunk_id: int) -> Chunk:
    rows = Chunk.objects.visible_to(principal).select_related("document", "knowledge_base__profile")
    chunk: Chunk = found_in(rows.filter(pk=chunk_id), chunk_gone())
    if not Chunk.objects.editable_by(principal).filter(pk=chunk_id).exists():
        raise not_editable()
    return chunk
