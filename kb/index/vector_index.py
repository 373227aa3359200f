"""Approximate indexes: one for each knowledge base, model and kind with too many vectors to compare them all.

HNSW, or IVFFlat where the operator chose it: quicker to make and smaller, but slower to search, and its lists are those of
the vectors that it was made from.

After a start what searches need is read into memory: from a cold disk each of the first ones would take seconds.
"""

import hashlib
import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Final

from django.conf import settings
from django.core.cache import caches
from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django_redis.exceptions import ConnectionInterrupted
from psycopg import sql
from redis.exceptions import RedisError

from kb.base.db.transactions import Purpose, fetch_all, held_locks, own_session, try_lock, untimed_cursor
from kb.base.models import installation_id
from kb.index.models import VectorIndex

MEGABYTE: Final = 1024**2
SHARE_OF_MEMORY: Final = 0.5
# PostgreSQL builds an index with two processes only where each has 32 MB.
LEAST_BYTES: Final = 64 * MEGABYTE
# Of pgvector's graph, for each vector beside its numbers: 700 to 750 with m = 16, and some to spare.
GRAPH_BYTES: Final = 1_024
SPARE_BYTES: Final = 16 * MEGABYTE
CGROUP: Final = Path("/sys/fs/cgroup")


def most_build_bytes() -> int:
    if settings.INDEX_BUILD_MEMORY_BYTES is not None:
        return max(LEAST_BYTES, settings.INDEX_BUILD_MEMORY_BYTES)
    if not settings.EMBEDDED:
        return 1024 * MEGABYTE  # the memory of a server elsewhere cannot be known from here
    return max(LEAST_BYTES, int(SHARE_OF_MEMORY * available_bytes()))


