"""Cosine search over the vectors of one knowledge base, model and kind, by an approximate index where there is one."""

import math
from typing import Any

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from kb.base.db.arrays import array_text, vector_text
from kb.index.models.index import ChunkEmbedding
from kb.index.vector_effort import Effort, effort_of

MAX_EXACT = 20_000
"""So many chunks are compared one by one sooner than an index is searched for those among them."""

QUESTIONS_READ = 4
"""Several questions of a chunk may stand before other chunks: so many vectors are read for each chunk wanted."""

# The knowledge base, model and kind go over as literals, since only so a plan can use the index that is made for them.
DISTANCES = """
SELECT chunk_id, (vector::halfvec({dimension}) <=> %(vector)s::halfvec({dimension})){exactly} AS distance
FROM kb_chunkembedding
WHERE knowledge_base_id = %(kb)s AND model = %(model)s AND kind = %(kind)s
"""
OF_ENABLED = f"{DISTANCES} AND enabled"
AMONG = " AND chunk_id = ANY(%(only)s::bigint[])"
NEAREST = " ORDER BY distance, chunk_id LIMIT %(limit)s"
EXACTLY = " + 0"
"""No index is in the order of a sum, so that all are compared, by several processes where there are many."""
BEST_OF_EACH = "SELECT chunk_id, min(distance) AS distance FROM ({distances}) AS compared GROUP BY chunk_id"
"""A chunk has one vector, but for its questions; to group many takes long, in one process and in the order of the chunks."""

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
        statement = OF_ENABLED
        if only is not None:
            statement += AMONG
            wanted["only"] = array_text(only.tolist())
        has_several = kind == ChunkEmbedding.Kind.QUESTION
        exact = statement.format(dimension=len(vector), exactly=EXACTLY)
        exact = (BEST_OF_EACH.format(distances=exact) if has_several else exact) + NEAREST
        effort = effort_of(kb_id, model_id, kind)
        if (only is not None and only.size <= MAX_EXACT) or not effort.is_used:
            return _found(_rows(exact, wanted | {"limit": k}))
        by_index = statement.format(dimension=len(vector), exactly="") + NEAREST
        limit = k * QUESTIONS_READ if has_several else k
        chunk_ids, similarities = _found(_rows(by_index, wanted | {"limit": limit}, effort))
        if chunk_ids.size < k:
            return _found(_rows(exact, wanted | {"limit": k}))
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
        distances = dict(_rows(BEST_OF_EACH.format(distances=compared), wanted))
        return 1.0 - np.array([distances.get(chunk_id, np.nan) for chunk_id in chunk_ids.tolist()])


def _values(kb_id: int, model_id: str, vector: NDArray[np.float32], kind: str) -> dict[str, Any]:
    return {"kb": kb_id, "model": model_id, "kind": str(kind), "vector": vector_text(vector)}


def _rows(statement: str, values: dict[str, Any], effort: Effort | None = None) -> list[tuple[int, float]]:
    """The rows of a statement; one that asks for an effort of its own has it in the same round trip."""
    prelude = effort.statements if effort else ""
    with connection.cursor() as cursor:
        cursor.execute(prelude + statement, values)
        if prelude:
            cursor.nextset()
        rows: list[tuple[int, float]] = cursor.fetchall()
    return rows


def _found(rows: list[tuple[int, float]]) -> Found:
    """Each chunk once, with its best; a vector of length 0 has no direction, so it is not found."""
    best: dict[int, float] = {}
    # Once more, since the lists of an IVFFlat index that is scanned further are not in order.
    for distance, chunk_id in sorted((distance, chunk_id) for chunk_id, distance in rows if not math.isnan(distance)):
        best.setdefault(chunk_id, distance)
    chunk_ids = np.fromiter(best, dtype=np.int64, count=len(best))
    return chunk_ids, 1.0 - np.fromiter(best.values(), dtype=np.float64, count=len(best))
