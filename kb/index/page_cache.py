"""Reads what searches need into memory after a start: from a cold disk each of the first ones takes seconds."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from django.conf import settings
from django.core.cache import caches
from django.db.backends.base.base import BaseDatabaseWrapper
from django_redis.exceptions import ConnectionInterrupted
from redis.exceptions import RedisError

from kb.base.db.transactions import Purpose, fetch_all, held_locks, own_session, try_lock, untimed_cursor
from kb.base.models import installation_id
from kb.index.vector_index import SHARE_OF_MEMORY, VectorSpace, available_bytes, vector_spaces

logger = logging.getLogger(__name__)

DAYS: Final = 14
MOST_SECONDS: Final = 900.0
PIECE_BLOCKS: Final = 1_024
BLOCK_BYTES: Final = 8_192
# PostgreSQL keeps a larger relation in several files.
SEGMENT_BYTES: Final = 1024**3
# Of a row beside its vector.
ROW_BYTES: Final = 100
# Through which a search finds the rows of its candidates.
LOOKUPS: Final = ("vector_once_per_kind_and_model", "kb_chunk_pkey")

# Those searched lately before the others, and the largest of each first, since a cold one of these takes longest.
BY_USE = """
SELECT k.id FROM kb_knowledgebase k
LEFT JOIN (
    SELECT DISTINCT unnest(knowledge_base_ids) AS id FROM kb_searchlog WHERE created_at > now() - make_interval(days => %s)
) searched USING (id)
LEFT JOIN bm25_indexes i ON i.knowledge_base_id = k.id
ORDER BY (searched.id IS NULL), coalesce(i.chunk_count, 0) DESC, k.id
"""
# By a column that no index holds, so that the rows themselves are read, in the order of their blocks.
VECTORS = """
SELECT count(*) FILTER (WHERE enabled) FROM kb_chunkembedding WHERE knowledge_base_id = %s AND model = %s AND kind = %s
"""
# At most the table: its estimated number of rows may be of a time when it had few.
CHUNK_BYTES = """
SELECT least(size, (SELECT count(*) FROM kb_chunk WHERE knowledge_base_id = %s) * size / greatest(reltuples, 1))
FROM (SELECT reltuples, pg_relation_size(oid) AS size FROM pg_class WHERE oid = 'kb_chunk'::regclass) AS chunks
"""
HAS_PREWARM = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_prewarm')"
MAY_READ_FILES = "SELECT has_function_privilege('pg_read_binary_file(text, bigint, bigint, boolean)', 'execute')"


# The bytes of what is read at once, and what reads it over a `session`.
Part = tuple[int, Callable[..., object]]


@dataclass(frozen=True, slots=True)
class ReadIn:
    """What was read, and how many parts were left out for want of memory or time."""

    parts: int
    bytes: int
    left_out: int


def knowledge_bases_by_use() -> list[int]:
    """All ids; those that were searched lately come first, the largest of them before the others."""
    return [kb_id for (kb_id,) in fetch_all(BY_USE, [DAYS])]


def is_reading() -> bool:
    return bool(held_locks(Purpose.PAGE_CACHE))


def reads_indexes() -> bool:
    """Whether this server lets indexes be read block by block: by pg_prewarm, or by its own files."""
    return any(fetch_all(statement)[0][0] for statement in (HAS_PREWARM, MAY_READ_FILES))


def most_bytes() -> int:
    """How much is read at most; 0: nothing."""
    if settings.WARM_UP_BYTES is not None:
        return int(settings.WARM_UP_BYTES)
    if settings.EMBEDDED:
        return int(SHARE_OF_MEMORY * available_bytes())
    [(cache_bytes,)] = fetch_all("SELECT pg_size_bytes(current_setting('effective_cache_size'))")
    return int(SHARE_OF_MEMORY * cache_bytes)


def read_in() -> ReadIn | None:
    """Reads vector indexes, vectors and chunks, the most needed first; None where another process does, or has done.

    It is done once after each start of PostgreSQL, and again a day later by a process that starts then.
    """
    limit = most_bytes()
    if not limit:
        return None
    with try_lock(Purpose.PAGE_CACHE) as taken:
        if not taken:
            return None
        with suppress(ConnectionInterrupted, RedisError):
            if caches["bm25"].get(note_key()) is not None:
                return None
        with untimed_cursor():  # on a cold disk to count takes long, too
            wanted = list(_parts())
        end, parts, bytes_read = time.monotonic() + MOST_SECONDS, 0, 0
        with own_session(max_parallel_workers_per_gather=0) as session:
            for size, read in wanted:
                if bytes_read + size <= limit and time.monotonic() <= end:
                    read(session=session)
                    parts, bytes_read = parts + 1, bytes_read + size
        try:
            caches["bm25"].set(note_key(), b"1")
        except (ConnectionInterrupted, RedisError) as error:
            logger.warning("what was read into memory could not be noted, the next process reads it again: %s", error)
    done = ReadIn(parts, bytes_read, len(wanted) - parts)
    logger.info("read %s parts of %.1f GB into memory, left out %s", parts, bytes_read / SEGMENT_BYTES, done.left_out)
    return done


def _parts() -> Iterator[Part]:
    may_read = reads_indexes()
    if may_read:
        yield from map(_of_index, LOOKUPS)
    spaces: dict[int, list[VectorSpace]] = defaultdict(list)
    for space in vector_spaces():
        if space.is_searched:
            spaces[space.kb_id].append(space)
    for kb_id in knowledge_bases_by_use():
        for space in spaces[kb_id]:
            if may_read and space.has_index:
                yield _of_index(space.index_name)
            size = space.vectors * (2 * space.dimension + ROW_BYTES)
            yield size, partial(fetch_all, VECTORS, (kb_id, space.model_id, space.kind))
        [(size,)] = fetch_all(CHUNK_BYTES, [kb_id])
        count = "SELECT count(*) FILTER (WHERE enabled) FROM kb_chunk WHERE knowledge_base_id = %s"
        yield int(size), partial(fetch_all, count, (kb_id,))


def _of_index(name: str) -> Part:
    [(size,)] = fetch_all("SELECT coalesce(pg_relation_size(to_regclass(%s)), 0)", [name])
    return int(size), partial(_read_index, name, int(size) // BLOCK_BYTES)


def _read_index(name: str, blocks: int, session: BaseDatabaseWrapper) -> None:
    has_prewarm = fetch_all(HAS_PREWARM, session=session)[0][0]
    [(path,)] = fetch_all("SELECT pg_relation_filepath(to_regclass(%s))", [name], session)
    for first in range(0, blocks if path else 0, PIECE_BLOCKS):
        if has_prewarm:
            last = min(first + PIECE_BLOCKS, blocks) - 1
            fetch_all("SELECT pg_prewarm(%s::regclass, 'read', 'main', %s, %s)", [name, first, last], session)
        else:
            segment, within = divmod(first * BLOCK_BYTES, SEGMENT_BYTES)
            values = [f"{path}.{segment}" if segment else path, within, PIECE_BLOCKS * BLOCK_BYTES]
            fetch_all("SELECT length(pg_read_binary_file(%s, %s, %s, true))", values, session)


def note_key() -> str:
    """Under which the cache notes that it was done since PostgreSQL started."""
    [(seconds,)] = fetch_all("SELECT extract(epoch FROM pg_postmaster_start_time())::bigint")
    return f"page-cache:{installation_id()}:{seconds}"
