"""The strategies by the names that knowledge bases choose them by."""

from collections.abc import Callable, Mapping
from typing import Final

from kb.ingest.chunkers import questions, tokens
from kb.ingest.chunkers.headings import headings
from kb.ingest.chunkers.parent_child import parent_child
from kb.ingest.chunkers.recursive import recursive
from kb.ingest.chunkers.drafts import ChunkDraft, ChunkSettings, Strategy
from kb.ingest.parser.parsed import ParsedDocument

Chunker = Callable[[ParsedDocument, ChunkSettings], list[ChunkDraft]]

CHUNKERS: Final[Mapping[Strategy, Chunker]] = {
    "recursive": recursive,
    "headings": headings,
    "questions": questions.split,
    "parent_child": parent_child,
    "tokens": tokens.split,
}


def split(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    """Cuts a document by the strategy that its settings name."""
    return CHUNKERS[settings.strategy](document, settings)
