"""The strategies by the names that knowledge bases choose them by."""

from collections.abc import Callable, Mapping
from typing import Final

from kb.ingest.chunkers import headings, parent_child, questions, recursive, tokens
from kb.ingest.chunkers.drafts import ChunkDraft, ChunkSettings, Strategy
from kb.ingest.parser.parsed import ParsedDocument

Chunker = Callable[[ParsedDocument, ChunkSettings], list[ChunkDraft]]

CHUNKERS: Final[Mapping[Strategy, Chunker]] = {
    "recursive": recursive.split,
    "headings": headings.split,
    "questions": questions.split,
    "parent_child": parent_child.split,
    "tokens": tokens.split,
}


def split(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    """Cuts a document by the strategy that its settings name."""
    return CHUNKERS[settings.strategy](document, settings)
