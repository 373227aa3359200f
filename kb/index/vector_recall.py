"""Measures what approximate indexes find beside a comparison of all vectors, and how deep a search has to look."""

import logging
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

import numpy as np
from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone

from kb.base.db.connections import fetch_all
from kb.base.db.transactions import Purpose, try_lock
from kb.index.models import VectorIndex
from kb.index.pgvector import DEFAULT_EF_SEARCH, Effort, forget_efforts
from kb.index.vector_index import ALL, VectorSpace, chosen_method, vector_spaces

logger = logging.getLogger(__name__)

DEPTH: Final = 25
SAMPLE: Final = 40
LEAST_SAMPLE: Final = 10
MOST_SECONDS: Final = 60.0
"""For the exact answers of one knowledge base; as much of the sample is compared as fits into it."""
EXACT_AT_MOST_MS: Final = 250.0
"""An index that finds too few is not used where to compare all vectors takes no longer."""
EF_SEARCHES: Final = (DEFAULT_EF_SEARCH, 256, 512, 1_000)
PROBES_FACTORS: Final = (1, 2, 4, 8, 16)
GROWN: Final = 0.2
STALE_AFTER: Final = timedelta(days=7)

SAMPLED = """
SELECT vector::text FROM kb_chunkembedding
WHERE knowledge_base_id = %(kb)s AND model = %(model)s AND kind = %(kind)s AND enabled
ORDER BY hashint8(chunk_id) LIMIT %(count)s
"""
NEAREST = """
SELECT vector::halfvec({dimension}) <=> %(vector)s::halfvec({dimension}) AS distance FROM kb_chunkembedding
WHERE knowledge_base_id = %(kb)s AND model = %(model)s AND kind = %(kind)s AND enabled
ORDER BY distance LIMIT %(count)s
"""


def measure_due(kb_id: int | None = None) -> list[VectorIndex]:
    """Measures the indexes that are new, of another method, older than a week, or a fifth larger or smaller than measured.

    Args:
        kb_id: the knowledge base; None: all.
    """
    with try_lock(Purpose.VECTOR_INDEX, ALL) as taken:
        if not taken:
            return []
        known = {(row.knowledge_base_id, row.model, row.kind): row for row in VectorIndex.objects.all()}
        return [
            row
            for space in vector_spaces(kb_id)
            if space.has_index
            and _is_due(space, known.get((space.kb_id, space.model_id, space.kind)))
            and (row := measure(space))
        ]


def measure(space: VectorSpace) -> VectorIndex | None:
    """Measures one index at rising efforts until it finds enough, and keeps the result; None where there is no vector."""
    values: dict[str, Any] = {"kb": space.kb_id, "model": space.model_id, "kind": space.kind, "count": SAMPLE}
    sample = [vector for (vector,) in fetch_all(SAMPLED, values)]
    exact, exact_ms = _search(space, sample, effort=None)
    if not exact or not all(distances.size for distances in exact):  # some are deleted under way
        return None
    sample = sample[: len(exact)]
    for effort in _efforts(space):
        found, index_ms = _search(space, sample, effort)
        recall = recall_of(found, exact)
        if recall >= settings.VECTOR_RECALL_TARGET:
            break
    is_enough = recall >= settings.VECTOR_RECALL_TARGET
    row, _created = VectorIndex.objects.update_or_create(
        knowledge_base_id=space.kb_id,
        model=space.model_id,
        kind=space.kind,
        defaults={
            "method": effort.method,
            "effort": effort.depth,
            "is_used": is_enough or exact_ms > EXACT_AT_MOST_MS,
            "vectors": space.vectors,
            "recall": recall,
            "sampled": len(exact),
            "exact_ms": exact_ms,
            "index_ms": index_ms,
        },
    )
    forget_efforts()
    log = logger.info if is_enough else logger.warning
    log("the vector index %s finds %.3f of the nearest %s", space.index_name, recall, DEPTH)
    return row


def recall_of(found: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> float:
    """The mean share of the nearest that were found.

    What is no farther than the last of the exact answer counts, so that which of several at one distance was found does not
    matter.
    """
    shares = [
        np.count_nonzero(mine <= theirs[-1] + 1e-6) / theirs.size for mine, theirs in zip(found, exact, strict=True)
    ]
    return min(float(np.mean(shares)), 1.0)


def _efforts(space: VectorSpace) -> Iterator[Effort]:
    method = chosen_method()
    if method is VectorIndex.Method.HNSW:
        yield from (Effort(method, ef_search) for ef_search in EF_SEARCHES)
        return
    first = max(1, round(space.lists**0.5))
    yield from (Effort(method, min(first * factor, space.lists)) for factor in PROBES_FACTORS)


def _is_due(space: VectorSpace, row: VectorIndex | None) -> bool:
    if row is None or row.method != chosen_method() or row.measured_at < timezone.now() - STALE_AFTER:
        return True
    return abs(space.vectors - row.vectors) > GROWN * row.vectors


def _search(space: VectorSpace, sample: Sequence[str], effort: Effort | None) -> tuple[list[np.ndarray], float]:
    """Searches by the index at an effort, or, without one, compares all.

    Where the planner would rather compare all, it is kept from it: once the table has grown it will not.

    Returns:
        The distances of the nearest of each vector, ascending, at most DEPTH; and the median time of a search in ms.
    """
    values: dict[str, Any] = {"kb": space.kb_id, "model": space.model_id, "kind": space.kind, "count": DEPTH}
    distances, milliseconds = [], []
    end = time.monotonic() + MOST_SECONDS
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        if effort is None:
            cursor.execute("SET LOCAL enable_indexscan = off")
        else:
            cursor.execute(f"SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; {effort.statements}")
        for number, vector in enumerate(sample):
            if effort is None and number >= LEAST_SAMPLE and time.monotonic() > end:
                break
            started = time.perf_counter()
            cursor.execute(NEAREST.format(dimension=space.dimension), values | {"vector": vector})
            rows = cursor.fetchall()
            milliseconds.append((time.perf_counter() - started) * 1_000)
            distances.append(np.array([distance for (distance,) in rows]))
    return distances, float(np.median(milliseconds)) if milliseconds else 0.0
