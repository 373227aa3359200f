"""Documents to cut, and what became of them."""

from kb.ingest.chunkers.strategies import ChunkSettings, split
from kb.ingest.parser.parsed import ParsedDocument, Section


def document(*sections):
    made = (section if isinstance(section, Section) else Section(section) for section in sections)
    return ParsedDocument("title", tuple(made))


def cut(strategy, *sections, **settings):
    return split(document(*sections), ChunkSettings(strategy=strategy, **settings))


def texts(drafts):
    return [draft.text for draft in drafts]


def visible(text):
    return "".join(text.split())
