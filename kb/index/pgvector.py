"""Cosine search over the vectors of one knowledge base, model and kind, by an approximate index where there is one.

What an index finds beside a comparison of all vectors is measured, and how deep a search has to look into it.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

import numpy as np
from django.conf import settings
from django.db import connection, transaction
from django.utils import timezone
from numpy.typing import NDArray
from pgvector import HalfVector

from kb.base.db.transactions import Purpose, array_text, fetch_all, try_lock, vector_text
from kb.index.models import ChunkEmbedding, VectorIndex
from kb.index.vector_index import VectorSpace, chosen_method, vector_spaces

logger = logging.getLogger(__name__)

# As in the settings' connection options; a search that asks for no more needs no statement of its own.
DEFAULT_EF_SEARCH: Final = 128


UNMEASURED: Final = VectorIndex(method=VectorIndex.Method.HNSW, effort=DEFAULT_EF_SEARCH)


def _settings_of(index: VectorIndex) -> str:
    """Sets the effort for the rest of the transaction, which is the statement that follows where there is none."""
    if index.method == VectorIndex.Method.IVFFLAT:
        return f"SET LOCAL ivfflat.probes = {index.effort};"
    return f"SET LOCAL hnsw.ef_search = {index.effort};" if index.effort != DEFAULT_EF_SEARCH else ""


@lru_cache(maxsize=1)
def efforts(minute: int) -> Mapping[tuple[int, str, str], VectorIndex]:  # noqa: ARG001 - the next one asks again
    """Those that differ from the default, which are few: one small query a minute and process."""
    rows = VectorIndex.objects.filter(method=settings.VECTOR_INDEX_METHOD)
    differing = rows.exclude(method=VectorIndex.Method.HNSW, effort=DEFAULT_EF_SEARCH, is_used=True)
    return {(row.knowledge_base_id, row.model, row.kind): row for row in differing}


# So many chunks are compared one by one sooner than an index is searched for those among them.
MAX_EXACT = 20_000

# Several questions of a chunk may stand before other chunks: so many vectors are read for each chunk wanted.
QUESTIONS_READ = 4

# The knowledge base, model and kind go over as literals, since only so a plan can use the index that is made for them.
DISTANCES = """
SELECT chunk_id, (vector::halfvec({dimension}) <=> %(vector)s::halfvec({dimension})){exactly} AS distance
FROM kb_chunkembedding
WHERE knowledge_base_id = %(kb)s AND model = %(model)s AND kind = %(kind)s
"""
AMONG = " AND chunk_id = ANY(%(only)s::bigint[])"
NEAREST = " ORDER BY distance, chunk_id LIMIT %(limit)s"
# A chunk has one vector, but for its questions; to group many takes long, in one process and in the order of the chunks.
BEST_OF_EACH = "SELECT chunk_id, min(distance) AS distance FROM ({distances}) AS compared GROUP BY chunk_id"

Found = tuple[NDArray[np.int64], NDArray[np.float64]]


class PgVectorStore:
    """Approximate where the vectors have an index, and exact where they have none or the index finds too few.

    A filter that leaves out what stands nearest to the query can keep an index from finding enough.
    """

    def search(
        self,
        kb_id: int,
        model_id: str,
        vector: NDArray[np.float32],
        k: int,
        *,
        kind: str = ChunkEmbedding.Kind.CONTENT,
        only: NDArray[np.int64] | None = None,
    ) -> Found:
        if k < 1 or (only is not None and not only.size):
            return _found([])
        wanted = _values(kb_id, model_id, vector, kind)
        statement = f"{DISTANCES} AND enabled"
        if only is not None:
            statement += AMONG
            wanted["only"] = array_text(only.tolist())
        has_several = kind == ChunkEmbedding.Kind.QUESTION
        # No index is in the order of a sum, so that all are compared, by several processes where there are many.
        exact = statement.format(dimension=len(vector), exactly=" + 0")
        exact = (BEST_OF_EACH.format(distances=exact) if has_several else exact) + NEAREST
        index = efforts(int(time.monotonic() // 60)).get((kb_id, model_id, str(kind)), UNMEASURED)
        if (only is not None and only.size <= MAX_EXACT) or not index.is_used:
            return _found(fetch_all(exact, wanted | {"limit": k}))
        by_index = statement.format(dimension=len(vector), exactly="") + NEAREST
        prelude = _settings_of(index)  # in the same round trip
        with connection.cursor() as cursor:
            cursor.execute(prelude + by_index, wanted | {"limit": k * QUESTIONS_READ if has_several else k})
            if prelude:
                cursor.nextset()
            chunk_ids, similarities = _found(cursor.fetchall())
        if chunk_ids.size < k:
            return _found(fetch_all(exact, wanted | {"limit": k}))
        return chunk_ids[:k], similarities[:k]

    def similarities(
        self,
        kb_id: int,
        model_id: str,
        vector: NDArray[np.float32],
        chunk_ids: NDArray[np.int64],
        *,
        kind: str = ChunkEmbedding.Kind.CONTENT,
    ) -> NDArray[np.float64]:
        if not chunk_ids.size:
            return np.empty(0)
        wanted = _values(kb_id, model_id, vector, kind) | {"only": array_text(chunk_ids.tolist())}
        compared = (DISTANCES + AMONG).format(dimension=len(vector), exactly="")
        distances = dict(fetch_all(BEST_OF_EACH.format(distances=compared), wanted))
        return 1.0 - np.array([distances.get(chunk_id, np.nan) for chunk_id in chunk_ids.tolist()])


def _values(kb_id: int, model_id: str, vector: NDArray[np.float32], kind: str) -> dict[str, Any]:
    return {"kb": kb_id, "model": model_id, "kind": str(kind), "vector": vector_text(vector)}


def _found(rows: list[tuple[Any, ...]]) -> Found:
    """Each chunk once, with its best; a vector of length 0 has no direction, so it is not found."""
    best: dict[int, float] = {}
    # Once more, since the lists of an IVFFlat index that is scanned further are not in order.
    for distance, chunk_id in sorted((distance, chunk_id) for chunk_id, distance in rows if not math.isnan(distance)):
        best.setdefault(chunk_id, distance)
    chunk_ids = np.fromiter(best, dtype=np.int64, count=len(best))
    return chunk_ids, 1.0 - np.fromiter(best.values(), dtype=np.float64, count=len(best))


ONE_EACH = """
SELECT chunk_id, vector::halfvec({dimension}) <=> %(vector)s::halfvec({dimension}) AS distance
FROM kb_chunkembedding
WHERE knowledge_base_id = %(kb)s AND model = %(model)s AND kind = %(kind)s AND enabled {among}
OFFSET 0
"""
# A chunk of several questions counts with the nearest. The vector of its keywords is joined as `VectorChannel` joins it:
# 1 - similarity is as linear as similarity is. NaN is the distance of a vector of length 0. Grouping takes four times as long.
SEVERAL_EACH = """
SELECT chunk_id, CASE WHEN keywords IS NULL OR keywords = 'NaN' THEN nearest
    ELSE (1 - %(share)s) * nearest + %(share)s * keywords END AS distance
