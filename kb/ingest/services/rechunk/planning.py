"""Cuts a document anew and keeps what survives: rows with their indexes, curators' edits, and what is switched off."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kb.content.models.documents import Chunk, Document
from kb.ingest.chunkers.drafts import ChunkDraft, ParentDraft, hash_content
from kb.ingest.chunkers.joining import stream
from kb.ingest.chunkers.matching import pairs
from kb.ingest.chunkers.pinning import Pin, pin_texts
from kb.ingest.services.rechunk.carrying import Survival, carry_over, is_touched
from kb.providers.loaded import embedder

HEADING_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Recut:
    """A document's chunks as they will be.

    Attributes:
        before: the chunks as they were read, by id.
        chunks: in order; those without an id are new, the others copies of rows.
        drafts: what the chunks were made of: the strategy's, but for the passages that it may not cut.
        parents: the passage that is returned in place of each, by position; one missing is returned itself.
    """

    before: Mapping[int, Chunk]
    chunks: tuple[Chunk, ...]
    drafts: tuple[ChunkDraft, ...]
    parents: Mapping[int, ParentDraft]
    survival: Survival = field(default_factory=Survival)


def chunks_of(document: Document) -> list[Chunk]:
    return list(Chunk.objects.filter(document=document).order_by("position", "pk"))


def recut(document: Document, before: Sequence[Chunk], drafts: Sequence[ChunkDraft]) -> Recut:
    """What drafts make of a document's chunks; nothing is written.

    A chunk of the same text keeps its row. Where a text is cut otherwise, an edit goes with the text into a larger
    chunk that holds it, or into the smaller ones that it holds; so do questions and keywords that a curator gave. Where
    new chunks would divide such a text, it stays a chunk, and they lose their part of it. What a curator merged or split
    stays as it is.

    Args:
        document: whose they are; new chunks get it as it is.
        before: in their order.
        drafts: in their order.
    """
    cut = [chunk.cut_text or chunk.text for chunk in before]
    old_hashes = [
        hash_content(text) if chunk.cut_text else chunk.content_hash for chunk, text in zip(before, cut, strict=True)
    ]
    drafts = _pinned(document, before, cut, old_hashes, drafts)
    paired = pairs(old_hashes, [hash_content(draft.text) for draft in drafts])
    chunks = [
        _survivor(before[paired[position]], draft) if position in paired else _new_chunk(document, draft)
        for position, draft in enumerate(drafts)
    ]
    fresh = [position for position in range(len(drafts)) if position not in paired]
    lost = sorted(set(range(len(before))).difference(paired.values()))
    carried = carry_over([before[each] for each in lost], [chunks[each] for each in fresh])
    for chunk in chunks:
        chunk.document = document
    survival = _survival(before, [before[each] for each in paired.values()], carried)
    return Recut(
        {chunk.pk: chunk for chunk in before},
        tuple(chunks),
        tuple(drafts),
        {draft.position: draft.parent for draft in drafts if draft.parent},
        survival,
    )


def _pinned(
    document: Document,
    before: Sequence[Chunk],
    cut: Sequence[str],
    hashes: Sequence[str],
    drafts: Sequence[ChunkDraft],
) -> Sequence[ChunkDraft]:
    """The drafts with the passages that a curator cut, and those that carry a curator's work which no draft would."""
    if not any(chunk.own_cut or is_touched(chunk) for chunk in before):
        return drafts
    there = {hash_content(draft.text) for draft in drafts}
    pins = [
        Pin(text, start, always=chunk.own_cut)
        for chunk, text, key, (start, _) in zip(before, cut, hashes, stream(cut).spans, strict=True)
        if chunk.own_cut or (is_touched(chunk) and key not in there)
    ]
    return pin_texts(drafts, pins, embedder(document.knowledge_base.embedding_model).count_tokens) if pins else drafts


def _survivor(chunk: Chunk, draft: ChunkDraft) -> Chunk:
    kept = copy.copy(chunk)
    kept.position, kept.page, kept.heading_path = draft.position, draft.page, stored_path(draft.heading_path)
    if kept.cut_text:
        kept.cut_text = draft.text
    else:
        kept.text, kept.token_count = draft.text, draft.token_count
    if draft.questions and not kept.own_questions:
        kept.questions = list(draft.questions)
    return kept


def _new_chunk(document: Document, draft: ChunkDraft) -> Chunk:
    return Chunk(
        knowledge_base_id=document.knowledge_base_id,
        position=draft.position,
        text=draft.text,
        cut_text="",
        page=draft.page,
        heading_path=stored_path(draft.heading_path),
        questions=list(draft.questions),
        content_hash=hash_content(draft.text),
        token_count=draft.token_count,
    )


def stored_path(heading_path: Iterable[str]) -> list[str]:
    return [heading[:HEADING_LENGTH] for heading in heading_path]


def _survival(before: Sequence[Chunk], kept: Sequence[Chunk], carried: Survival) -> Survival:
    return Survival(
        kept=len(kept),
        new=carried.new,
        gone=len(before) - len(kept),
        edits=sum(bool(chunk.cut_text) for chunk in before),
        edits_kept=carried.edits_kept + sum(bool(chunk.cut_text) for chunk in kept),
        disabled=sum(not chunk.enabled for chunk in before),
        disabled_kept=carried.disabled_kept + sum(not chunk.enabled for chunk in kept),
    )
