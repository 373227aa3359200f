"""What the tools read, as their outputs."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal
from kb.agents.mcp.outputs import (
    AnswerOutput,
    ChunkOutput,
    DegradationOutput,
    DocumentOutput,
    FactOutput,
    KnowledgeBaseOutput,
    KnowledgeBasesOutput,
    PassageOutput,
    SearchOutput,
)
from kb.answers.services.answers import AskRequest, answer
from kb.base.errors import NotVisible, Rejected
from kb.content.models import Chunk, Document
from kb.content.selectors import knowledge_base_overview
from kb.search.services.responses import respond
from kb.search.services.search import SearchRequest
from retrieval.packing import shorten

MOST_KNOWLEDGE_BASES = 20
DESCRIPTION_CHARACTERS = 200


def list_knowledge_bases(principal: Principal, offset: int, limit: int) -> KnowledgeBasesOutput:
    rows = knowledge_base_overview(principal).order_by("pk")
    total = rows.count()
    page = [
        KnowledgeBaseOutput(
            id=kb.pk,
            name=kb.name,
            description=shorten(" ".join(kb.description.split()), DESCRIPTION_CHARACTERS),
            language=kb.language,
            documents=kb.document_count,
            chunks=kb.chunk_count,
            role=kb.role,
        )
        for kb in rows[offset : offset + limit]
    ]
    end = offset + len(page)
    return KnowledgeBasesOutput(knowledge_bases=page, total=total, next_offset=end if page and end < total else None)


def scope_of(principal: Principal, ids: Sequence[int] | None) -> list[int]:
    """The knowledge bases that were named, or else all that the caller owns or has joined.

    Raises:
        NotVisible: there is none.
        Rejected: there are too many to search them all.
    """
    if ids:
        return list(dict.fromkeys(ids))
    joined = KnowledgeBase.objects.joined_by(principal).order_by("pk").values_list("pk", flat=True)
    every = list(joined[: MOST_KNOWLEDGE_BASES + 1])
    if not every:
        message = _(
            "The user of this API key owns no knowledge base and has joined none: name those to search in, accept an "
            "invitation, or use another key."
        )
        raise NotVisible(message)
    if len(every) > MOST_KNOWLEDGE_BASES:
        message = _("The user of this API key has more than %(most)s knowledge bases: name those to search in.")
        raise Rejected("too_many_knowledge_bases", message % {"most": MOST_KNOWLEDGE_BASES})
    return every


def search(principal: Principal, request: SearchRequest) -> SearchOutput:
    found = respond(principal, request).as_dict()
    return SearchOutput(
        query=found["query"],
        passages=_passages(found["results"]),
        facts=_facts(found["facts"]),
        degraded=_degraded(found["degraded"]),
        profile=f"{found['profile']['name']} v{found['profile']['version']}",
        trace_id=found["trace_id"],
    )


def ask(principal: Principal, request: AskRequest) -> AnswerOutput:
    written = answer(principal, request).as_dict()
    return AnswerOutput(
        answer=written["answer"],
        hit=written["hit"],
        confidence=written["confidence"],
        sources=_passages(written["sources"]),
        degraded=_degraded(written["degraded"]),
        model=written["model"],
        trace_id=written["trace_id"],
    )


def read_document(principal: Principal, document_id: int, start: int, limit: int) -> DocumentOutput:
    """A page of a document's chunks as they are searched: what a curator has switched off is not among them.

    Raises:
        NotVisible: the document does not exist for this principal.
    """
    document: Document | None = Document.objects.visible_to(principal).filter(pk=document_id).first()
    if document is None:
        message = _("There is no document with the id %(id)s: take one from the results of a search.")
        raise NotVisible(message % {"id": document_id})
    chunks = Chunk.objects.visible_to(principal).filter(document=document, enabled=True).order_by("position")
    page = list(chunks.filter(position__gte=start)[: limit + 1])
    return DocumentOutput(
        document_id=document.pk,
        knowledge_base_id=document.knowledge_base_id,
        title=document.title,
        source=document.source,
        source_type=document.source_type,
        tags=document.tags,
        metadata=document.metadata,
        status=document.status,
        chunks=[
            ChunkOutput(
                chunk_id=chunk.pk,
                position=chunk.position,
                page=chunk.page,
                headings=chunk.heading_path,
                text=chunk.text,
            )
            for chunk in page[:limit]
        ],
        total_chunks=chunks.count(),
        next_start=page[limit].position if len(page) > limit else None,
    )


def _passages(results: Sequence[Mapping[str, Any]]) -> list[PassageOutput]:
    """Results are numbered by their rank; the sources of an answer have the numbers that it cites."""
    return [PassageOutput.model_validate({"number": rank, **each}) for rank, each in enumerate(results, start=1)]


def _facts(facts: Sequence[Mapping[str, Any]]) -> list[FactOutput]:
    return [FactOutput.model_validate(fact) for fact in facts]


def _degraded(degraded: Sequence[Mapping[str, Any]]) -> list[DegradationOutput]:
    return [DegradationOutput.model_validate(each) for each in degraded]
