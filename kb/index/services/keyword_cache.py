"""What the tiers of the keyword index cache hold of each knowledge base."""

from collections.abc import Iterable, Sequence
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


def _payload_bytes(column: str) -> Func:
    return Func(F(column), function="octet_length", output_field=IntegerField())


class IndexState(StrEnum):
    """How the stored base of a keyword index stands to the chunks."""

    EMPTY = "empty"  # there are no chunks
    BUILDING = "building"  # a process builds one this moment
    CURRENT = "current"
    CHANGED = "changed"  # the changes since are read over it
    MISSING = "missing"  # the next search builds the first one
    OUTDATED = "outdated"  # the next search builds another


def with_base(rows: QuerySet[Any]) -> QuerySet[Any]:
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
    serves = kb.base_tokenizer == kb.tokenizer_id and kb.base_format == index_fingerprint()
    if kb.base_version is None:
        state = IndexState.MISSING
    elif not serves or kb.is_reset or kb.changes > most_changes(kb.base_chunks):
        state = IndexState.OUTDATED
    else:
        state = IndexState.CHANGED if kb.changes else IndexState.CURRENT
    return IndexState.BUILDING if kb.pk in building and state is not IndexState.CURRENT else state


def indexed_knowledge_bases(principal: Principal) -> QuerySet[Any]:
    """The knowledge bases whose indexes the principal may know of, to be paged and given to `add_index_state`."""
    rows: QuerySet[Any] = with_base(KnowledgeBase.objects.visible_to(principal).select_related("version_row")).annotate(
        base_bytes=_payload_bytes("bm25_index__payload"),
        has_chunks=Exists(Chunk.objects.filter(knowledge_base=OuterRef("pk"))),
    )
    return rows


def add_index_state(rows: Sequence[Any]) -> None:
    """Gives each of a page of `indexed_knowledge_bases` its `index_state`, and `redis_bytes`.

    These are 0 where Redis holds nothing, and None of the first that it cannot be asked for and those behind it.
    """
    building = held_locks(Purpose.BUILD_INDEX)
    tier = RedisTier(settings.BM25_REDIS_MAX_BYTES)
    is_reachable = True
    for kb in rows:
        kb.index_state = index_state(kb, has_chunks=kb.has_chunks, building=building)
        kb.redis_bytes = None
        if is_reachable:
            try:
                kb.redis_bytes = tier.size(kb.pk)
            except TierUnavailable:
                is_reachable = False  # the page says so


def database_bytes(principal: Principal) -> int:
    """Bytes of the payloads in bm25_indexes that belong to knowledge bases visible to the principal."""
    return BM25Index.objects.visible_to(principal).aggregate(bytes=Sum(_payload_bytes("payload")))["bytes"] or 0
