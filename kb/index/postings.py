"""Stored postings and their change log, each read in one statement, so that rows and version belong together."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from kb.base.db.connections import binary_cursor, streaming_cursor
from retrieval.bm25 import OkapiIndex
from retrieval.errors import ScopeOutdated

FETCH = 1_000

POSTINGS = """
SELECT v.version, k.tokenizer_id, p.chunk_id, p.terms, p.frequencies, p.length
FROM kb_versions v
JOIN kb_knowledgebase k ON k.id = v.knowledge_base_id
LEFT JOIN (kb_chunkpostings p JOIN kb_chunk c ON c.id = p.chunk_id AND c.enabled)
    ON p.knowledge_base_id = v.knowledge_base_id AND p.tokenizer_id = %(tokenizer)s
WHERE v.knowledge_base_id = %(kb)s
"""

CHANGES = """
WITH change AS MATERIALIZED (
    SELECT chunk_id, bool_or(operation = 'reset') AS is_reset FROM kb_chunkchange
    WHERE knowledge_base_id = %(kb)s AND version > %(base)s GROUP BY chunk_id LIMIT %(limit)s + 1
)
SELECT v.version, k.tokenizer_id, change.chunk_id, change.is_reset, p.terms, p.frequencies, p.length
FROM kb_versions v
JOIN kb_knowledgebase k ON k.id = v.knowledge_base_id
LEFT JOIN (
    change LEFT JOIN LATERAL (
        -- A look-up by chunk, whatever the statistics of a table just filled may say: the limit keeps the planner from
        -- reading all rows once, the sum from reading the knowledge base's rows for each chunk.
        SELECT p.terms, p.frequencies, p.length
        FROM kb_chunkpostings p JOIN kb_chunk c ON c.id = p.chunk_id AND c.enabled
        WHERE p.chunk_id = change.chunk_id AND p.tokenizer_id = %(tokenizer)s AND p.knowledge_base_id + 0 = %(kb)s
            AND (SELECT count(*) <= %(limit)s AND NOT bool_or(is_reset) FROM change)  -- else nobody reads them
        LIMIT 1
    ) p ON true
) ON true
WHERE v.knowledge_base_id = %(kb)s
"""

LOG_START = """
SELECT coalesce(max(version), 0) FROM kb_chunkchange WHERE knowledge_base_id = %s AND operation = 'reset'
"""

MIN_CHANGES_TO_MERGE = 500
CHANGED_SHARE_TO_MERGE = 0.02

LONG_LOGS = """
SELECT log.knowledge_base_id
FROM (SELECT knowledge_base_id, count(DISTINCT chunk_id) AS changed FROM kb_chunkchange GROUP BY 1) log
LEFT JOIN bm25_indexes i ON i.knowledge_base_id = log.knowledge_base_id
WHERE log.changed > greatest(%(min)s, %(share)s * coalesce(i.chunk_count, 0))
  AND (%(only)s::bigint[] IS NULL OR log.knowledge_base_id = ANY(%(only)s))
"""

StoredRow = tuple[int, bytes, bytes, int]


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened to a knowledge base's chunks since a version.

    Attributes:
        version: the knowledge base's when this was read.
        chunk_ids: shape (n_changed,), ascending.
        rows: the postings of those that are there and enabled.
    """

    version: int
    chunk_ids: NDArray[np.int64]
    rows: tuple[StoredRow, ...]


def build_index(kb_id: int, tokenizer_id: str) -> tuple[int, OkapiIndex]:
    """The index of everything, and the version that it holds; 0 for a knowledge base that is gone.

    Raises:
        ScopeOutdated: the knowledge base has another tokenizer by now, so these postings are no longer complete.
    """
    with streaming_cursor(FETCH) as cursor:
        cursor.execute(POSTINGS, {"kb": kb_id, "tokenizer": tokenizer_id}, binary=True)
        first = cursor.fetchone()
        if first is None:
            return 0, OkapiIndex.build(())
        version, active, *_ = first
        _require_tokenizer(active, tokenizer_id)
        return version, OkapiIndex.build(row[2:] for row in chain([first], cursor) if row[2] is not None)


def changes_since(kb_id: int, tokenizer_id: str, version: int, *, limit: int) -> Changes | None:
    """What to apply to an index of an older version; None where the log does not reach back or holds more than `limit`.

    Raises:
        ScopeOutdated: the knowledge base has another tokenizer by now, so these postings are no longer complete.
    """
    with binary_cursor() as cursor:
        wanted = {"kb": kb_id, "tokenizer": tokenizer_id, "base": version, "limit": limit}
        found = cursor.execute(CHANGES, wanted, binary=True).fetchall()
    if not found or len(found) > limit:
        return None
    _require_tokenizer(found[0][1], tokenizer_id)
    if any(is_reset for _, _, _, is_reset, *_ in found):
        return None
    changed = np.sort(np.array([row[2] for row in found if row[2] is not None], dtype=np.int64))
    rows = tuple((row[2], row[4], row[5], row[6]) for row in found if row[4] is not None)
    return Changes(found[0][0], changed, rows)


def log_start(kb_id: int) -> int:
    """The oldest version of an index from which the change log leads to the present."""
    with connection.cursor() as cursor:
        cursor.execute(LOG_START, [kb_id])
        (version,) = cursor.fetchone()
    return int(version)


def long_change_logs(kb_ids: Sequence[int] | None = None) -> list[int]:
    """The knowledge bases, or those of the given ones, of which so much has changed that a new base is due."""
    with connection.cursor() as cursor:
        only = None if kb_ids is None else list(kb_ids)
        values: dict[str, Any] = {"min": MIN_CHANGES_TO_MERGE, "share": CHANGED_SHARE_TO_MERGE, "only": only}
        cursor.execute(LONG_LOGS, values)
        return [kb_id for (kb_id,) in cursor.fetchall()]


def _require_tokenizer(active: str, wanted: str) -> None:
    if active != wanted:
        raise ScopeOutdated("the knowledge base has moved to another tokenizer: try again")
