"""Rebuilds what is derived from chunks while searches go on."""

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from django.db import connection

from kb.access.models import KnowledgeBase
from kb.base.errors import Rejected
from kb.content.models import Chunk
from kb.index.bm25 import BM25Store
from kb.index.fulltext import without_lexemes
from kb.index.models import ChunkEmbedding, ChunkPostings
from kb.index.pgvector import measure_due
from kb.index.preparing import prepare, rebuild_vectors
from kb.index.services.keyword_cache import IndexState, index_state, with_base
from kb.index.services.reembedding import REEMBED, drop_unused_vectors, reembedding_start
from kb.index.services.tokenizing import (
    TOKENIZING,
    lacks_postings,
    renewed_settings,
    tokenizer_change,
    write_tokens,
)
from kb.index.services.writing import (
    any_chunk_without,
    chunk_batches,
    extraction_of,
    holding_model,
    source_of,
    unchanged,
)
from kb.index.vector_index import builds_under_way, maintain_vector_indexes, spaces_without_index
from kb.jobs.moves import LOOK_SECONDS
from kb.providers.embedding_models import embedder
from kb.providers.tokenizers import tokenizer


def reindex_postings(
    kb: KnowledgeBase, *, resume: bool = False, on_progress: Callable[[int], None] = lambda _: None
) -> None:
    """Tokenises chunks again: for the target tokenizer, for a newer version of the active one, or in place.

    On the way to a target a worker may do its share, since it gets a task for every target too.

    Args:
        kb: the knowledge base.
        resume: in place, keep what an interrupted run has made; the other two always do.
        on_progress: given how many further chunks are done.

    Raises:
        Rejected: the tokenizer's packages are missing.
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

    Args:
        kb: the knowledge base.
        model_id: blank: the one in use.
        resume: in place, keep the vectors that there are; a change to another model always goes on where it stood.
        swap: change searches over to another model when its vectors are complete.
        on_progress: given how many further chunks are done.

    Raises:
        ModelUnavailable: the model cannot be loaded; nothing was changed.
        Rejected: the knowledge base is on its way to another model.
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
            prepared = prepare(list(map(source_of, batch)), tokenizers=(), embedder=model, extraction=extraction_of(kb))
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


TABLES: Final = ("kb_document", "kb_chunk", "kb_chunkpostings", "kb_chunkembedding")
FULL_TEXT_INDEX: Final = "postings_lexemes"


class Step(StrEnum):
    """What is built, in this order."""

    STATISTICS = "statistics"
    FULL_TEXT = "full text"
    KEYWORDS = "keyword indexes"
    VECTORS = "vector indexes"


OnStep = Callable[[Step, int, int], None]
"""Receives the step, how much of it is done, and of how much: tables, indexes, knowledge bases or vectors."""


def build_indexes(
    knowledge_bases: Sequence[KnowledgeBase], on_step: OnStep = lambda _step, _done, _total: None
) -> None:
    """Brings the planner's statistics and every index of knowledge bases up to date, so that the next search finds them there.

    In a transaction nothing is built, since nobody else could use it.

    Args:
        knowledge_bases: that have changed.
        on_step: given how far it is.
    """
    if connection.in_atomic_block:
        return
    for done, table in enumerate(TABLES):
        on_step(Step.STATISTICS, done, len(TABLES))
        _execute(f"ANALYZE {table}")
    on_step(Step.STATISTICS, len(TABLES), len(TABLES))
    on_step(Step.FULL_TEXT, 0, 1)
    _execute("SELECT gin_clean_pending_list(%s::regclass)", FULL_TEXT_INDEX)  # which every search reads from end to end
    on_step(Step.FULL_TEXT, 1, 1)
    for done, kb in enumerate(knowledge_bases):
        on_step(Step.KEYWORDS, done, len(knowledge_bases))
        _build_keyword_index(kb)
    on_step(Step.KEYWORDS, len(knowledge_bases), len(knowledge_bases))
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
    ).is_done:
        under_way = builds_under_way()
        done = sum(min(under_way.get(space.index_name, 0), space.vectors) for space in due)
        on_step(Step.VECTORS, done, sum(space.vectors for space in due))
        time.sleep(LOOK_SECONDS)
    measure_due(kb.pk)


def _execute(statement: str, *values: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
