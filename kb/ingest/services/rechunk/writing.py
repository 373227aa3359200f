"""Writes a document's chunks as they were planned: what must be indexed anew, and what has changed."""

import logging
from collections.abc import Mapping, Sequence

from django.db.models import QuerySet
from django.utils import timezone

from kb.access.models.knowledge import KnowledgeBase
from kb.content.models.documents import Chunk, ChunkParent, Document
from kb.index.models.index import ChunkEmbedding, ChunkPostings
from kb.index.preparing import ROWS_A_STATEMENT, Prepared, Source, replace_postings, replace_vectors, write_chunks
from kb.index.services.chunk_batches import source_of
from kb.index.services.writing import keyword_language, tokenizers_of
from kb.ingest.chunkers.drafts import ParentDraft
from kb.ingest.chunkers.matching import pairs
from kb.ingest.services.rechunk.planning import Recut, stored_path

logger = logging.getLogger(__name__)

_WRITTEN = (
    "position",
    "text",
    "cut_text",
    "page",
    "heading_path",
    "keywords",
    "questions",
    "own_keywords",
    "own_questions",
    "enabled",
    "content_hash",
    "token_count",
    "parent",
)
_OWN_TO_CHUNK = (
    "pk",
    "text",
    "cut_text",
    "keywords",
    "questions",
    "own_keywords",
    "own_questions",
    "own_cut",
    "enabled",
)


class ChunksChanged(Exception):
    """Somebody has changed a document's chunks since they were read: plan again."""


def to_index(kb: KnowledgeBase, plan: Recut, *, is_retitled: bool) -> list[Chunk]:
    """The chunks that are new, whose searchable text has changed, or that lack a part of the indexes."""
    complete = _complete(kb, list(plan.before))
    return [
        chunk
        for chunk in plan.chunks
        if is_retitled
        or chunk.pk not in complete
        or (kb.ask_questions and not chunk.questions and not chunk.own_questions)
        or _indexed(chunk) != _indexed(plan.before[chunk.pk])
    ]


def _indexed(chunk: Chunk) -> tuple[object, ...]:
    own = chunk.keywords if chunk.own_keywords else None
    return chunk.text, chunk.heading_path, chunk.questions, own


def _complete(kb: KnowledgeBase, chunk_ids: Sequence[int]) -> set[int]:
    """The chunks of which every index holds what a search needs."""
    postings = ChunkPostings.objects.filter(chunk__in=chunk_ids)
    held = {*postings.values_list("chunk_id", "tokenizer_id")}
    vectors = ChunkEmbedding.objects.filter(chunk__in=chunk_ids, model=kb.embedding_model)
    held |= {*vectors.values_list("chunk_id", "kind")}
    wanted = [str(cutter.id) for cutter in tokenizers_of(kb)] + [ChunkEmbedding.Kind.CONTENT.value]
    if keyword_language(kb):
        wanted.append(ChunkEmbedding.Kind.KEYWORDS.value)
    return {pk for pk in chunk_ids if all((pk, each) in held for each in wanted)}


def write_recut(document: Document, plan: Recut, prepared: Mapping[Source, Prepared], renewed: Sequence[Chunk]) -> None:
    """Writes what has changed; belongs inside the caller's transaction, which holds the knowledge base.

    Args:
        document: with its knowledge base.
        plan: of its chunks.
        prepared: what the indexes hold of the renewed chunks.
        renewed: those of the plan's chunks that are indexed anew.

    Raises:
        ChunksChanged: its chunks are no longer those that the plan was made of.
    """
    model_id = document.knowledge_base.embedding_model
    current = Chunk.objects.select_for_update(no_key=True).filter(document=document).order_by("pk")
    if {each.pk: own_to_chunk(each) for each in current} != {
        pk: own_to_chunk(each) for pk, each in plan.before.items()
    }:
        raise ChunksChanged
    stale_parents = _write_parents(document, plan)
    kept = [chunk for chunk in plan.chunks if chunk.pk]
    gone = set(plan.before).difference(chunk.pk for chunk in kept)
    Chunk.objects.filter(pk__in=gone).delete()
    changed = [chunk for chunk in kept if _row(chunk) != _row(plan.before[chunk.pk])]
    for chunk in changed:
        chunk.updated_at = timezone.now()
    Chunk.objects.bulk_update(changed, [*_WRITTEN, "updated_at"], batch_size=ROWS_A_STATEMENT)
    stale_parents.delete()
    pairs_to_write = [(chunk, prepared[source_of(chunk)]) for chunk in renewed]
    new = [(chunk, each) for chunk, each in pairs_to_write if not chunk.pk]
    again = [(chunk, each) for chunk, each in pairs_to_write if chunk.pk]
    write_chunks([chunk for chunk, _ in new], [each for _, each in new], model_id=model_id)
    replace_postings((chunk, each.postings) for chunk, each in again)
    replace_vectors(again, model_id)
    survival = plan.survival
    if lost := survival.edits - survival.edits_kept:
        logger.warning("document %s was cut so that %d edited texts are in no chunk any more", document.pk, lost)


def own_to_chunk(chunk: Chunk) -> tuple[object, ...]:
    """What cutting its document anew must not lose: where it has changed since it was read, a plan is out of date."""
    return tuple(getattr(chunk, name) for name in _OWN_TO_CHUNK)


def _row(chunk: Chunk) -> tuple[object, ...]:
    return tuple(chunk.parent_id if name == "parent" else getattr(chunk, name) for name in _WRITTEN)


def _write_parents(document: Document, plan: Recut) -> QuerySet[ChunkParent]:
    """Points the plan's chunks to their parents, of which those of the same text stay; the others are returned."""
    drafts = {draft.position: draft for draft in plan.parents.values()}
    present = list(ChunkParent.objects.filter(document=document).order_by("position", "pk"))
    wanted = [_parent(document, draft) for _position, draft in sorted(drafts.items())]
    again = pairs([_text_of(each) for each in present], [_text_of(each) for each in wanted])
    for position, former in again.items():
        wanted[position].pk = present[former].pk
    ChunkParent.objects.bulk_create([each for each in wanted if not each.pk], batch_size=ROWS_A_STATEMENT)
    moved = [wanted[each] for each, former in again.items() if wanted[each].position != present[former].position]
    ChunkParent.objects.bulk_update(moved, ["position"], batch_size=ROWS_A_STATEMENT)
    rows = {parent.position: parent for parent in wanted}
    for chunk in plan.chunks:
        draft = plan.parents.get(chunk.position)
        chunk.parent = rows[draft.position] if draft else None
    return ChunkParent.objects.filter(document=document).exclude(pk__in=[each.pk for each in wanted])


def _parent(document: Document, draft: ParentDraft) -> ChunkParent:
    return ChunkParent(
        knowledge_base_id=document.knowledge_base_id,
        document=document,
        position=draft.position,
        text=draft.text,
        page=draft.page,
        heading_path=stored_path(draft.heading_path),
    )


def _text_of(parent: ChunkParent) -> tuple[object, ...]:
    return parent.text, parent.page, tuple(parent.heading_path)
