"""What other chunk settings would make of a document, or of a pasted text; nothing is written."""

import copy
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from django.conf import settings
from django.utils.translation import gettext as _
from typing_extensions import Doc

from kb.access.models import KnowledgeBase
from kb.base.errors import Rejected
from kb.base.files import local_file
from kb.content.models import Document
from kb.content.services import check_chunking
from kb.ingest.chunkers.strategies import ChunkDraft, split
from kb.ingest.parser.parsed import MESSAGES, ParsedDocument, ParseError
from kb.ingest.parser.sandbox import Limits, parse_file
from kb.ingest.services.documents import PASTED_NAME
from kb.ingest.services.indexing import chunk_settings
from kb.ingest.services.parsing import reading_of
from kb.ingest.services.rechunk import Survival, chunks_of, page_regions, recut
from retrieval.errors import RetrievalError
from retrieval.types import PageRegion

# The settings of a knowledge base that say how its documents are cut.
CHUNKING = ("chunk_strategy", "chunk_size", "chunk_overlap", "chunk_unit", "parent_size")
MOST_SHOWN = 200
MOST_CHARACTERS = 400_000  # Of a longer document only the beginning is cut
SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class ShownChunk:
    """A chunk as it would be."""

    number: Annotated[int, Doc("From 1.")]
    text: str
    overlap: Annotated[int, Doc("How many characters at its beginning repeat the end of the one before.")]
    page: int | None
    seconds: Annotated[int | None, Doc("The time at which a recording says it.")]
    regions: Annotated[tuple[PageRegion, ...], Doc("Where it stands on the pages of its document.")]
    heading_path: tuple[str, ...]
    tokens: int
    questions: tuple[str, ...]
    parent: Annotated[int | None, Doc("Number from 1 of the longer passage that is returned in its place.")]
    survives: Annotated[bool, Doc("A chunk of this text is there already, and would stay.")]

    @property
    def repeated(self) -> str:
        return self.text[: self.overlap]

    @property
    def rest(self) -> str:
        return self.text[self.overlap :]


@dataclass(frozen=True, slots=True)
class Preview:
    """What settings make of a text."""

    chunks: Annotated[list[ShownChunk], Doc("The first ones.")]
    total: int
    parents: int
    most_tokens: int
    is_partial: Annotated[bool, Doc("Only the beginning of the document was cut.")]
    present: Annotated[int | None, Doc("How many chunks the document has now.")] = None
    survival: Annotated[Survival | None, Doc("What becomes of the chunks that the document has now.")] = None

    @property
    def unshown(self) -> int:
        return self.total - len(self.chunks)


def preview_document(kb: KnowledgeBase, document: Document, chunking: Mapping[str, Any]) -> Preview:
    """Cuts a document's file, which the caller may see, under settings of `CHUNKING` that are not saved.

    Where `chunking` names none, those of the knowledge base serve. Raises Rejected where the settings do not go
    together, the document has no file or cannot be read, or the embedding model, whose tokens are counted, is out of
    reach.
    """
    changed = _changed(kb, chunking)
    if not document.file or not document.file.storage.exists(str(document.file.name)):
        message = _(
            "“%(title)s” was imported without a file, so it cannot be re-chunked: choose another, or paste its text."
        )
        raise Rejected("no_file", message, title=document)
    with local_file(document.file) as path:
        drafts, is_partial = _cut(path, document.source, changed)
    before = chunks_of(document)
    if is_partial:
        return replace(_preview(drafts), is_partial=True, present=len(before))
    plan = recut(document, before, drafts)
    kept = frozenset(chunk.position for chunk in plan.chunks if chunk.pk)
    return replace(_preview(plan.drafts, kept), present=len(before), survival=plan.survival)


def preview_text(kb: KnowledgeBase, text: str, chunking: Mapping[str, Any]) -> Preview:
    """As `preview_document`, of a text that is in no document."""
    changed = _changed(kb, chunking)
    if not text.strip():
        raise Rejected("blank_text", _("The text is empty: paste or type some."))
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(text.encode())
        file.flush()
        drafts, is_partial = _cut(Path(file.name), PASTED_NAME, changed)
    return replace(_preview(drafts), is_partial=is_partial)


def _changed(kb: KnowledgeBase, chunking: Mapping[str, Any]) -> KnowledgeBase:
    changed = copy.copy(kb)
    for name in CHUNKING:
        setattr(changed, name, chunking.get(name, getattr(kb, name)))
    check_chunking(changed)
    return changed


def _cut(path: Path, name: str, kb: KnowledgeBase) -> tuple[list[ChunkDraft], bool]:
    """What the settings of a knowledge base make of a file, and whether only of its beginning."""
    limits = Limits(memory_bytes=settings.PARSE_MEMORY_BYTES, seconds=min(SECONDS, settings.PARSE_SECONDS))
    try:
        document, is_partial = _beginning(parse_file(path, name, limits=limits, reading=reading_of(kb)))
        return split(document, chunk_settings(kb)), is_partial
    except ParseError as error:
        raise Rejected(error.code, _(MESSAGES[error.code]).format(**error.params)) from error
    except RetrievalError as error:
        raise Rejected("model_unavailable", str(error)) from error


def _beginning(document: ParsedDocument) -> tuple[ParsedDocument, bool]:
    kept, left = [], MOST_CHARACTERS
    for section in document.sections:
        if len(section.text) > left:
            kept.append(replace(section, text=section.text[:left], answer=section.answer[:left]))
            return replace(document, sections=tuple(kept)), True
        kept.append(section)
        left -= len(section.text)
    return document, False


def _preview(drafts: Sequence[ChunkDraft], kept: frozenset[int] = frozenset()) -> Preview:
    shown = drafts[:MOST_SHOWN]
    before = ["", *(draft.text for draft in shown)]
    return Preview(
        chunks=[
            ShownChunk(
                number=draft.position + 1,
                text=draft.text,
                overlap=_overlap(previous, draft.text),
                page=draft.page,
                seconds=draft.seconds,
                regions=tuple(page_regions(draft.regions)),
                heading_path=draft.heading_path,
                tokens=draft.token_count,
                questions=draft.questions,
                parent=draft.parent.position + 1 if draft.parent else None,
                survives=draft.position in kept,
            )
            for previous, draft in zip(before, shown, strict=False)
        ],
        total=len(drafts),
        parents=len({draft.parent.position for draft in drafts if draft.parent}),
        most_tokens=max((draft.token_count for draft in drafts), default=0),
        is_partial=False,
    )


def _overlap(previous: str, text: str) -> int:
    sizes = range(min(len(previous), len(text) - 1), 0, -1)
    return next((size for size in sizes if previous.endswith(text[:size])), 0)
