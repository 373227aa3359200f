"""The state of keyword indexes, and rebuilding what is derived from chunks while searches go on."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, TypeVar

from django.conf import settings
from django.db import connection
from django.db.models import Count, Exists, F, IntegerField, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce, Length

from kb.access.models import KnowledgeBase, Principal
from kb.base.db.transactions import Purpose, held_locks
from kb.base.errors import Rejected
from kb.content.models import Chunk
from kb.index.bm25 import BM25Store, RedisTier, index_fingerprint, most_changes
from kb.index.fulltext import without_lexemes
from kb.index.models import BM25Index, ChunkChange, ChunkEmbedding, ChunkPostings
from kb.index.pgvector import measure_due
from kb.index.services.reembedding import REEMBED, drop_unused_vectors, reembedding_start
from kb.index.services.tokenizing import TOKENIZING, lacks_postings, renewed_settings, tokenizer_change, write_tokens
from kb.index.services.writing import (
    any_chunk_without,
    chunk_batches,
    extraction_of,
    holding_model,
    prepare,
    rebuild_vectors,
    source_of,
    unchanged,
)
from kb.index.vector_index import builds_under_way, maintain_vector_indexes, spaces_without_index
from kb.jobs.moves import LOOK_SECONDS
from kb.providers.embedding_models import embedder, tokenizer
from kb.providers.usage.counting import counted_for
from retrieval.cache import TierUnavailable

T = TypeVar("T")


class IndexState(StrEnum):
    """How the stored base of a keyword index stands to the chunks."""

    EMPTY = "empty"  # there are no chunks
    BUILDING = "building"  # a process builds one this moment
    CURRENT = "current"
    CHANGED = "changed"  # the changes since are read over it
    MISSING = "missing"  # the next search builds the first one
    OUTDATED = "outdated"  # the next search builds another


def with_base(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Knowledge bases with what is stored of their index, the count of `changes` since it, and `is_reset`."""
    newer = ChunkChange.objects.filter(knowledge_base=OuterRef("pk"), version__gt=OuterRef("base_version"))
    written = newer.exclude(operation=ChunkChange.Operation.RESET).order_by().values("knowledge_base")
    changed = Subquery(written.annotate(chunks=Count("chunk_id", distinct=True)).values("chunks"))
    annotated: QuerySet[Any] = rows.annotate(
        base_version=F("bm25_index__version"),
        base_chunks=F("bm25_index__chunk_count"),
        base_tokenizer=F("bm25_index__tokenizer_id"),
        base_format=F("bm25_index__format"),
        base_built_at=F("bm25_index__built_at"),
        changes=Coalesce(changed, 0, output_field=IntegerField()),
        is_reset=Exists(newer.filter(operation=ChunkChange.Operation.RESET)),
    )
    return annotated


def index_state(kb: Any, *, has_chunks: bool, building: Iterable[int] = ()) -> IndexState:
    """The state of the keyword index of a knowledge base that was read through `with_base`."""
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


def indexed_knowledge_bases(principal: Principal) -> Any:
    """The knowledge bases whose indexes the principal may know of, to be paged and given to `add_index_state`."""
    return with_base(KnowledgeBase.objects.visible_to(principal).select_related("version_row")).annotate(
        base_bytes=Length("bm25_index__payload"),
        has_chunks=Exists(Chunk.objects.filter(knowledge_base=OuterRef("pk"))),
    )


def add_index_state(rows: Sequence[Any]) -> None:
    """Gives each of a page of `indexed_knowledge_bases` its `index_state`, and `redis_bytes`.

    These are 0 where Redis holds nothing, and None of the first that it cannot be asked for and those behind it.
    """
    building = held_locks(Purpose.BUILD_INDEX)
    tier = RedisTier(settings.BM25_REDIS_MAX_BYTES)
    for kb in rows:
        kb.index_state, kb.redis_bytes = index_state(kb, has_chunks=kb.has_chunks, building=building), None
    with suppress(TierUnavailable):  # the page says so
        for kb in rows:
            kb.redis_bytes = tier.size(kb.pk)


def database_bytes(principal: Principal) -> int:
    return BM25Index.objects.visible_to(principal).aggregate(bytes=Sum(Length("payload")))["bytes"] or 0


def reindex_postings(
    kb: KnowledgeBase, *, resume: bool = False, on_progress: Callable[[int], None] = lambda _: None
) -> None:
    """Tokenises chunks again: for the target tokenizer, for a newer version of the active one, or in place.

    On the way to a target a worker may do its share, since it gets a task for every target too. `resume` keeps what an
    interrupted run in place has made; the other two always do. `on_progress` gets how many further chunks are done.
    Rejected where the tokenizer's packages are missing.
    """
    cutter = tokenizer(kb.tokenizer_id)
    if cutter is None:
        raise Rejected("bm25_dependencies_missing", "rank-bm25 or jieba is not installed: pip install rank-bm25 jieba")
    if not kb.target_tokenizer_id and cutter.id != kb.tokenizer_id:
        tokenizer_change(kb, renewed_settings(kb, kb.tokenizer_id, cutter.id))
    if kb.target_tokenizer_id:
        TOKENIZING.follow(kb, on_progress=on_progress)
        return
    finished: set[int] = set()
    if resume:  # chunks whose postings and lexemes are there
        rows = ChunkPostings.objects.filter(knowledge_base=kb, tokenizer_id=cutter.id)
        lacking = without_lexemes(rows).values_list("chunk_id", flat=True)
        finished = set(rows.values_list("chunk_id", flat=True)).difference(lacking)
    for batch in chunk_batches(kb, done=finished.intersection):
        write_tokens(kb, batch, cutter)
        on_progress(len(batch))
    KnowledgeBase.objects.filter(pk=kb.pk).update(lacks_postings=lacks_postings(kb, cutter.id))
    BM25Store().invalidate(kb.pk)


