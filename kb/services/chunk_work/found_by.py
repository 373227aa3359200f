"""Which searches have found a chunk: from the search log, by its index over the results."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import F

from kb.models import Chunk, Principal, SearchLog
from kb.models.search import ResultIds

MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class FoundBy:
    """One search that has found a chunk.

    Attributes:
        query: blank where the installation keeps queries out of the log.
        rank: among the results, from 1.
        score: of the profile's scale.
    """

    trace_id: UUID
    query: str
    rank: int
    score: float | None
    profile: str
    profile_version: int
    created_at: datetime


def searches_that_found(principal: Principal, chunk: Chunk, *, most: int = MOST_SHOWN) -> list[FoundBy]:
    """The newest searches among whose results the chunk was, newest first.

    A caller sees those of whose knowledge bases every one is visible.
    """
    rows = (
        SearchLog.objects.visible_to(principal)
        .alias(result_ids=ResultIds("trace"))
        .filter(result_ids__contains=[chunk.pk])
        .annotate(results=F("trace__results"))
        .order_by("-created_at", "pk")
        .values("pk", "query", "profile", "profile_version", "created_at", "results")
    )
    return [_found_by(chunk.pk, row) for row in rows[:most]]


def _found_by(chunk_id: int, row: dict[str, object]) -> FoundBy:
    results: Sequence[dict[str, object]] = row["results"]
    rank, result = next((rank, each) for rank, each in enumerate(results, start=1) if each["chunk_id"] == chunk_id)
    return FoundBy(
        row["pk"], row["query"], rank, result["score"], row["profile"], row["profile_version"], row["created_at"]
    )
