"""A knowledge base's chunks in pieces, for work that derives something from each."""

from collections.abc import Iterator

from django.db.models.expressions import Combinable

from kb.ingest.index import searchable_text
from kb.models import Chunk, KnowledgeBase

BATCH = 256


def chunk_batches(kb: KnowledgeBase, *conditions: Combinable) -> Iterator[list[Chunk]]:
    """Chunks by id with their documents; the conditions are asked anew for every piece."""
    rows = Chunk.objects.filter(*conditions, knowledge_base=kb).select_related("document").order_by("pk")
    last = 0
    while batch := list(rows.filter(pk__gt=last)[:BATCH]):
        yield batch
        last = batch[-1].pk


def searchable_text_of(chunk: Chunk) -> str:
    """What both channels index of a chunk that was read with its document."""
    return searchable_text(chunk.document.title, chunk.heading_path, chunk.text)
