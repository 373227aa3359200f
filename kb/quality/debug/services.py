"""Which searches have found a chunk: from the search log, by its index over the results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import F

from kb.access.models import Principal
from kb.content.models import Chunk
from kb.search.models import ResultIds, SearchLog

MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class FoundBy:
    """One search that has found a chunk.

    Attributes:
        query: blank where the installation keeps queries out of the log.
        rank: among the results, from 1.
        score: of the profile's scale.
        asked: what the search was asked beside the query, as its trace keeps it.
    """

    trace_id: UUID
    query: str
    rank: int
    score: float | None
    profile: str
    profile_version: int
    created_at: datetime
    knowledge_base_ids: Sequence[int]
    asked: Mapping[str, Any] | None


def searches_that_found(principal: Principal, chunk: Chunk, *, most: int = MOST_SHOWN) -> list[FoundBy]:
    """The newest searches among whose results the chunk was, newest first.

    A caller sees those of whose knowledge bases every one is visible.
    """
    rows = (
        SearchLog.objects.visible_to(principal)
        .alias(result_ids=ResultIds("trace"))
        .filter(result_ids__contains=[chunk.pk])
        .annotate(results=F("trace__results"), asked=F("trace__request"))
        .order_by("-created_at", "pk")
        .values("pk", "query", "profile", "profile_version", "created_at", "knowledge_base_ids", "results", "asked")
    )
    return [_found_by(chunk.pk, row) for row in rows[:most]]


def _found_by(chunk_id: int, row: Mapping[str, Any]) -> FoundBy:
    ranked = enumerate(row["results"], start=1)
    rank, score = next((rank, each["score"]) for rank, each in ranked if each["chunk_id"] == chunk_id)
    return FoundBy(
        trace_id=row["pk"],
        query=row["query"],
        rank=rank,
        score=score,
        profile=row["profile"],
        profile_version=row["profile_version"],
        created_at=row["created_at"],
        knowledge_base_ids=row["knowledge_base_ids"],
        asked=row["asked"],
    )
