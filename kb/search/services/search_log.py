"""The search log. A search waits for its entry only when it was explained; others are written within a second."""

import atexit
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, connection, connections, transaction
from django.db.models import F, Q, QuerySet
from django.dispatch import Signal
from django.utils import timezone

from kb.access.models import Principal
from kb.base.disk import DiskFull, is_disk_full, noticing_full_disk
from kb.content.models import Chunk
from kb.profiles.models import RetrievalProfile
from kb.search.models import ResultIds, SearchLog

# Sent with `rows`, searches that were written to the search log, but for explained ones.
searches_logged = Signal()
# Sent with `rows`, searches that are about to be deleted because their asker wants it.
searches_deleting = Signal()

logger = logging.getLogger(__name__)

WAITING_ENTRIES = 10_000
BATCH = 200
# How long the writer waits for more entries after the first, since a transaction for each would cost as much as its
# row.
GATHERING_S = 0.5
MOST_SHOWN = 20
# The key of an entry that says that its query was left out.
WITHHELD = "withheld"

_KEPT = ("request", "configuration", "models", "scopes", "score_scale", "threshold", "results")
_KEPT_OF_CANDIDATE = ("chunk_id", "kb_id", "ranks", "scores", "cut_by", "near_miss", "provenance")
# Words of a stage's own; any other may be the query's. What is new in a trace is left out until it is named here.
_WORDS_OF_STAGE = frozenset(
    {"stage", "method", "reranker", "scale", "cache_tier", "model", "query_vector", "error", "language", "tokenizer"}
)


