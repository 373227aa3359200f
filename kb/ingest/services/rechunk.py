"""Re-chunking: pairs new drafts with the chunks of a document, and carries a curator's edits over."""

import copy
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Annotated

from django.utils import timezone
from typing_extensions import Doc

from kb.access.models import KnowledgeBase
from kb.base.shapes import as_values
from kb.base.text import hash_content
from kb.content.models import Chunk, ChunkParent, Document
from kb.index.keywords import Source
from kb.index.models import ChunkEmbedding, ChunkPostings
from kb.index.services.writing import ROWS_A_STATEMENT, Prepared, rewrite_chunks, source_of, tokenizers_of, write_chunks
from kb.ingest.chunkers.matching import Pin, edited_part, held_parts, pairs, pin_texts, stream
from kb.ingest.chunkers.strategies import ChunkDraft, ParentDraft
from kb.ingest.parser.parsed import Picture, Region
from kb.providers.embedding_models import embedder
from retrieval.types import PageRegion

# Of questions, and of keywords, that a chunk has; what would be more is left out where chunks are cut otherwise.
MOST_ENTRIES = 100
DISABLED_SHARE = 0.8  # A new chunk that holds so much of chunks that were switched off is switched off too


@dataclass(frozen=True, slots=True)
class Survival:
    """How many of a document's chunks stay, are written or go, and how much of a curator's work survives."""

    kept: Annotated[int, Doc("Chunks that stay, with their indexes.")] = 0
    new: int = 0
    gone: int = 0
    edits: Annotated[int, Doc("Chunks whose text was changed by hand.")] = 0
    edits_kept: int = 0
    disabled: int = 0
    disabled_kept: int = 0


def carry_over(lost: Sequence[Chunk], fresh: Sequence[Chunk]) -> tuple[int, int]:
    """Gives new chunks what a curator did to those that go; returns how many edits and disabled chunks were kept."""
    if not any(map(is_touched, lost)):
        return 0, 0
    cut = [chunk.cut_text or chunk.text for chunk in lost]
    texts = [chunk.text for chunk in fresh]
    inside, parts = held_parts(cut, texts), held_parts(texts, cut)
    parts = {
        whole: left
        for whole, held in parts.items()
        if (left := {each: place for each, place in held.items() if each not in inside})
    }
    for position, members in inside.items():
        _merge_edits(fresh[position], [(lost[each], place) for each, place in members.items()])
    for position, members in parts.items():
        _split_edits(lost[position], [(fresh[each], place) for each, place in members.items()])
    carried = {each for members in inside.values() for each in members}.union(parts)
    off = {each for position, members in inside.items() if not fresh[position].enabled for each in members}.union(parts)
    return sum(bool(lost[each].cut_text) for each in carried), sum(not lost[each].enabled for each in off)


def is_touched(chunk: Chunk) -> bool:
    return bool(chunk.cut_text or chunk.own_questions or chunk.own_keywords or not chunk.enabled)


def _merge_edits(whole: Chunk, members: Sequence[tuple[Chunk, int]]) -> None:
    """Gives a chunk what was done to those whose texts begin in its text at these places."""
    text, off, following = whole.text, 0, len(whole.text)
    for member, place in sorted(members, key=itemgetter(1), reverse=True):  # an edit moves what stands behind it
        cut = member.cut_text or member.text
        end = min(place + len(cut), following)
        if member.cut_text:
            whole.text = whole.text[:place] + member.text + whole.text[end:]
            following = place
        off += 0 if member.enabled else len(cut)
    for member, _place in members:
        if member.own_questions:
            whole.questions = list(dict.fromkeys([*whole.questions, *member.questions]))[:MOST_ENTRIES]
            whole.own_questions = True
        if member.own_keywords:
            whole.keywords = list(dict.fromkeys([*whole.keywords, *member.keywords]))[:MOST_ENTRIES]
            whole.own_keywords = True
    _note_edit(whole, text)
    if off >= DISABLED_SHARE * len(text):
        whole.enabled = False


