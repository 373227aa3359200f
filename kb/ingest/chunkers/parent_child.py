"""Small to search, large to return: a chunk of few sentences is found, and the passage around it is given."""

from dataclasses import replace

from kb.ingest.chunkers.drafts import ChunkDraft, ChunkSettings, ParentDraft
from kb.ingest.chunkers.passages import by_heading, located
from kb.ingest.chunkers.recursive import split_text
from kb.ingest.parser.parsed import ParsedDocument


def split_with_parents(document: ParsedDocument, settings: ChunkSettings) -> list[ChunkDraft]:
    """Parents cross page breaks, but no heading; one that a single chunk fills is left out: the chunk is enough."""
    large = replace(settings, strategy="recursive", size=settings.parent_size, overlap=0)
    drafts: list[ChunkDraft] = []
    parents = 0
    for passage in by_heading(document):
        for begin, text in located(passage.text, list(split_text(passage.text, large))):
            children = list(located(text, list(split_text(text, settings))))
            parent = None
            if len(children) > 1:
                parent = ParentDraft(text, parents, passage.page_at(begin), passage.heading_path)
                parents += 1
            for start, child in children:
                page = passage.page_at(begin + start)
                tokens = settings.token_counter(child)
                drafts.append(ChunkDraft(child, len(drafts), page, passage.heading_path, tokens, parent))
    return drafts
