"""Counts what models are asked, per model, knowledge base and day, without a write for each request.

A process adds up what its requests report and writes the sums every few seconds and at its end.
"""

import atexit
import logging
import os
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from datetime import date
from typing import Final, TypeVar

from django.db import Error, connection, connections
from django.utils import timezone

from retrieval.usage import Role, Use, listen

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Between two writes; None: only `flush` writes.
FLUSH_SECONDS: float | None = 5.0
NAME_CHARACTERS: Final = 200

Key = tuple[date, Role, str, int]
Counts = tuple[int, int, int, int]  # requests, tokens read, tokens written, and those of both that are estimated

_ADD = """
INSERT INTO kb_modeluse
    (day, role, model, knowledge_base_id, requests, input_tokens, output_tokens, estimated_tokens)
SELECT * FROM unnest(%s::date[], %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
ON CONFLICT (day, role, model, knowledge_base_id) DO UPDATE SET
    requests = kb_modeluse.requests + EXCLUDED.requests,
    input_tokens = kb_modeluse.input_tokens + EXCLUDED.input_tokens,
    output_tokens = kb_modeluse.output_tokens + EXCLUDED.output_tokens,
    estimated_tokens = kb_modeluse.estimated_tokens + EXCLUDED.estimated_tokens
"""

_kb_ids: ContextVar[tuple[int, ...]] = ContextVar("counted_for", default=())


@dataclass(slots=True)
class Tally:
    """The tokens that chat models read and write for one caller."""

    input_tokens: int = 0
    output_tokens: int = 0


_tally: ContextVar[Tally | None] = ContextVar("tally", default=None)


@contextmanager
def tallied(tally: Tally | None = None) -> Iterator[Tally]:
    """What chat models are asked meanwhile is added to a tally, or a new one."""
    kept = tally or Tally()
    token = _tally.set(kept)
    try:
        yield kept
    finally:
        _tally.reset(token)


@contextmanager
def counted_for(*kb_ids: int) -> Iterator[None]:
    """What models are asked meanwhile counts for these knowledge bases, in equal parts."""
    token = _kb_ids.set(kb_ids)
    try:
        yield
    finally:
        _kb_ids.reset(token)


def pieces_counted_for(kb_ids: Iterable[int], pieces: Iterator[T]) -> Generator[T, None, None]:
    """The same for an answer in pieces, which whoever reads it may do in another context each time."""
    with counted_for(*kb_ids):
        own = copy_context()
    return _pieces_in(own, pieces)


def _pieces_in(own: Context, pieces: Iterator[T]) -> Generator[T, None, None]:
    end = object()
    try:
        while (piece := own.run(next, pieces, end)) is not end:
            yield piece  # type: ignore[misc]
    finally:
        own.run(getattr(pieces, "close", lambda: None))


def shares(use: Use, kb_ids: tuple[int, ...]) -> Iterator[tuple[int, Counts]]:
    """The parts of a use by knowledge base, 0 where it is none's; the first takes the request and what does not divide."""
    of = kb_ids or (0,)
    for place, kb_id in enumerate(of):
        read, wrote = (
            count // len(of) + (count % len(of) if not place else 0) for count in (use.input_tokens, use.output_tokens)
        )
        yield kb_id, (not place, read, wrote, read + wrote if use.is_estimated else 0)


class Counter:
    """The sums of this process that are not written yet; those that cannot be written wait for the next time."""

    def __init__(self) -> None:
        self._sums: dict[Key, Counts] = {}
        self._lock = threading.Lock()
        self._has_thread = self._is_failing = False

    def add(self, use: Use) -> None:
        day = timezone.localdate()
        parts = {(day, use.role, use.model[:NAME_CHARACTERS], kb): each for kb, each in shares(use, _kb_ids.get())}
        with self._lock:
            self._put(parts)
            if not self._has_thread and FLUSH_SECONDS is not None:
                with suppress(RuntimeError):  # the system has no more threads: the next call tries again
                    threading.Thread(target=self._run, name="model-use", daemon=True).start()
                    self._has_thread = True

    def flush(self) -> None:
        """Adds the sums to their rows, in one statement; without the database they stay."""
        with self._lock:
            sums, self._sums = self._sums, {}
        if not sums:
            return
        rows = [(*key, *counts) for key, counts in sorted(sums.items())]  # in one order, or two processes may deadlock
        try:
            with connection.cursor() as cursor:
                cursor.execute(_ADD, [list(column) for column in zip(*rows, strict=True)])
        except Error as error:
            with self._lock:
                self._put(sums)
            if not self._is_failing:
                logger.warning("the use of models could not be written, which is tried again: %s", error)
            self._is_failing = True
        else:
            self._is_failing = False

    def _put(self, sums: dict[Key, Counts]) -> None:
        for key, counts in sums.items():
            before = self._sums.get(key, (0, 0, 0, 0))
            self._sums[key] = tuple(a + b for a, b in zip(before, counts, strict=True))  # type: ignore[assignment]

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(FLUSH_SECONDS):
            try:
                self.flush()
            except Exception:
                logger.exception("the use of models could not be written")
            finally:
                connections.close_all()


_counter = Counter()


@listen
def count(use: Use) -> None:
    _counter.add(use)
    tally = _tally.get()
    if tally is not None and use.role == "chat":
        tally.input_tokens += use.input_tokens
        tally.output_tokens += use.output_tokens


def flush() -> None:
    """Writes what this process has counted."""
    _counter.flush()


def forget() -> None:
    """Drops what is not written, as of a fork, whose parent writes it."""
    global _counter  # noqa: PLW0603 - of the process
    _counter = Counter()


atexit.register(flush)
os.register_at_fork(after_in_child=forget)
