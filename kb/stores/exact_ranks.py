"""Where one chunk stands among all by exact cosines, however deep: for telling what an approximate search has left out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from django.db import connection
from numpy.typing import NDArray
from pgvector import HalfVector

from kb.models import ChunkEmbedding
from kb.stores.arrays import array_text
from kb.stores.vector_index import VectorSpace

# A chunk of several vectors of one kind counts with the nearest. That of its keywords, where it has a share, is joined as
# `VectorChannel` joins it: 1 - similarity is as linear as similarity is. NaN is the distance of a vector of length 0.
RANK = """
WITH compared AS MATERIALIZED (
    SELECT chunk_id, CASE WHEN keywords IS NULL OR keywords = 'NaN' THEN content
        ELSE (1 - %(share)s) * content + %(share)s * keywords END AS distance
    FROM (
        SELECT chunk_id, min(distance) FILTER (WHERE kind = %(kind)s) AS content,
            min(distance) FILTER (WHERE kind <> %(kind)s) AS keywords
        FROM (
            SELECT chunk_id, kind, vector::halfvec({dimension}) <=> %(vector)s::halfvec({dimension}) AS distance
            FROM kb_chunkembedding
            WHERE knowledge_base_id = %(kb)s AND model = %(model)s AND kind = ANY(%(kinds)s) AND enabled {among}
        ) each
        GROUP BY chunk_id
    ) joined
    WHERE content <> 'NaN'
)
SELECT own.distance,
    (SELECT count(*) FROM compared WHERE (compared.distance, compared.chunk_id) < (own.distance, own.chunk_id)),
    (SELECT count(*) FROM compared),
    EXISTS (
        SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relname = %(index)s AND i.indisvalid
    )
FROM (SELECT) one LEFT JOIN compared own ON own.chunk_id = %(chunk)s
"""
AMONG = "AND chunk_id = ANY(%(only)s::bigint[])"


@dataclass(frozen=True, slots=True)
class ExactPlace:
    """A chunk among all that can be found by vectors of one kind.

    Attributes:
        rank: from 1; None where it has no such vector, or one of length 0.
        similarity: its cosine; None likewise.
        total: how many chunks have one.
        is_indexed: searches go through an approximate index.
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
    """The place of a chunk among the enabled ones, counted by the database over all of them.

    Args:
        kb_id: the knowledge base.
        model_id: whose vectors are compared.
        vector: of the query, shape (dimension,).
        chunk_id: the chunk.
        kind: which of the chunks' vectors.
        keyword_share: that of the vectors of keywords, where chunks have one.
        only: ids of the chunks that may be found, ascending; None: all.
    """
    kinds = [str(kind)] + ([str(ChunkEmbedding.Kind.KEYWORDS)] if keyword_share else [])
    values: dict[str, Any] = {
        "kb": kb_id,
        "model": model_id,
        "vector": HalfVector(vector).to_text(),
        "kind": str(kind),
        "kinds": kinds,
        "share": keyword_share,
        "chunk": chunk_id,
        "index": VectorSpace(kb_id, model_id, str(kind), 0, len(vector)).index_name,
        "only": None if only is None else array_text(only.tolist()),
    }
    statement = RANK.format(dimension=len(vector), among="" if only is None else AMONG)
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        distance, above, total, is_indexed = cursor.fetchone()
    if distance is None:
        return ExactPlace(None, None, total, is_indexed)
    return ExactPlace(above + 1, 1.0 - distance, total, is_indexed)
