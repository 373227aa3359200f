"""A knowledge base's chunks in pieces, for work that derives something from each."""

from collections.abc import Callable, Collection, Iterator, Sequence

from kb.ingest.index import searchable_text
from kb.models import Chunk, KnowledgeBase

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


def searchable_text_of(chunk: Chunk) -> str:
    """What both channels index of a chunk that was read with its document."""
    return searchable_text(chunk.document.title, chunk.heading_path, chunk.text)
