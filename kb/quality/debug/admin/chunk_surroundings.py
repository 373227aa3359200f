"""What the page of a chunk shows beside it: its neighbours, the searches that found it, and its near-duplicates."""

from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _

from kb.access.models.knowledge import Chunk
from kb.ingest.services.chunk_work.duplicates import duplicates_of
from kb.ingest.services.chunk_work.neighbours import neighbours_of
from kb.quality.debug.admin.log import debug_url
from kb.quality.debug.services.found_by import searches_that_found
from kb.web.admin.scoped import principal

NEIGHBOUR_CHARACTERS = 300


def surroundings(request: HttpRequest, chunk: Chunk) -> dict[str, Any]:
    """What the templates ingest/chunk_*.html need."""
    found = neighbours_of(chunk)
    searches = searches_that_found(principal(request), chunk)
    return {
        "previous_chunk": next(iter(found.previous), None),
        "next_chunk": next(iter(found.following), None),
        "neighbour_characters": NEIGHBOUR_CHARACTERS,
        "searches": [(each, debug_url(each.knowledge_base_ids, each.query, each.asked)) for each in searches],
    }


def alike(chunk: Chunk) -> dict[str, Any]:
    """What the part of the page needs that waits for a search: the near-duplicates of a chunk."""
    return {
        "chunk": chunk,
        "neighbour_characters": NEIGHBOUR_CHARACTERS,
        "duplicates": [(other, percent(similarity)) for other, similarity in duplicates_of(chunk)],
    }


def percent(similarity: float) -> int:
    """Whole per cent, rounded down: only the same is 100 %."""
    return int(similarity * 100 + 1e-9)


def moved_meanwhile() -> str:
    return _("The knowledge base moved to another embedding model meanwhile, and nothing was saved: save again.")
