"""Which searches have found a chunk: from the search log, by its index over the results."""

from typing import Any

from django.db.models import F

from kb.access.models import Principal
from kb.content.models import Chunk
from kb.search.models import ResultIds, SearchLog

MOST_SHOWN = 20


def searches_that_found(principal: Principal, chunk: Chunk) -> list[dict[str, Any]]:
    """The newest searches among whose results the chunk was, newest first, each with its rank, from 1, and score.

    A caller sees those of whose knowledge bases every one is visible. `query` is blank where the installation keeps queries
    out of the log; `asked` is what the search was asked beside it, as its trace has it.
    """
    rows = (
        SearchLog.objects.visible_to(principal)
        .alias(result_ids=ResultIds("trace"))
        .filter(result_ids__contains=[chunk.pk])
        .annotate(trace_id=F("pk"), results=F("trace__results"), asked=F("trace__request"))
        .order_by("-created_at", "pk")
        .values(
            "trace_id", "query", "profile", "profile_version", "created_at", "knowledge_base_ids", "results", "asked"
        )[:MOST_SHOWN]
    )
    found = []
    for row in rows:
        rank, score = next(
            (rank, each["score"]) for rank, each in enumerate(row["results"], start=1) if each["chunk_id"] == chunk.pk
        )
        found.append({**row, "rank": rank, "score": score})
    return found
