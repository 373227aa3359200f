"""What a store has yet to take in of a knowledge base."""

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from kb.index.mirrors.protocol import TextCollection, VectorCollection

MOST_PENDING = 2_000
"""So many changed chunks are compared one by one beside what a store finds; with more, PostgreSQL answers alone."""

ROWS_A_CHUNK = 4
"""A chunk that is written makes up to so many rows."""

PENDING = """
SELECT coalesce(array_agg(DISTINCT chunk_id ORDER BY chunk_id), '{}'), count(*), bool_or(chunk_id IS NULL) FROM (
    SELECT chunk_id FROM kb_storechange
    WHERE knowledge_base_id = %s AND store = %s AND model = ANY(%s) LIMIT %s
) c
"""

TAKEN_IN = """
SELECT EXISTS (
    SELECT FROM {rows} WHERE NOT EXISTS (
        SELECT FROM kb_storechange c WHERE c.knowledge_base_id = %s AND c.store = %s AND c.chunk_id = r.chunk_id
    )
)
"""
TEXTS = "(SELECT id AS chunk_id FROM kb_chunk WHERE knowledge_base_id = %s AND enabled) r"
VECTORS = """
(
    SELECT chunk_id FROM kb_chunkembedding
    WHERE knowledge_base_id = %s AND model = %s AND kind = %s AND enabled AND vector_dims(vector) = %s
) r
"""


def pending_chunks(kb_id: int, store: str, models: tuple[str, ...]) -> NDArray[np.int64] | None:
    """The chunks with changes that the store has not taken in, ascending; None where they are too many to look at.

    Args:
        kb_id: the knowledge base.
        store: the store.
        models: of the vectors in question; "" for the chunks themselves and their texts.
    """
    limit = ROWS_A_CHUNK * MOST_PENDING
    with connection.cursor() as cursor:
        cursor.execute(PENDING, [kb_id, store, list(models), limit])
        chunk_ids, rows, is_anew = cursor.fetchone()
    if is_anew or rows == limit or len(chunk_ids) > MOST_PENDING:
        return None
    return np.array(chunk_ids, dtype=np.int64)


def has_taken_in(store: str, collection: TextCollection | VectorCollection) -> bool:
    """Whether a collection was told of anything that it should hold still; one that is not there then was lost."""
    values: tuple[int | str, ...]
    if isinstance(collection, TextCollection):
        rows, values = TEXTS, (collection.kb_id,)
    else:
        rows, values = VECTORS, (collection.kb_id, collection.model_id, collection.kind, collection.dimension)
    with connection.cursor() as cursor:
        cursor.execute(TAKEN_IN.format(rows=rows), [*values, collection.kb_id, store])
        return bool(cursor.fetchone()[0])
