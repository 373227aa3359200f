"""What a curator did, where a document's text is cut otherwise: edits, questions, keywords, and what is switched off."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kb.content.models.documents import Chunk
from kb.ingest.chunkers.drafts import hash_content
from kb.ingest.chunkers.matching import edited_part, holders

SWITCHED_OFF_SHARE = 0.8
"""A chunk that takes in chunks which were switched off is switched off too where they are so much of it."""


@dataclass(frozen=True, slots=True)
class Survival:
    """What becomes of the chunks that a document has.

    Attributes:
        kept: stay as rows, with their indexes.
        new: are written.
        gone: their text is in no chunk of its own any more.
        edits_kept: of the texts that a curator had changed.
        disabled_kept: of the chunks that were switched off.
    """

    kept: int = 0
    new: int = 0
    gone: int = 0
    edits: int = 0
    edits_kept: int = 0
    disabled: int = 0
    disabled_kept: int = 0


def carry_over(lost: Sequence[Chunk], fresh: Sequence[Chunk]) -> Survival:
    """Gives new chunks what a curator did to those that go, and counts where that was possible."""
    if not any(map(is_touched, lost)):
        return Survival(new=len(fresh))
    cut = [chunk.cut_text or chunk.text for chunk in lost]
    texts = [chunk.text for chunk in fresh]
    inside: dict[int, list[int]] = defaultdict(list)
    for position, holder in enumerate(holders(cut, texts)):
        if holder is not None:
            inside[holder].append(position)
    parts: dict[int, list[int]] = defaultdict(list)
    for position, holder in enumerate(holders(texts, cut)):
        if holder is not None and position not in inside:
            parts[holder].append(position)
    for position, members in inside.items():
        _take_in(fresh[position], [lost[each] for each in members])
    for position, members in parts.items():
        _share_out(lost[position], [fresh[each] for each in members])
    carried = {each for members in inside.values() for each in members}.union(parts)
    off = {each for position, members in inside.items() if not fresh[position].enabled for each in members}.union(parts)
    return Survival(
        new=len(fresh),
        edits_kept=sum(bool(lost[each].cut_text) for each in carried),
        disabled_kept=sum(not lost[each].enabled for each in off),
    )


def is_touched(chunk: Chunk) -> bool:
    return bool(chunk.cut_text or chunk.own_questions or chunk.own_keywords or not chunk.enabled)


def _take_in(whole: Chunk, members: Sequence[Chunk]) -> None:
    """A larger chunk has the edits, questions and keywords of those that it holds."""
    text = whole.text
    for member in members:
        if member.cut_text:
            whole.text = whole.text.replace(member.cut_text, member.text, 1)
        if member.own_questions:
            whole.questions = list(dict.fromkeys([*whole.questions, *member.questions]))
            whole.own_questions = True
        if member.own_keywords:
            whole.keywords = list(dict.fromkeys([*whole.keywords, *member.keywords]))
            whole.own_keywords = True
    _note_edit(whole, text)
    off = sum(len(member.cut_text or member.text) for member in members if not member.enabled)
    if off >= SWITCHED_OFF_SHARE * len(text):
        whole.enabled = False


def _share_out(whole: Chunk, members: Sequence[Chunk]) -> None:
    """Smaller chunks have their part of the edit, and the questions and keywords that suit them."""
    for member in members:
        text = member.text
        if whole.cut_text:
            edited = edited_part(whole.cut_text, whole.text, text)
            # The curator has deleted all of it: it stays, unseen, since a chunk needs text.
            member.text, member.enabled = edited or text, bool(edited)
            _note_edit(member, text)
        member.enabled = member.enabled and whole.enabled
        if whole.own_keywords:
            member.keywords = [word for word in whole.keywords if word in member.text]
            member.own_keywords = True
    if whole.own_questions:
        share_questions(whole, members)


def share_questions(whole: Chunk, members: Sequence[Chunk]) -> None:
    """Gives each question of a chunk to that of its parts which has most in common with it."""
    for question in whole.questions:
        best = max(members, key=lambda member: len(_bigrams(question) & _bigrams(member.text)))
        best.questions = list(dict.fromkeys([*best.questions, question]))
        best.own_questions = whole.own_questions


def _note_edit(chunk: Chunk, text: str) -> None:
    if chunk.text != text:
        chunk.cut_text, chunk.content_hash = text, hash_content(chunk.text)


def _bigrams(text: str) -> set[str]:
    return {text[place : place + 2] for place in range(len(text) - 1)}
