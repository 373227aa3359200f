"""What the tiers of the keyword index cache hold of each knowledge base."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.db.models import Count, Exists, F, Func, IntegerField, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from kb.access.models import KnowledgeBase, Principal
from kb.base.db.transactions import Purpose, held_locks
from kb.content.models import Chunk
from kb.index.bm25 import RedisTier, index_fingerprint, most_changes
from kb.index.models import BM25Index, ChunkChange
from retrieval.cache import TierUnavailable

PAYLOAD_BYTES = Func(F("payload"), function="octet_length", output_field=IntegerField())


class IndexState(StrEnum):
    """How the stored base of a keyword index stands to the chunks."""

    EMPTY = "empty"  # there are no chunks
    BUILDING = "building"  # a process builds one this moment
    CURRENT = "current"
    CHANGED = "changed"  # the changes since are read over it
    MISSING = "missing"  # the next search builds the first one
    OUTDATED = "outdated"  # the next search builds another


@dataclass(frozen=True, slots=True)
class KeywordIndex:
    """What is stored of one knowledge base's keyword index.

    Attributes:
        base_version: of the row in bm25_indexes; None: there is none, and so none of the next three.
        changes: chunks written or deleted since that version.
        redis_bytes: 0 where Redis holds nothing, None where it cannot be asked.
    """

    kb: KnowledgeBase
    version: int
    base_version: int | None
    base_bytes: int | None
    base_chunks: int | None
    built_at: datetime | None
    changes: int
    redis_bytes: int | None
    state: IndexState


def with_base(rows: QuerySet[KnowledgeBase]) -> QuerySet[Any]:
    """Knowledge bases with what `bm25_indexes` says of their base, the count of `changes` since it, and `is_reset`."""
    newer = ChunkChange.objects.filter(knowledge_base=OuterRef("pk"), version__gt=OuterRef("base_version"))
    written = newer.exclude(operation=ChunkChange.Operation.RESET).order_by().values("knowledge_base")
    annotated: QuerySet[Any] = rows.annotate(
        base_version=F("bm25_index__version"),
        base_chunks=F("bm25_index__chunk_count"),
        base_tokenizer=F("bm25_index__tokenizer_id"),
        base_format=F("bm25_index__format"),
        base_built_at=F("bm25_index__built_at"),
        changes=Coalesce(
            Subquery(written.annotate(chunks=Count("chunk_id", distinct=True)).values("chunks")),
            0,
            output_field=IntegerField(),
        ),
        is_reset=Exists(newer.filter(operation=ChunkChange.Operation.RESET)),
    )
    return annotated


def index_state(kb: Any, *, has_chunks: bool, building: Iterable[int] = ()) -> IndexState:
    """The state of a knowledge base that was read through `with_base`, with its `version_row`."""
    if not has_chunks:
        return IndexState.EMPTY
    stored = _state_of_base(kb)
    return IndexState.BUILDING if kb.pk in building and stored is not IndexState.CURRENT else stored


def _state_of_base(kb: Any) -> IndexState:
    if kb.base_version is None:
        return IndexState.MISSING
    serves = kb.base_tokenizer == kb.tokenizer_id and kb.base_format == index_fingerprint()
    if kb.is_reset or not serves or kb.changes > most_changes(kb.base_chunks):
        return IndexState.OUTDATED
    return IndexState.CHANGED if kb.changes else IndexState.CURRENT


def indexed_knowledge_bases(principal: Principal) -> QuerySet[Any]:
    """The knowledge bases whose indexes the principal may know of, to be paged and given to `keyword_indexes`."""
    rows = KnowledgeBase.objects.visible_to(principal).select_related("version_row")
    annotated: QuerySet[Any] = with_base(rows).annotate(
        base_bytes=Func(F("bm25_index__payload"), function="octet_length", output_field=IntegerField()),
        has_chunks=Exists(Chunk.objects.filter(knowledge_base=OuterRef("pk"))),
    )
    return annotated


def keyword_indexes(rows: Sequence[Any]) -> list[KeywordIndex]:
    """What the tiers hold of each of a page of `indexed_knowledge_bases`."""
    building = held_locks(Purpose.BUILD_INDEX)
    in_redis = _redis_bytes([kb.pk for kb in rows])
    return [
        KeywordIndex(
            kb=kb,
            version=kb.version_row.version,
            base_version=kb.base_version,
            base_bytes=kb.base_bytes,
            base_chunks=kb.base_chunks,
            built_at=kb.base_built_at,
            changes=kb.changes,
            redis_bytes=in_redis.get(kb.pk),
            state=index_state(kb, has_chunks=kb.has_chunks, building=building),
        )
        for kb in rows
    ]


def database_bytes(principal: Principal) -> int:
    """Bytes of the payloads in bm25_indexes that belong to knowledge bases visible to the principal."""
    return BM25Index.objects.visible_to(principal).aggregate(bytes=Sum(PAYLOAD_BYTES))["bytes"] or 0


def _redis_bytes(kb_ids: Sequence[int]) -> dict[int, int]:
    """Payload bytes by knowledge base; of the first that cannot be asked for and those behind it nothing."""
    tier = RedisTier(settings.BM25_REDIS_MAX_BYTES)
    sizes: dict[int, int] = {}
    try:
        for kb_id in kb_ids:
            sizes[kb_id] = tier.size(kb_id)
    except TierUnavailable:
        pass  # the page says so
    return sizes
