"""Chunks of a knowledge base that say almost the same; see `retrieval.dedupe`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Annotated

import numpy as np
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone
from numpy.typing import NDArray
from typing_extensions import Doc

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import streaming_cursor
from kb.content.models import Chunk, DuplicateScan
from kb.index.models import ChunkEmbedding, ChunkPostings, KnowledgeBaseVersion
from kb.index.pgvector import PgVectorStore
from retrieval.dedupe import Ids, Sketches, Terms, candidate_pairs, groups_of, shared_shares

ALIKE = 0.8  # Near-duplicates have so much of their terms in common, of those that one of them has
MOST_GROUPS = 2_000
MOST_IN_GROUP = 200
AT_ONCE = 20_000  # Chunks: so many are looked through while a page waits
FETCH = 2_000
PAIRS_AT_ONCE = 20_000
WAITED_LONG = timedelta(minutes=10)
NEAREST = 10

_TERMS = """
SELECT p.chunk_id, p.terms FROM kb_chunkpostings p
JOIN kb_chunk c ON c.id = p.chunk_id AND c.enabled
WHERE p.knowledge_base_id = %(kb)s AND p.tokenizer_id = %(tokenizer)s AND length(p.terms) > 0
ORDER BY p.chunk_id
"""
_SAME_TEXT = """
SELECT array_agg(id ORDER BY id) FROM kb_chunk WHERE knowledge_base_id = %(kb)s AND enabled
GROUP BY content_hash HAVING count(*) > 1
"""


@dataclass(frozen=True, slots=True)
class DuplicateGroup:
    """Chunks that say almost the same, by ascending ids."""

    chunk_ids: tuple[int, ...]
    similarity: Annotated[float, Doc("Of the least alike of the pairs that were compared, from 0.8 to 1.")]


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a knowledge base's near-duplicates."""

    groups: Annotated[list[DuplicateGroup], Doc("The most alike first; of very many the first.")] = field(
        default_factory=list
    )
    group_count: Annotated[int, Doc("Of all.")] = 0
    is_current: Annotated[bool, Doc("Whether no chunk has changed since.")] = False
    is_awaited: Annotated[bool, Doc("Whether a worker is looking for them.")] = False
    was_looked: Annotated[bool, Doc("False: nobody has looked yet; send a POST.")] = False


def near_duplicates(kb: KnowledgeBase) -> Found:
    """The near-duplicates among the enabled chunks; those of a large knowledge base as a worker found them last."""
    row = KnowledgeBaseVersion.objects.select_related("knowledge_base__duplicate_scan").get(pk=kb.pk)
    scan, version = getattr(row.knowledge_base, "duplicate_scan", None), row.version
    if scan is not None and scan.found_at and scan.version == version:
        return _found(scan, is_current=True)
    if not Chunk.objects.filter(knowledge_base=kb)[AT_ONCE : AT_ONCE + 1].exists():
        groups = look_for_duplicates(kb)
        return Found(groups[:MOST_GROUPS], len(groups), is_current=True, was_looked=True)
    return _found(scan, is_current=False) if scan is not None else Found()


def duplicate_scan_request(kb: KnowledgeBase) -> None:
    """Has a worker look for near-duplicates, unless one is asked already and may still come to it."""
    now = timezone.now()
    with transaction.atomic():
        scan, is_new = DuplicateScan.objects.select_for_update().get_or_create(
            knowledge_base=kb, defaults={"asked_at": now}
        )
        if not is_new and (scan.asked_at is None or scan.asked_at < now - WAITED_LONG):
            scan.asked_at = now
            scan.save(update_fields=["asked_at"])


def duplicate_scan_run(kb_id: int) -> None:
    kb = KnowledgeBase.objects.filter(pk=kb_id).first()
    if kb is None:
        return
    version = KnowledgeBaseVersion.objects.values_list("version", flat=True).get(pk=kb.pk)
    groups = look_for_duplicates(kb)
    kept = [{"chunk_ids": each.chunk_ids[:MOST_IN_GROUP], "similarity": each.similarity} for each in groups]
    DuplicateScan.objects.filter(pk=kb_id).update(
        version=version, groups=kept[:MOST_GROUPS], group_count=len(groups), found_at=timezone.now(), asked_at=None
    )


def look_for_duplicates(kb: KnowledgeBase) -> list[DuplicateGroup]:
    """Groups of near-duplicates among the enabled chunks, the most alike first.

    Terms are read once, in batches; what is kept of a chunk is its sketch of 168 bytes. Only candidate pairs are
    compared, and no chunk has more of them than `retrieval.dedupe` allows. A chunk without terms has none.
    """
    ids, sketches = _sketched(kb)
    candidates = candidate_pairs(sketches, ALIKE)
    shares = _compared(kb, ids, candidates)
    alike, same = shares >= ALIKE, _same_text(kb, ids)
    pairs = np.concatenate([candidates[alike], same])
    similarity = np.concatenate([shares[alike], np.ones(len(same))])
    groups = groups_of(pairs, len(ids))
    least, first = np.ones(len(ids)), np.zeros(len(ids), dtype=np.int64)
    for members in groups:
        first[members] = members[0]
    np.minimum.at(least, first[pairs[:, 0]], similarity)
    found = [DuplicateGroup(tuple(ids[members].tolist()), float(least[members[0]])) for members in groups]
    return sorted(found, key=lambda group: (-group.similarity, group.chunk_ids))


