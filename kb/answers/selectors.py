"""Turns of conversations with their answers as they are stored, and questions that a knowledge base can be tried with."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, zip_longest
from typing import Any

from django.db.models import QuerySet

from kb.answers.models import Conversation, Message
from kb.content.models import Chunk, Document

SUGGESTED = 3
_DOCUMENTS, _CHUNKS_OF_EACH = 24, 40
_CHARACTERS = range(2, 61)
# Such as 3.2, 第三章：, （二）, A. and Chapter 4: before a heading.
_NUMBERING = re.compile(
    r"^(?:第[\d一二三四五六七八九十百]+[章节条款部分篇][:：、.\s]*|[(（]?[\d一二三四五六七八九十]+(?:\.\d+)*[)）]?[.、:：)\s]+"
    r"|(?:chapter|section|part|appendix)\s+\w+[:.\s]+|[a-z][.)]\s+)",
    re.IGNORECASE,
)
_SAYS_NOTHING = frozenset(
    {
        "概述",
        "总则",
        "附则",
        "前言",
        "引言",
        "简介",
        "目录",
        "正文",
        "说明",
        "背景",
        "附录",
        "结语",
        "总结",
        "其他",
        "导言",
        "摘要",
        "参考文献",
        "overview",
        "introduction",
        "summary",
        "contents",
        "preface",
        "appendix",
        "conclusion",
        "abstract",
        "notes",
        "other",
        "general",
        "about",
        "references",
        "background",
    }
)
_ENDS = re.compile(r"[?？。.!！:：;；,，]+$")


# -- Turns -----------------------------------------------------------------------------------------------------------
def turns_of(
    conversation: Conversation, *, most: int, before: int | None = None
) -> tuple[list[tuple[Message, Message]], int | None]:
    """The last questions with their answers, oldest first, and the id before which there are more; None: there are none.

    `before` is such an id.
    """
    rows = conversation.messages.filter(is_replaced=False).order_by("-pk")
    if before is not None:
        rows = rows.filter(pk__lt=before)
    stored = list(rows[: 2 * most + 1])
    earlier = stored[2 * most - 1].pk if len(stored) > 2 * most else None
    return paired(stored[2 * most - 1 :: -1]), earlier


def paired(messages: Iterable[Message]) -> list[tuple[Message, Message]]:
    """Questions with their answers, of messages in their order."""
    return [(question, answer) for question, answer in pairwise(messages) if answer.role == Message.Role.ASSISTANT]


def stored_answer(message: Message) -> dict[str, Any]:
    """The data that the event `done` had of an answer, as far as its conversation holds it."""
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


def model_failure(degraded: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The degradation of an answer that no chat model wrote, or none to its end; None: one wrote it."""
    return next((each for each in degraded if each["stage"] == "answer"), None)


# -- Questions to begin with -----------------------------------------------------------------------------------------


def suggested_questions(kb_ids: Iterable[int]) -> list[str]:
    """At most three questions, of different documents where there are several: those of chunks, else headings or titles.

    The newest documents are looked at, in one query that reads each of them by its index.
    """
    return questions_of(Document.objects.filter(knowledge_base__in=kb_ids))


def questions_of(
    documents: QuerySet[Document], *, asked_already: Collection[str] = (), from_names: bool = True
) -> list[str]:
    """The same of these documents, without what was asked already; a document that something was asked of is not named.

    Without `from_names` only questions that chunks have, and nothing of what documents and their parts are called.
    """
    newest = documents.filter(status=Document.Status.READY).order_by("-created_at", "-pk")
    rows = (
        Chunk.objects.filter(document__in=newest.values("pk")[:_DOCUMENTS])
        .filter(position__lt=_CHUNKS_OF_EACH, enabled=True)
        .order_by("document_id", "position")
        .values_list("document_id", "questions", "heading_path", "document__title")
    )
    asked: dict[int, list[str]] = {}
    named: dict[int, list[str]] = {}
    titles: dict[int, str] = {}
    for document_id, questions, headings, title in rows:
        asked.setdefault(document_id, []).extend(questions)
        named.setdefault(document_id, []).extend(headings[-1:])
        titles[document_id] = title
    # Those of one word last, such as “Architecture?”.
    of_headings = sorted(_in_turn([list(map(_as_question, headings)) for headings in named.values()]), key=_is_one_word)
    of_titles = map(_as_question, () if asked_already else titles.values())
    candidates = chain(_in_turn(asked.values()), *((of_headings, of_titles) if from_names else ()))
    known = set(asked_already)
    usable = (each for each in map(str.strip, candidates) if len(each) in _CHARACTERS and each not in known)
    return list(dict.fromkeys(usable))[:SUGGESTED]


def _in_turn(lists: Iterable[Sequence[str]]) -> Iterator[str]:
    """The first of each, then the second of each, and so on."""
    for round_ in zip_longest(*lists, fillvalue=""):
        yield from round_


def _is_one_word(question: str) -> bool:
    """Of a language that puts spaces between its words."""
    return question.isascii() and " " not in question


def _as_question(heading: str) -> str:
    """What one would type to find what stands under a heading; blank where the heading does not say what that is."""
    plain = _NUMBERING.sub("", heading.strip())
    if plain.endswith(("?", "？")):
        return plain
    bare = _ENDS.sub("", plain).strip()
    if bare.lower() in _SAYS_NOTHING or not bare or bare.isdecimal():
        return ""
    return f"{bare}？" if any("\u4e00" <= each <= "\u9fff" for each in bare) else f"{bare}?"
