"""A knowledge base's chunks in pieces, for work that derives something from each."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from django.db.models import OuterRef, QuerySet, Subquery

from kb.access.models.knowledge import KnowledgeBase
from kb.content.models.documents import Chunk
from kb.index.preparing import Source
from retrieval.searchable import searchable_text

BATCH = 256


def chunk_batches(
    kb: KnowledgeBase, *, after: int = 0, done: Callable[[Sequence[int]], Collection[int]] = lambda _: ()
) -> Iterator[list[Chunk]]:
    """Chunks by id with their documents.

    Args:
        kb: the knowledge base.
        after: id of the chunk to start behind.
        done: given the ids of a piece, those of them to leave out.
    """
    rows = Chunk.objects.filter(knowledge_base=kb).order_by("pk")
    while ids := list(rows.filter(pk__gt=after).values_list("pk", flat=True)[:BATCH]):
        after = ids[-1]
        if wanted := set(ids).difference(done(ids)):
            yield list(rows.filter(pk__in=wanted).select_related("document"))


def any_chunk_without(kb: KnowledgeBase, derived: QuerySet[Any]) -> bool:
    """Whether a chunk has none of some rows that are derived from chunks.

    Each chunk is looked up by itself: an anti-join on an id that the table's statistics do not know yet is planned for
    one row, and takes time with the square of the chunks.
    """
    own = Subquery(derived.filter(chunk=OuterRef("pk")).values("pk")[:1])
    found: bool = Chunk.objects.filter(knowledge_base=kb).annotate(own=own).filter(own__isnull=True).exists()
    return found


def searchable_text_of(chunk: Chunk) -> str:
    """What both channels index of a chunk that was read with its document."""
    return searchable_text(chunk.document.title, chunk.heading_path, chunk.text)


def source_of(chunk: Chunk) -> Source:
    """What the indexes of a chunk that was read with its document are made of."""
    own = tuple(chunk.keywords) if chunk.own_keywords else None
    return Source(searchable_text_of(chunk), chunk.text, tuple(chunk.questions), own, chunk.own_questions)