def without_query(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of the search log without the query, and without anything that was made of its words.

    What is left tells which settings were in force, which chunks were found, and how long it took. A degradation keeps its
    code and loses its sentence, which may quote a server that quotes the query.
    """
    degraded = [{"stage": each["stage"], "code": each["code"], "detail": ""} for each in entry["degraded"]]
    trace = entry["trace"]
    kept = {
        **{name: trace[name] for name in _KEPT if name in trace},
        "terms": [],
        "spans": [
            {name: value for name, value in span.items() if name in _WORDS_OF_STAGE or _is_figures(value)}
            for span in trace["spans"]
        ],
        "candidates": [
            {**{name: each[name] for name in _KEPT_OF_CANDIDATE if name in each}, "matched_terms": []}
            for each in trace["candidates"]
        ],
        WITHHELD: True,
    }
    return {**entry, "query": "", "history": [], "degraded": degraded, "trace": kept}


def _is_figures(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_figures, value.values()))
    return value is None or isinstance(value, bool | int | float)


def record(
    principal: Principal,
    trace_id: UUID,
    entry: Callable[[], Mapping[str, Any]],
    *,
    now: bool,
    keeps_query: bool = True,
) -> None:
    """Stores a search in the log: in the background, or `now`, as one that is explained.

    An explained search does not go into the inbox of failed queries: somebody looks at it already. `entry` makes the
    fields of SearchLog, in the log's own thread unless they are written at once: a trace is long, and no search is to
    wait for it.
    """
    make = partial(_row, principal.user.pk, timezone.now(), entry, keeps_query=keeps_query)
    # Another connection would not see what an open transaction has made.
    if not now and not connection.in_atomic_block:
        _writer().put((trace_id, make))
        return
    row = make()
    try:
        with noticing_full_disk(), transaction.atomic():
            row.save(force_insert=True)
    except DiskFull as error:
        logger.warning("search log entry %s was not stored: %s", trace_id, error)
        return
    if not now:
        searches_logged.send(SearchLog, rows=[row])


def _row(
    user_id: int | None, created_at: datetime, entry: Callable[[], Mapping[str, Any]], *, keeps_query: bool
) -> SearchLog:
    fields = entry() if keeps_query and settings.SEARCH_LOG_QUERIES else without_query(entry())
    return SearchLog(user_id=user_id, created_at=created_at, **fields)


Waiting = tuple[UUID, Callable[[], SearchLog]]


class BackgroundWriter:
    """Writes entries in batches from a thread of its own, which holds no connection while it waits."""

    def __init__(self) -> None:
        # An event among them is set once all before it have been written.
        self._waiting: queue.Queue[Waiting | threading.Event] = queue.Queue(WAITING_ENTRIES)
        self._hurry = threading.Event()
        threading.Thread(target=self._run, name="search-log", daemon=True).start()
        atexit.register(self.flush)

    def put(self, search: Waiting) -> None:
        try:
            self._waiting.put_nowait(search)
        except queue.Full:
            logger.warning("the search log falls behind: entry %s was not stored", search[0])

    def flush(self) -> None:
        """Returns when every entry that was put before has been written or given up."""
        written = threading.Event()
        self._waiting.put(written)
        self._hurry.set()
        written.wait()

    def _run(self) -> None:
        while True:
            taken = [self._waiting.get()]
            self._hurry.wait(GATHERING_S)
            while len(taken) < BATCH and not self._waiting.empty():
                taken.append(self._waiting.get())
            try:
                if rows := list(_made(each for each in taken if not isinstance(each, threading.Event))):
                    _write(rows)
            except Exception:
                logger.exception("entries of the search log could not be written")
            finally:
                connections.close_all()
                for each in taken:
                    if isinstance(each, threading.Event):
                        self._hurry.clear()
                        each.set()
                # A search holds its pipeline and its passages, and the next one may be long in coming.
                taken = each = None  # type: ignore[assignment]


def _made(searches: Iterable[Waiting]) -> Iterator[SearchLog]:
    """The rows of searches; one whose trace cannot be made must not end the thread that writes all others."""
    for trace_id, make in searches:
        try:
            yield make()
        except Exception:
            logger.exception("search log entry %s could not be made", trace_id)


def _write(rows: list[SearchLog]) -> None:
    """Writes entries together, or one by one where one of them spoils the rest."""
    try:
        SearchLog.objects.bulk_create(rows)
    except (DatabaseError, ValueError) as error:
        if is_disk_full(error):
            logger.warning("%d search log entries were not stored: the disk is full", len(rows))
            return
        if len(rows) == 1:
            logger.exception("search log entry %s could not be written", rows[0].pk)
            return
        for row in rows:
            _write([row])
        return
    try:
        searches_logged.send(SearchLog, rows=rows)
    except DatabaseError:
        logger.exception("logged searches could not be passed on")


@lru_cache(maxsize=1)
def _writer() -> BackgroundWriter:
    return BackgroundWriter()


def flush() -> None:
    _writer().flush()


def searches_by(profile: RetrievalProfile) -> QuerySet[SearchLog]:
    """What the search log holds of a version; where a row does not say whose profile it was, it is one of its place."""
    rows = SearchLog.objects.filter(profile=profile.name, profile_version=profile.version)
    if profile.knowledge_base_id is None:
        return rows
    place = {"knowledge_base_id": profile.knowledge_base_id}
    told = Q(trace__scopes__contains=[{"profile": {"name": profile.name, "version": profile.version, **place}}])
    untold = Q(knowledge_base_ids__contains=[profile.knowledge_base_id]) & ~Q(
        trace__scopes__0__profile__has_key="knowledge_base_id"
    )
    return rows.filter(told | untold)


def searches_that_found(principal: Principal, chunk: Chunk) -> list[dict[str, Any]]:
    """The newest searches among whose results the chunk was, newest first, each with its rank, from 1, and score.

    A caller sees those of whose knowledge bases every one is visible. `query` is blank where the installation keeps queries
    out of the log; `asked` is what the search was asked beside it, as its trace has it.
    """
    rows = (
        SearchLog.objects.visible_to(principal)
        .alias(result_ids=ResultIds("trace"))
        .filter(result_ids__contains=[chunk.pk])
        .annotate(trace_id=F("pk"), results=F("trace__results"), asked=F("trace__request"))
        .order_by("-created_at", "pk")
        .values(
            "trace_id", "query", "profile", "profile_version", "created_at", "knowledge_base_ids", "results", "asked"
        )[:MOST_SHOWN]
    )
    return [
        {**row, "rank": rank, "score": each["score"]}
        for row in rows
        for rank, each in enumerate(row["results"], start=1)
        if each["chunk_id"] == chunk.pk
    ]
