"""Whether chunks that something else has named are there and may be found."""

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from kb.base.db.arrays import array_text

ENABLED = "SELECT id FROM kb_chunk WHERE knowledge_base_id = %s AND enabled AND id = ANY(%s::bigint[])"


def enabled_among(kb_id: int, chunk_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the chunks are enabled ones of the knowledge base, shape (n_chunks,)."""
    if not chunk_ids.size:
        return np.empty(0, dtype=bool)
    with connection.cursor() as cursor:
        cursor.execute(ENABLED, [kb_id, array_text(chunk_ids.tolist())])
        there = np.array([chunk_id for (chunk_id,) in cursor.fetchall()], dtype=np.int64)
    found: NDArray[np.bool_] = np.isin(chunk_ids, there)
    return found