FROM (
    SELECT chunk_id, min(distance) FILTER (WHERE kind = %(kind)s) AS nearest,
        min(distance) FILTER (WHERE kind <> %(kind)s) AS keywords
    FROM (
        SELECT chunk_id, kind, vector::halfvec({dimension}) <=> %(vector)s::halfvec({dimension}) AS distance
        FROM kb_chunkembedding
        WHERE knowledge_base_id = %(kb)s AND model = %(model)s AND kind = ANY(%(kinds)s) AND enabled {among}
    ) each
    GROUP BY chunk_id
) joined
"""
RANK = """
SELECT own.distance,
    count(*) FILTER (WHERE (compared.distance, compared.chunk_id) < (own.distance, %(chunk)s)),
    count(*) FILTER (WHERE compared.distance <> 'NaN'),
    EXISTS (
        SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relname = %(index)s AND i.indisvalid
    )
FROM (SELECT (SELECT NULLIF(distance, 'NaN') FROM ({own}) it) AS distance) own
LEFT JOIN ({compared}) compared ON true
GROUP BY own.distance
"""


@dataclass(frozen=True, slots=True)
class ExactPlace:
    """A chunk among the `total` that vectors of one kind find: its rank, from 1, and its cosine.

    Both are None where it has no such vector of a length above 0.
    """

    rank: int | None
    similarity: float | None
    total: int
    is_indexed: bool


def exact_place(
    kb_id: int,
    model_id: str,
    vector: NDArray[np.float32],
    chunk_id: int,
    *,
    kind: str = ChunkEmbedding.Kind.CONTENT,
    keyword_share: float = 0.0,
    only: NDArray[np.int64] | None = None,
) -> ExactPlace:
    """The place of a chunk among the enabled ones, or those of `only`, counted by the database over all of them.

    The vector of the query is of shape (dimension,); `keyword_share` is that of the vectors of keywords, where there are any.
    """
    values: dict[str, Any] = {
        "kb": kb_id,
        "model": model_id,
        "vector": HalfVector(vector).to_text(),
        "kind": str(kind),
        "kinds": [str(kind), *([str(ChunkEmbedding.Kind.KEYWORDS)] if keyword_share else [])],
        "share": keyword_share,
        "chunk": chunk_id,
        "index": VectorSpace(kb_id, model_id, str(kind), 0, len(vector)).index_name,
        "only": None if only is None else array_text(only.tolist()),
    }
    distances = SEVERAL_EACH if keyword_share or kind == ChunkEmbedding.Kind.QUESTION else ONE_EACH
    among = "" if only is None else AMONG
    compared, own = (
        distances.format(dimension=len(vector), among=among + each) for each in ("", " AND chunk_id = %(chunk)s")
    )
    [(distance, above, total, is_indexed)] = fetch_all(RANK.format(compared=compared, own=own), values)
    rank, similarity = (None, None) if distance is None else (above + 1, 1.0 - distance)
    return ExactPlace(rank, similarity, total, is_indexed)


# -- How much an index finds -------------------------------------------------------------------------------------------
DEPTH: Final = 25
SAMPLE: Final = 40
LEAST_SAMPLE: Final = 10
# For the exact answers of one knowledge base; as much of the sample is compared as fits into it.
MOST_SECONDS: Final = 60.0
# An index that finds too few is not used where to compare all vectors takes no longer.
EXACT_AT_MOST_MS: Final = 250.0
EF_SEARCHES: Final = (DEFAULT_EF_SEARCH, 256, 512, 1_000)

SAMPLED = """
SELECT vector::text FROM kb_chunkembedding
WHERE knowledge_base_id = %(kb)s AND model = %(model)s AND kind = %(kind)s AND enabled
ORDER BY hashint8(chunk_id) LIMIT %(count)s
"""
NEAREST_DISTANCES = """
SELECT vector::halfvec({dimension}) <=> %(vector)s::halfvec({dimension}) AS distance FROM kb_chunkembedding
WHERE knowledge_base_id = %(kb)s AND model = %(model)s AND kind = %(kind)s AND enabled
ORDER BY distance LIMIT %(count)s
"""


def measure_due(kb_id: int | None = None) -> list[VectorIndex]:
    """Measures the indexes that are new, of another method, older than a week, or a fifth larger or smaller than measured."""
    with try_lock(Purpose.VECTOR_INDEX) as taken:
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
    exact, exact_ms = _timed_search(space, sample, index=None)
    if not exact or not all(distances.size for distances in exact):  # some are deleted under way
        return None
    method = chosen_method()
    for effort in _efforts_to_try(space):
        found, index_ms = _timed_search(space, sample[: len(exact)], VectorIndex(method=method, effort=effort))
        recall = recall_of(found, exact)
        if is_enough := recall >= settings.VECTOR_RECALL_TARGET:
            break
    measured = {
        "method": method,
        "effort": effort,
        "is_used": is_enough or exact_ms > EXACT_AT_MOST_MS,
        "vectors": space.vectors,
        "recall": recall,
        "sampled": len(exact),
        "exact_ms": exact_ms,
        "index_ms": index_ms,
    }
    row, _created = VectorIndex.objects.update_or_create(
        knowledge_base_id=space.kb_id, model=space.model_id, kind=space.kind, defaults=measured
    )
    efforts.cache_clear()
    level = logging.INFO if is_enough else logging.WARNING
    logger.log(level, "the vector index %s finds %.3f of the nearest %s", space.index_name, recall, DEPTH)
    return row


def recall_of(found: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> float:
    """The mean share of the nearest that were found; what is no farther than the last of the exact answer counts."""
    pairs = zip(found, exact, strict=True)
    shares = [np.count_nonzero(mine <= theirs[-1] + 1e-6) / theirs.size for mine, theirs in pairs]
    return min(float(np.mean(shares)), 1.0)


def _efforts_to_try(space: VectorSpace) -> Sequence[int]:
    if chosen_method() is VectorIndex.Method.HNSW:
        return EF_SEARCHES
    first = max(1, round(space.lists**0.5))
    return [min(first * factor, space.lists) for factor in (1, 2, 4, 8, 16)]


def _is_due(space: VectorSpace, row: VectorIndex | None) -> bool:
    return (
        row is None
        or row.method != chosen_method()
        or row.measured_at < timezone.now() - timedelta(days=7)
        or abs(space.vectors - row.vectors) > 0.2 * row.vectors
    )


def _timed_search(
    space: VectorSpace, sample: Sequence[str], index: VectorIndex | None
) -> tuple[list[np.ndarray], float]:
    """Searches by the index at its effort, or, without one, compares all.

    Where the planner would rather compare all, it is kept from it: once the table has grown it will not. Returns the
    distances of the nearest of each vector, ascending, at most DEPTH, and the median time of a search in ms.
    """
    values: dict[str, Any] = {"kb": space.kb_id, "model": space.model_id, "kind": space.kind, "count": DEPTH}
    distances, milliseconds = [], []
    end = time.monotonic() + MOST_SECONDS
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        if index is None:
            cursor.execute("SET LOCAL enable_indexscan = off")
        else:
            cursor.execute(f"SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off; {_settings_of(index)}")
        for number, vector in enumerate(sample):
            if index is None and number >= LEAST_SAMPLE and time.monotonic() > end:
                break
            started = time.perf_counter()
            cursor.execute(NEAREST_DISTANCES.format(dimension=space.dimension), values | {"vector": vector})
            rows = cursor.fetchall()
            milliseconds.append((time.perf_counter() - started) * 1_000)
            distances.append(np.array([distance for (distance,) in rows]))
    return distances, float(np.median(milliseconds)) if milliseconds else 0.0
