"""By headings: what stands under one is one chunk, over page breaks, and its path goes with it as context."""

from kb.ingest.chunkers.drafts import ChunkDraft, ChunkSettings
from kb.ingest.chunkers.passages import by_heading, located
from kb.ingest.chunkers.recursive import split_text
from kb.ingest.parser.parsed import ParsedDocument


def split_by_headings(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    """What is too long for one chunk is cut by paragraphs and sentences; a chunk's page is the one it begins on."""
    drafts: list[ChunkDraft] = []
    for passage in by_heading(document):
        for start, text in located(passage.text, list(split_text(passage.text, settings))):
            tokens = settings.token_counter(text)
            drafts.append(ChunkDraft(text, len(drafts), passage.page_at(start), passage.heading_path, tokens))
    return drafts
