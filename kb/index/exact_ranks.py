"""Where one chunk stands among all by exact cosines, however deep: for telling what an approximate search has left out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from django.db import connection
from numpy.typing import NDArray
from pgvector import HalfVector

from kb.base.db.arrays import array_text
from kb.index.models.index import ChunkEmbedding
from kb.index.vector_index import VectorSpace

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
OWN = " AND chunk_id = %(chunk)s"


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
    distances = SEVERAL_EACH if keyword_share or kind == ChunkEmbedding.Kind.QUESTION else ONE_EACH
    among = "" if only is None else AMONG
    compared, own = (distances.format(dimension=len(vector), among=among + each) for each in ("", OWN))
    statement = RANK.format(compared=compared, own=own)
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        distance, above, total, is_indexed = cursor.fetchone()
    if distance is None:
        return ExactPlace(None, None, total, is_indexed)
    return ExactPlace(above + 1, 1.0 - distance, total, is_indexed)