def build_options(memory_bytes: int) -> dict[str, int]:
    workers = settings.INDEX_BUILD_WORKERS  # beside the process that builds; None: as the server is set
    if workers is None and settings.EMBEDDED:
        workers = min(8, max(1, (os.cpu_count() or 2) - 1))
    options = {} if workers is None else {"max_parallel_maintenance_workers": workers}
    return {"maintenance_work_mem": memory_bytes // 1024, **options}


def available_bytes() -> int:
    """Memory of this host that is free, or would be without its page cache, within the limit of its control group."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    sizes = {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)}
    host = sizes.get("MemAvailable") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return host if limit == "max" else max(0, min(host, int(limit) - int(used["anon"])))
    except (OSError, ValueError, KeyError):  # no control group, or one of the first version
        return host


logger = logging.getLogger(__name__)

PREFIXES = {VectorIndex.Method.HNSW: "hnsw_", VectorIndex.Method.IVFFLAT: "ivfflat_"}
MAX_DIMENSION = 4_000
# An index goes when this share of the rows that it takes to make one is no longer there: not to and fro at the edge.
SHARE_TO_KEEP = 0.5

# A model that a knowledge base is on its way to gets its index once every chunk has its vector: until then it would slow
# every row. That of the former model stays, for searches under way and for a return.
# One that another store searches needs none here.
SPACES = """
SELECT space.knowledge_base_id, space.model, space.kind, space.vectors, one.dimension, space.is_searched
FROM (
    SELECT e.knowledge_base_id, e.model, e.kind, count(*) AS vectors,
        e.model = k.embedding_model OR coalesce(r.status IN ('indexing', 'ready'), false) AS is_searched
    FROM kb_chunkembedding e
    JOIN kb_knowledgebase k ON k.id = e.knowledge_base_id
        AND e.model IN (k.embedding_model, k.target_embedding_model, k.previous_embedding_model)
        AND 'postgres' IN (k.store, k.target_store)
    LEFT JOIN kb_reembedding r ON r.knowledge_base_id = k.id AND e.model = k.target_embedding_model
    WHERE %(kb)s IS NULL OR e.knowledge_base_id = %(kb)s
    GROUP BY 1, 2, 3, 5
) space
CROSS JOIN LATERAL (
    SELECT vector_dims(vector) AS dimension FROM kb_chunkembedding e
    WHERE (e.knowledge_base_id, e.model, e.kind) = (space.knowledge_base_id, space.model, space.kind) LIMIT 1
) one
"""
INDEXES = """
SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = 'kb_chunkembedding'::regclass AND EXISTS (SELECT FROM unnest(%s::text[]) AS prefix WHERE starts_with(c.relname, prefix))
"""
BUILDS = """
SELECT c.relname, p.tuples_done FROM pg_stat_progress_create_index p JOIN pg_class c ON c.oid = p.index_relid
WHERE p.relid = 'kb_chunkembedding'::regclass
"""
LOOK_SECONDS = 0.5
CREATE = sql.SQL(
    "CREATE INDEX CONCURRENTLY {name} ON kb_chunkembedding"
    " USING {method} ((vector::halfvec({dimension})) halfvec_cosine_ops) {options}"
    " WHERE knowledge_base_id = {kb} AND model = {model} AND kind = {kind}"
)
DROP = sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {name}")


@dataclass(frozen=True, slots=True)
class VectorSpace:
    """Vectors that are compared with each other; `has_index` where searches can use one that is finished."""

    kb_id: int
    model_id: str
    kind: str
    vectors: int
    dimension: int
    is_searched: bool = True
    has_index: bool = False

    @property
    def is_wanted(self) -> bool:
        return self.is_searched and _is_large(self)

    @property
    def index_name(self) -> str:
        key = "\0".join((self.model_id, self.kind, str(self.dimension)))
        return f"{PREFIXES[chosen_method()]}{self.kb_id}_{hashlib.sha256(key.encode()).hexdigest()[:16]}"

    @property
    def build_bytes(self) -> int:
        """The memory that a build needs: a graph of halfvec vectors that does not fit is built many times slower."""
        return max(LEAST_BYTES, self.vectors * (2 * self.dimension + GRAPH_BYTES) + SPARE_BYTES)

    @property
    def build_remedy(self) -> str:
        """The setting that gives a build `build_bytes`; blank where it gets as much."""
        is_enough = self.build_bytes <= most_build_bytes()
        return "" if is_enough else f"INDEX_BUILD_MEMORY_MB={-(-self.build_bytes // MEGABYTE)}"

    @property
    def lists(self) -> int:
        """Of IVFFlat: the square root of the rows, as pgvector's documentation advises."""
        return max(1, round(math.sqrt(self.vectors)))


def chosen_method() -> VectorIndex.Method:
    """Of the indexes that are made from now on; those of another method make way for them."""
    return VectorIndex.Method(settings.VECTOR_INDEX_METHOD)


def builds_under_way() -> dict[str, int]:
    """The indexes over vectors that are built at this moment, by name, with how many vectors each holds so far."""
    return dict(fetch_all(BUILDS))


def vector_spaces(kb_id: int | None = None) -> list[VectorSpace]:
    """The vectors of a knowledge base, or of all, that PostgreSQL searches."""
    there = _indexes(kb_id)
    spaces = [VectorSpace(*row) for row in fetch_all(SPACES, {"kb": kb_id})]
    return [replace(space, has_index=there.get(space.index_name, False)) for space in spaces]


def spaces_without_index(kb_id: int | None = None) -> list[VectorSpace]:
    """The vectors that are to have an index and have no finished one: of a knowledge base, or of all."""
    return [space for space in vector_spaces(kb_id) if space.is_wanted and not space.has_index]


def maintain_vector_indexes(
    kb_id: int | None = None, on_progress: Callable[[int, int], None] = lambda _done, _total: None
) -> bool:
    """Makes the indexes that are missing or were left unfinished, and drops those that nobody needs any longer.

    Of one knowledge base, or of all and what deleted ones have left behind. Searches and writes go on meanwhile; False,
    and nothing is done, while another process does this. `on_progress` gets how many vectors the indexes hold so far,
    and how many they will, twice a second while one is built.
    """
    # One process at a time, since an index being made looks like one that was left unfinished.
    with try_lock(Purpose.VECTOR_INDEX) as taken:
        if not taken:
            return False
        spaces = {space.index_name: space for space in vector_spaces(kb_id)}
        there = _indexes(kb_id)
        keep = {name for name, space in spaces.items() if name in there and _is_large(space, SHARE_TO_KEEP)}
        broken = [name for name, is_valid in there.items() if not is_valid]
        unwanted = [name for name, is_valid in there.items() if is_valid and name not in keep]
        create = [
            space
            for name, space in spaces.items()
            if not space.has_index and (space.is_wanted or (name in keep and space.is_searched))
        ]
        if not (create or broken or unwanted):
            return True
        with own_session() as session:
            for name in broken:
                _run(session, DROP.format(name=sql.Identifier(name)))
            with _watched(create, on_progress):
                for space in create:
                    _create(session, space)
            for name in unwanted:  # now, since one of another method has served until here
                _run(session, DROP.format(name=sql.Identifier(name)))
    return True


def _is_large(space: VectorSpace, share: float = 1.0) -> bool:
    return space.vectors > share * settings.VECTOR_INDEX_MIN_ROWS and space.dimension <= MAX_DIMENSION


def _indexes(kb_id: int | None) -> dict[str, bool]:
    """By name, whether the index was finished."""
    prefixes = [prefix if kb_id is None else f"{prefix}{kb_id}_" for prefix in PREFIXES.values()]
    return dict(fetch_all(INDEXES, [prefixes]))


def _create(session: BaseDatabaseWrapper, space: VectorSpace) -> None:
    method = chosen_method()
    statement = CREATE.format(
        name=sql.Identifier(space.index_name),
        method=sql.SQL(method.value),
        options=sql.SQL(f"WITH (lists = {space.lists})" if method is VectorIndex.Method.IVFFLAT else ""),
        dimension=sql.Literal(space.dimension),
        kb=sql.Literal(space.kb_id),
        model=sql.Literal(space.model_id),
        kind=sql.Literal(space.kind),
    )
    name, slow = space.index_name, "the vector index %s of %s vectors will be built slowly: set %s"
    if space.build_remedy:
        logger.warning(slow, name, space.vectors, space.build_remedy)
    _set(session, build_options(min(space.build_bytes, most_build_bytes())))
    try:
        try:
            _run(session, statement)
        except DatabaseError as error:
            # The class of errors for memory, disk space or shared memory that is not there.
            if not (getattr(error.__cause__, "sqlstate", None) or "").startswith("53"):
                raise
            logger.warning("%s: %s. It is built again by one process.", name, error)
            _run(session, DROP.format(name=sql.Identifier(name)))
            # Several processes share memory, of which there may be less (in a container: shm_size).
            _set(session, {"max_parallel_maintenance_workers": 0})
            _run(session, statement)
    except DatabaseError as error:  # out of disk: the others are made all the same, and this one is tried again
        logger.warning("the vector index %s of %s vectors was not made: %s", name, space.vectors, error)
    else:
        logger.info("made the vector index %s of %s vectors", name, space.vectors)


@contextmanager
def _watched(spaces: list[VectorSpace], on_progress: Callable[[int, int], None]) -> Iterator[None]:
    sizes = {space.index_name: space.vectors for space in spaces}
    total, ended = sum(sizes.values()), Event()

    def look() -> None:
        done = dict.fromkeys(sizes, 0)
        try:
            while not ended.wait(LOOK_SECONDS):
                under_way = builds_under_way()
                for name, size in sizes.items():
                    # The view forgets a build once it has ended.
                    done[name] = max(done[name], min(under_way.get(name, 0), size))
                on_progress(sum(done.values()), total)
        except DatabaseError as error:
            logger.warning("the progress of index builds cannot be read: %s", error)
        finally:
            connections.close_all()

    watcher = Thread(target=look, name="index-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    if total:
        on_progress(total, total)


def _set(session: BaseDatabaseWrapper, options: dict[str, int]) -> None:
    for name, value in options.items():
        _run(session, sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))


def _run(session: BaseDatabaseWrapper, statement: "sql.SQL | sql.Composed") -> None:
    with session.cursor() as cursor:
        cursor.execute(statement.as_string(session.connection))


# -- Reading into memory -----------------------------------------------------------------------------------------------
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
# At most the size of the table, whose estimated number of rows may date from a time when it had few.
CHUNK_BYTES = """
SELECT least(size, (SELECT count(*) FROM kb_chunk WHERE knowledge_base_id = %s) * size / greatest(reltuples, 1))
FROM (SELECT reltuples, pg_relation_size(oid) AS size FROM pg_class WHERE oid = 'kb_chunk'::regclass) AS chunks
"""
HAS_PREWARM = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_prewarm')"
MAY_READ_FILES = "SELECT has_function_privilege('pg_read_binary_file(text, bigint, bigint, boolean)', 'execute')"


# The bytes of what is read at once, and what reads it over a `session`.
Part = tuple[int, Callable[..., object]]


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


def read_in() -> tuple[int, int, int] | None:
    """Reads vector indexes, vectors and chunks, the most needed first; None where another process does, or has done.

    It is done once after each start of PostgreSQL, and again a day later by a process that starts then. Returns how
    many parts were read, of how many bytes, and how many were left out for want of memory or time.
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
    left_out = len(wanted) - parts
    logger.info("read %s parts of %.1f GB into memory, left out %s", parts, bytes_read / SEGMENT_BYTES, left_out)
    return parts, bytes_read, left_out


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
    """The key under which the cache notes that indexes were read in since PostgreSQL started."""
    [(seconds,)] = fetch_all("SELECT extract(epoch FROM pg_postmaster_start_time())::bigint")
    return f"page-cache:{installation_id()}:{seconds}"
