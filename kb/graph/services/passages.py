"""Chunks as a language model reads them."""

import hashlib

from kb.content.models.documents import Chunk, Document
from kb.graph.services.reader import Passage


def readable_chunks(document: Document) -> list[Chunk]:
    """Those that searches find, in their order."""
    rows = Chunk.objects.filter(document=document, enabled=True).order_by("position")
    return list(rows.only("pk", "text", "heading_path", "position", "document_id"))


def passage_of(document: Document, chunk: Chunk) -> Passage:
    """A chunk under its title and headings, without which it may not say what it speaks of."""
    text = "\n".join([str(document), *chunk.heading_path, chunk.text])
    return Passage(hashlib.sha256(text.encode()).hexdigest(), text)