def reindex_embeddings(
    kb: KnowledgeBase,
    *,
    model_id: str = "",
    resume: bool = False,
    swap: bool = True,
    on_progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Embeds every chunk with a model: another one beside that in use, which stays for a return; the same one in place.

    A blank `model_id` means the one in use. `resume` keeps the vectors that there are in place, as a change to another
    model always does; with `swap` searches change over to that when its vectors are complete. `on_progress` gets how
    many further chunks are done. ModelUnavailable, before anything is changed, where the model cannot be loaded;
    Rejected where the knowledge base is on its way to another model.
    """
    model = embedder(model_id or kb.embedding_model)
    dimension = model.dimension  # loads the model, or says why not, before anything is changed
    if model.model_id != kb.embedding_model:
        reembedding_start(kb, model.model_id, swaps=swap)
        REEMBED.follow(kb, on_progress=on_progress)
        return
    finished = _with_vectors(kb, model.model_id) if resume else set()
    embedded = ChunkEmbedding.objects.filter(model=model.model_id, kind=ChunkEmbedding.Kind.CONTENT)
    while True:
        for batch in chunk_batches(kb, done=finished.intersection):
            sources = list(map(source_of, batch))
            with counted_for(kb.pk):
                prepared = prepare(sources, tokenizers=(), embedder=model, extraction=extraction_of(kb))
            with holding_model(kb):
                rebuild_vectors(unchanged(zip(batch, prepared, strict=True)), model.model_id)
            on_progress(len(batch))
        if not any_chunk_without(kb, embedded):
            break
        finished = _with_vectors(kb, model.model_id)
    KnowledgeBase.objects.filter(pk=kb.pk).update(dimension=dimension)
    drop_unused_vectors(kb)


def _with_vectors(kb: KnowledgeBase, model_id: str) -> set[int]:
    """Chunks that have a vector of each kind that the knowledge base keeps for all."""
    kinds = [ChunkEmbedding.Kind.CONTENT] + ([ChunkEmbedding.Kind.KEYWORDS] if kb.keyword_vectors else [])
    rows = ChunkEmbedding.objects.filter(knowledge_base=kb, model=model_id)
    return set.intersection(*(set(rows.filter(kind=kind).values_list("chunk_id", flat=True)) for kind in kinds))


class Step(StrEnum):
    STATISTICS = "statistics"
    FULL_TEXT = "full text"
    KEYWORDS = "keyword indexes"
    VECTORS = "vector indexes"


# Receives the step, how much of it is done, and of how much: tables, indexes, knowledge bases or vectors.
OnStep = Callable[[Step, int, int], None]


def build_indexes(
    knowledge_bases: Sequence[KnowledgeBase], on_step: OnStep = lambda _step, _done, _total: None
) -> None:
    """Brings the planner's statistics and every index of knowledge bases up to date, so that the next search has them.

    In a transaction nothing is built, since nobody else could use it.
    """
    if connection.in_atomic_block:
        return

    def each(step: Step, items: Sequence[T]) -> Iterator[T]:
        for done, item in enumerate(items):
            on_step(step, done, len(items))
            yield item
        on_step(step, len(items), len(items))

    with connection.cursor() as cursor:
        for table in each(Step.STATISTICS, ["kb_document", "kb_chunk", "kb_chunkpostings", "kb_chunkembedding"]):
            cursor.execute(f"ANALYZE {table}")
        for index in each(Step.FULL_TEXT, ["postings_lexemes"]):  # what is pending every search reads from end to end
            cursor.execute("SELECT gin_clean_pending_list(%s::regclass)", [index])
    for kb in each(Step.KEYWORDS, knowledge_bases):
        _build_keyword_index(kb)
    for kb in knowledge_bases:
        _build_vector_indexes(kb, on_step)


def _build_keyword_index(kb: KnowledgeBase) -> None:
    """Returns once the stored index holds every chunk, whoever has built it."""
    if tokenizer(kb.tokenizer_id) is None:
        return
    rows = with_base(KnowledgeBase.objects.filter(pk=kb.pk).select_related("version_row"))
    while (now := rows.first()) is not None:
        state = index_state(now, has_chunks=Chunk.objects.filter(knowledge_base=kb).exists())
        if state in (IndexState.CURRENT, IndexState.EMPTY) or BM25Store().merge(now.pk, now.tokenizer_id):
            return
        time.sleep(LOOK_SECONDS)


def _build_vector_indexes(kb: KnowledgeBase, on_step: OnStep) -> None:
    """Returns once the indexes that are due are there, whoever builds them; one that cannot be made is in the log."""
    while (due := spaces_without_index(kb.pk)) and not maintain_vector_indexes(
        kb.pk, lambda done, total: on_step(Step.VECTORS, done, total)
    ):
        under_way = builds_under_way()
        done = sum(min(under_way.get(space.index_name, 0), space.vectors) for space in due)
        on_step(Step.VECTORS, done, sum(space.vectors for space in due))
        time.sleep(LOOK_SECONDS)
    measure_due(kb.pk)
