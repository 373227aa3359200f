"""The search log. A search waits for its entry only when it was explained; others are written within a second."""

import atexit
import logging
import queue
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from django.db import DatabaseError, connections
from django.utils import timezone

from kb.models import Principal, SearchLog

logger = logging.getLogger(__name__)

WAITING_ENTRIES = 10_000
BATCH = 200


def record(principal: Principal, entry: Mapping[str, Any], *, now: bool) -> None:
    """Keeps a search.

    Args:
        principal: who searched.
        entry: fields of SearchLog.
        now: write before returning; else in the background.
    """
    row = SearchLog(user_id=principal.user.pk, created_at=timezone.now(), **entry)
    if now:
        row.save(force_insert=True)
    else:
        _writer().put(row)


class BackgroundWriter:
    """Writes entries in batches from a thread of its own, which holds no connection while it waits."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[SearchLog] = queue.Queue(WAITING_ENTRIES)
        threading.Thread(target=self._run, name="search-log", daemon=True).start()
        atexit.register(self.flush)

    def put(self, row: SearchLog) -> None:
        try:
            self._waiting.put_nowait(row)
        except queue.Full:
            logger.warning("the search log falls behind: entry %s was not kept", row.pk)

    def flush(self) -> None:
        """Returns when every entry that was put before has been written or given up."""
        self._waiting.join()

    def _run(self) -> None:
        while True:
            rows = [self._waiting.get()]
            while len(rows) < BATCH and not self._waiting.empty():
                rows.append(self._waiting.get())
            try:
                SearchLog.objects.bulk_create(rows)
            except DatabaseError:
                logger.exception("%d search log entries could not be written", len(rows))
            finally:
                connections.close_all()
                for _ in rows:
                    self._waiting.task_done()


@lru_cache(maxsize=1)
def _writer() -> BackgroundWriter:
    return BackgroundWriter()


def flush() -> None:
    """Waits until entries that are on their way have been written."""
    _writer().flush()