def duplicates_of(chunk: Chunk) -> list[tuple[Chunk, float]]:
    """The near-duplicates of a chunk, among those nearest to it and those of its very text, the most alike first."""
    kb, near = chunk.knowledge_base, [chunk.pk]
    own = ChunkEmbedding.objects.filter(chunk=chunk, kind=ChunkEmbedding.Kind.CONTENT, model=kb.embedding_model).first()
    if own is not None:
        vector = np.array(own.vector, dtype=np.float32)
        found, _similarities = PgVectorStore().search(kb.pk, kb.embedding_model, vector, NEAREST + 1)
        near += found.tolist()
    same = Q(content_hash=chunk.content_hash, enabled=True)
    rows = Chunk.objects.filter(same | Q(pk__in=near), knowledge_base=kb).exclude(pk=chunk.pk)
    others = list(rows.select_related("document").order_by("pk")[: 2 * NEAREST])
    alike = similarities_within(kb, [[chunk, *others]])
    pairs = [(other, alike[other.pk]) for other in others if alike[other.pk] >= ALIKE]
    return sorted(pairs, key=lambda pair: -pair[1])


def similarities_within(kb: KnowledgeBase, groups: Sequence[Sequence[Chunk]]) -> dict[int, float]:
    """How much of their terms chunks have in common with the first of their group, by id; 1 for the very text."""
    pairs = [(group[0], other) for group in groups for other in group[1:]]
    terms = _terms_of(kb, [chunk.pk for group in groups for chunk in group])
    shares = shared_shares([terms[first.pk] for first, _ in pairs], [terms[other.pk] for _, other in pairs])
    return {
        other.pk: 1.0 if other.content_hash == first.content_hash else float(share)
        for (first, other), share in zip(pairs, shares, strict=True)
    }


def _sketched(kb: KnowledgeBase) -> tuple[Ids, Sketches]:
    """The chunks, ascending, and what is kept of their terms."""
    none = np.empty(0, dtype=np.int64)
    ids, sketches = [none], [Sketches.of(none.astype(np.uint64), none)]
    with streaming_cursor(FETCH) as cursor:
        cursor.execute(_TERMS, {"kb": kb.pk, "tokenizer": kb.tokenizer_id}, binary=True)
        while rows := cursor.fetchmany(FETCH):
            sizes = [len(terms) // 8 for _, terms in rows]
            starts = np.concatenate([[0], np.cumsum(sizes[:-1])]).astype(np.int64)
            ids.append(np.array([chunk_id for chunk_id, _ in rows], dtype=np.int64))
            sketches.append(Sketches.of(np.frombuffer(b"".join(terms for _, terms in rows), dtype="<u8"), starts))
    return np.concatenate(ids), Sketches.joined(sketches)


def _compared(kb: KnowledgeBase, ids: Ids, pairs: Ids) -> NDArray[np.float64]:
    shares = [np.empty(0)]
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        batch = ids[pairs[start : start + PAIRS_AT_ONCE]]
        terms = _terms_of(kb, np.unique(batch).tolist())
        shares.append(shared_shares(*([terms[chunk_id] for chunk_id in side] for side in batch.T.tolist())))
    return np.concatenate(shares)


def _terms_of(kb: KnowledgeBase, chunk_ids: Sequence[int]) -> Mapping[int, Terms]:
    """The terms of chunks; none of those that have no postings."""
    rows = ChunkPostings.objects.filter(chunk__in=chunk_ids, tokenizer_id=kb.tokenizer_id)
    found = {chunk_id: np.frombuffer(terms, dtype="<u8") for chunk_id, terms in rows.values_list("chunk_id", "terms")}
    return {**dict.fromkeys(chunk_ids, np.empty(0, dtype=np.uint64)), **found}


def _same_text(kb: KnowledgeBase, ids: Ids) -> Ids:
    """Pairs of positions that connect the chunks of one text."""
    with connection.cursor() as cursor:
        cursor.execute(_SAME_TEXT, {"kb": kb.pk})
        pairs = [pair for (same,) in cursor.fetchall() for pair in pairwise(same)]
    texts = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return np.searchsorted(ids, texts[np.isin(texts, ids).all(axis=1)]).astype(np.int64)


def _found(scan: DuplicateScan, *, is_current: bool) -> Found:
    return Found(
        [DuplicateGroup(tuple(each["chunk_ids"]), each["similarity"]) for each in scan.groups],
        scan.group_count,
        is_current=is_current,
        is_awaited=scan.asked_at is not None,
        was_looked=scan.found_at is not None,
    )