def _split_edits(whole: Chunk, members: Sequence[tuple[Chunk, int]]) -> None:
    for member, place in members:
        text = member.text
        if whole.cut_text:
            edited = edited_part(whole.cut_text, whole.text, place, place + len(text))
            # The curator has deleted all of it: it stays, unseen, since a chunk needs text.
            member.text, member.enabled = edited or text, bool(edited)
            _note_edit(member, text)
        member.enabled = member.enabled and whole.enabled
        if whole.own_keywords:
            member.keywords = [word for word in whole.keywords if word in member.text]
            member.own_keywords = True
    if whole.own_questions:
        share_questions(whole, [member for member, _place in members])


def share_questions(whole: Chunk, members: Sequence[Chunk]) -> None:
    """Gives each question of a chunk to that of its parts which has most in common with it."""
    for question in whole.questions:
        best = max(members, key=lambda member: len(_bigrams(question) & _bigrams(member.text)))
        best.questions = list(dict.fromkeys([*best.questions, question]))[:MOST_ENTRIES]
        best.own_questions = whole.own_questions


def _note_edit(chunk: Chunk, text: str) -> None:
    if chunk.text != text:
        chunk.cut_text, chunk.content_hash = text, hash_content(chunk.text)


def _bigrams(text: str) -> set[str]:
    return {text[place : place + 2] for place in range(len(text) - 1)}


HEADING_LENGTH = 300
MOST_REGIONS = 100
BOX_DECIMALS = 4


@dataclass(frozen=True, slots=True)
class Recut:
    """A document's chunks as they will be, in order; those without an id are new, the others copies of rows.

    `before` are the rows as they were read, by id; `drafts` what the chunks were made of: the strategy's, but for the
    passages that it may not cut. `parents` are returned in place of the chunks at their positions, and `renewed` is
    indexed again. The `pictures` are those that the document was read to have.
    """

    document: Document
    before: Mapping[int, Chunk]
    chunks: tuple[Chunk, ...]
    drafts: tuple[ChunkDraft, ...]
    parents: Mapping[int, ParentDraft]
    survival: Survival
    pictures: tuple[Picture, ...] = ()
    renewed: tuple[Chunk, ...] = ()


def chunks_of(document: Document) -> list[Chunk]:
    return list(Chunk.objects.filter(document=document).order_by("position", "pk"))


def recut(
    document: Document, before: Sequence[Chunk], drafts: Sequence[ChunkDraft], pictures: Sequence[Picture] = ()
) -> Recut:
    """What drafts make of a document's chunks; nothing is written.

    A chunk of the same text keeps its row. Where a text is cut otherwise, an edit goes with the text into a larger
    chunk that holds it, or into the smaller ones that it holds; so do questions and keywords that a curator gave. Where
    new chunks would divide such a text, it stays a chunk, and they lose their part of it. What a curator merged or split
    stays as it is. Where chunks are hidden since the source has the document no longer, all that are on will be.
    """
    rows, is_hidden = before, any(chunk.is_hidden for chunk in before)
    before = [copy.copy(chunk) for chunk in rows]
    for chunk in before:
        chunk.enabled, chunk.is_hidden = chunk.enabled or chunk.is_hidden, False
    cut = [chunk.cut_text or chunk.text for chunk in before]
    old_hashes = [
        hash_content(text) if chunk.cut_text else chunk.content_hash for chunk, text in zip(before, cut, strict=True)
    ]
    drafts = _pinned(document, before, cut, old_hashes, drafts)
    paired = pairs(old_hashes, [hash_content(draft.text) for draft in drafts])
    digests = [each.sha256 for each in pictures]
    chunks = [
        _chunk_of(document, draft, digests, before[paired[position]] if position in paired else None)
        for position, draft in enumerate(drafts)
    ]
    fresh = [position for position in range(len(drafts)) if position not in paired]
    lost = sorted(set(range(len(before))).difference(paired.values()))
    edits_carried, disabled_carried = carry_over([before[each] for each in lost], [chunks[each] for each in fresh])
    kept = [before[each] for each in paired.values()]
    survival = Survival(
        kept=len(kept),
        new=len(fresh),
        gone=len(before) - len(kept),
        edits=sum(bool(chunk.cut_text) for chunk in before),
        edits_kept=edits_carried + sum(bool(chunk.cut_text) for chunk in kept),
        disabled=sum(not chunk.enabled for chunk in before),
        disabled_kept=disabled_carried + sum(not chunk.enabled for chunk in kept),
    )
    for chunk in chunks:
        chunk.enabled, chunk.is_hidden = chunk.enabled and not is_hidden, chunk.enabled and is_hidden
    return Recut(
        document,
        {chunk.pk: chunk for chunk in rows},
        tuple(chunks),
        tuple(drafts),
        {draft.position: draft.parent for draft in drafts if draft.parent},
        survival,
        tuple(pictures),
    )


