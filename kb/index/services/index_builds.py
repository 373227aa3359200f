"""Builds what searches would otherwise wait for after much was written: for commands, which can wait, not for requests."""

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from django.db import connection

from kb.access.models.knowledge import KnowledgeBase
from kb.content.models.documents import Chunk
from kb.index.bm25 import BM25Store
from kb.index.services.keyword_cache import IndexState, index_state, with_base
from kb.index.vector_index import builds_under_way, maintain_vector_indexes, spaces_without_index
from kb.index.vector_recall import measure_due
from kb.providers.tokenizers import tokenizer

TABLES: Final = ("kb_document", "kb_chunk", "kb_chunkpostings", "kb_chunkembedding")
FULL_TEXT_INDEX: Final = "postings_lexemes"
LOOK_SECONDS: Final = 0.5


class Step(StrEnum):
    """What is built, in this order."""

    STATISTICS = "statistics"
    FULL_TEXT = "full text"
    KEYWORDS = "keyword indexes"
    VECTORS = "vector indexes"


OnStep = Callable[[Step, int, int], None]
"""Told the step, how much of it is done, and of how much: tables, indexes, knowledge bases or vectors."""


def build_indexes(
    knowledge_bases: Sequence[KnowledgeBase], on_step: OnStep = lambda _step, _done, _total: None
) -> None:
    """Brings the planner's statistics and every index of knowledge bases up to date, so that the next search finds them there.

    In a transaction nothing is built, since nobody else could use it.

    Args:
        knowledge_bases: that have changed.
        on_step: told how far it is.
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
        has_chunks = Chunk.objects.filter(knowledge_base=kb).exists()
        if index_state(now, has_chunks=has_chunks) in (IndexState.CURRENT, IndexState.EMPTY):
            return
        if BM25Store().merge(now.pk, now.tokenizer_id):
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
