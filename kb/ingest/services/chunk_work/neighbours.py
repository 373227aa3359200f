"""The chunks around one in its document."""

from dataclasses import dataclass

from kb.content.models.documents import Chunk


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Chunks before and after one, both in the order of the document."""

    previous: tuple[Chunk, ...]
    following: tuple[Chunk, ...]


def neighbours_of(chunk: Chunk, *, count: int = 1) -> Neighbours:
    """So many chunks on either side, fewer at the ends of the document."""
    siblings = Chunk.objects.filter(document=chunk.document_id)
    before = siblings.filter(position__lt=chunk.position).order_by("-position")[:count]
    after = siblings.filter(position__gt=chunk.position).order_by("position")[:count]
    return Neighbours(tuple(reversed(before)), tuple(after))