def _pinned(
    document: Document, before: Sequence[Chunk], cut: Sequence[str], hashes: Sequence[str], drafts: Sequence[ChunkDraft]
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


def _chunk_of(document: Document, draft: ChunkDraft, digests: Sequence[str], former: Chunk | None) -> Chunk:
    """A new chunk, or a copy of the former one of the same text, which keeps what a curator did."""
    if former:
        chunk = copy.copy(former)
    else:
        key = hash_content(draft.text)
        chunk = Chunk(knowledge_base_id=document.knowledge_base_id, cut_text="", content_hash=key)
    chunk.document = document
    chunk.position, chunk.page, chunk.heading_path = draft.position, draft.page, stored_path(draft.heading_path)
    chunk.parent_spans = [*chain(*draft.parent_spans)] if draft.parent and draft.parent_spans else None
    chunk.regions, chunk.seconds = as_values(page_regions(draft.regions)), draft.seconds
    shown = dict.fromkeys(each.picture for each in draft.regions if each.picture is not None)
    chunk.pictures = [digests[number] for number in shown]
    if chunk.cut_text:
        chunk.cut_text = draft.text
    else:
        chunk.text, chunk.token_count = draft.text, draft.token_count
    if draft.questions and not chunk.own_questions:
        chunk.questions = list(draft.questions)
    return chunk


def stored_path(heading_path: Iterable[str]) -> list[str]:
    return [heading[:HEADING_LENGTH] for heading in heading_path]


def page_regions(regions: Iterable[Region]) -> list[PageRegion]:
    """The first MOST_REGIONS that are on pages, each once; where in a text they begin is left out: texts are edited."""
    found = (
        PageRegion(each.page, each.box and tuple(round(side, BOX_DECIMALS) for side in each.box))  # type: ignore[arg-type]
        for each in regions
        if each.page is not None
    )
    return list(dict.fromkeys(found))[:MOST_REGIONS]


logger = logging.getLogger(__name__)

# What a curator changes of a chunk.
EDITED = ("text", "cut_text", "keywords", "questions", "own_keywords", "own_questions", "enabled")
_WRITTEN = (
    *EDITED,
    "is_hidden",
    "position",
    "page",
    "regions",
    "seconds",
    "pictures",
    "heading_path",
    "content_hash",
    "token_count",
    "parent",
    "parent_spans",
)


class ChunksChanged(Exception):
    """Somebody has changed a document's chunks since they were read: plan again."""


def with_renewed(plan: Recut) -> Recut:
    """Renews the chunks that are new, whose searchable text has changed, or that lack a part of the indexes."""
    document, kb = plan.document, plan.document.knowledge_base
    complete = _complete(kb, list(plan.before))
    renewed = (
        chunk
        for chunk in plan.chunks
        if document.title != document.indexed_title
        or chunk.pk not in complete
        or (kb.ask_questions and not chunk.questions and not chunk.own_questions)
        or _indexed(chunk) != _indexed(plan.before[chunk.pk])
    )
    return replace(plan, renewed=tuple(renewed))


def _indexed(chunk: Chunk) -> tuple[object, ...]:
    own = chunk.keywords if chunk.own_keywords else None
    return chunk.text, chunk.heading_path, chunk.questions, own


def _complete(kb: KnowledgeBase, chunk_ids: Sequence[int]) -> set[int]:
    """The chunks of which every index holds what a search needs."""
    held = {*ChunkPostings.objects.filter(chunk__in=chunk_ids).values_list("chunk_id", "tokenizer_id")}
    vectors = ChunkEmbedding.objects.filter(chunk__in=chunk_ids, model=kb.embedding_model)
    held |= {*vectors.values_list("chunk_id", "kind")}
    wanted = [str(cutter.id) for cutter in tokenizers_of(kb)] + [ChunkEmbedding.Kind.CONTENT.value]
    if kb.keyword_vectors:
        wanted.append(ChunkEmbedding.Kind.KEYWORDS.value)
    return {pk for pk in chunk_ids if all((pk, each) in held for each in wanted)}


def write_recuts(plans: Sequence[Recut], prepared: Mapping[Source, Prepared], model_id: str) -> None:
    """Writes what has changed, inside a transaction that holds the knowledge base; ChunksChanged: plan again."""
    before = {pk: chunk for plan in plans for pk, chunk in plan.before.items()}
    documents = [plan.document for plan in plans]
    current = Chunk.objects.select_for_update(no_key=True).filter(document__in=documents).order_by("pk")
    if {each.pk: own_to_chunk(each) for each in current} != {pk: own_to_chunk(each) for pk, each in before.items()}:
        raise ChunksChanged
    for plan in plans:
        if plan.before or plan.parents:
            _write_parents(plan)
    kept = [chunk for plan in plans for chunk in plan.chunks if chunk.pk]
    Chunk.objects.filter(pk__in=set(before).difference(chunk.pk for chunk in kept)).delete()
    changed = [chunk for chunk in kept if _row(chunk) != _row(before[chunk.pk])]
    for chunk in changed:
        chunk.updated_at = timezone.now()
    Chunk.objects.bulk_update(changed, [*_WRITTEN, "updated_at"], batch_size=ROWS_A_STATEMENT)
    parents = {chunk.parent_id for plan in plans for chunk in plan.chunks if chunk.parent_id}
    ChunkParent.objects.filter(document__in=documents).exclude(pk__in=parents).delete()
    pairs_to_write = [(chunk, prepared[source_of(chunk)]) for plan in plans for chunk in plan.renewed]
    new = [(chunk, each) for chunk, each in pairs_to_write if not chunk.pk]
    again = [(chunk, each) for chunk, each in pairs_to_write if chunk.pk]
    write_chunks([chunk for chunk, _ in new], [each for _, each in new], model_id=model_id)
    rewrite_chunks(again, model_id=model_id)
    for plan in plans:
        if lost := plan.survival.edits - plan.survival.edits_kept:
            message = "document %s was cut so that %d edited texts are in no chunk any more"
            logger.warning(message, plan.document.pk, lost)


def own_to_chunk(chunk: Chunk) -> tuple[object, ...]:
    """What re-chunking its document must not lose: where it has changed since it was read, a plan is out of date."""
    return tuple(getattr(chunk, name) for name in ("pk", "own_cut", *EDITED))


def _row(chunk: Chunk) -> tuple[object, ...]:
    return tuple(chunk.parent_id if name == "parent" else getattr(chunk, name) for name in _WRITTEN)


def _write_parents(plan: Recut) -> None:
    """Points the plan's chunks to their parents, of which those of the same text stay."""
    document = plan.document
    drafts = {draft.position: draft for draft in plan.parents.values()}
    present = list(ChunkParent.objects.filter(document=document).order_by("position", "pk"))
    wanted = [
        ChunkParent(
            knowledge_base_id=document.knowledge_base_id,
            document=document,
            position=position,
            text=draft.text,
            page=draft.page,
            heading_path=stored_path(draft.heading_path),
            regions=as_values(page_regions(draft.regions)),
        )
        for position, draft in sorted(drafts.items())
    ]
    again = pairs([_text_of(each) for each in present], [_text_of(each) for each in wanted])
    for position, former in again.items():
        wanted[position].pk = present[former].pk
    ChunkParent.objects.bulk_create([each for each in wanted if not each.pk], batch_size=ROWS_A_STATEMENT)
    moved = [
        wanted[each]
        for each, former in again.items()
        if (wanted[each].position, wanted[each].regions) != (present[former].position, present[former].regions)
    ]
    ChunkParent.objects.bulk_update(moved, ["position", "regions"], batch_size=ROWS_A_STATEMENT)
    rows = {parent.position: parent for parent in wanted}
    for chunk in plan.chunks:
        draft = plan.parents.get(chunk.position)
        chunk.parent = rows[draft.position] if draft else None


def _text_of(parent: ChunkParent) -> tuple[object, ...]:
    return parent.text, parent.page, tuple(parent.heading_path)
