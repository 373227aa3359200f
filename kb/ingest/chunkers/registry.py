"""The strategies by the names that knowledge bases choose them by."""

from collections.abc import Callable, Mapping
from typing import Final

from kb.ingest.chunkers.questions import split_by_questions
from kb.ingest.chunkers.tokens import split_by_tokens
from kb.ingest.chunkers.headings import split_by_headings
from kb.ingest.chunkers.parent_child import split_with_parents
from kb.ingest.chunkers.recursive import split_recursively
from kb.ingest.chunkers.drafts import ChunkDraft, ChunkSettings, Strategy
from kb.ingest.parser.parsed import ParsedDocument

Chunker = Callable[[ParsedDocument, ChunkSettings], list[ChunkDraft]]

CHUNKERS: Final[Mapping[Strategy, Chunker]] = {
    "recursive": split_recursively,
    "headings": split_by_headings,
    "questions": split_by_questions,
    "parent_child": split_with_parents,
    "tokens": split_by_tokens,
}


def split(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    """Cuts a document by the strategy that its settings name."""
    return CHUNKERS[settings.strategy](document, settings)
