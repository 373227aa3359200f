"""Vectors of queries: cached, made once however many ask together, and never by a model that hangs or lies."""

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retrieval.cache import ByteCache, Entry
from retrieval.errors import (
    ChannelUnavailable,
    CircuitOpen,
    DegradationCode,
    Message,
    ModelTimeout,
    ModelUnavailable,
    UnusableVectors,
    _,
    message_of,
)
from retrieval.execution import Land, ModelGuard, NoRoom, Share, SingleFlight, Threads, too_late
from retrieval.protocols import Embedder

logger = logging.getLogger(__name__)

MODEL = "model"
WARM_UP = "warm-up"
PATIENCE_SECONDS = 5.0
LOAD_SECONDS = 120.0
# Queries that a model is asked for at once or that wait for it, those included whose searches have given up.
MOST_FLIGHTS = 64
# Before the text of a passage, which has another vector than a query of the same words.
PASSAGE = "passage\0"
MOST_CHARACTERS = 2_000

_FORMAT = b"1"
_STORED: Final = np.dtype("<f4")

Vector = NDArray[np.float32]


class QueryEmbedder:
    """One model's vectors of queries, shared by the searches of all scopes.

    A model is judged by patience of its own, not by the searches that wait for it: however little time these have, they
    do not open its breaker, and what it answers too late for them serves the next.

    `guard` runs the model; None for an embedder that is arithmetic: it runs in the caller's thread, and another process
    makes its vectors faster than it would fetch them. `cache` is of vectors as float32 bytes, and may be shared by
    several models. The model may take `patience_s` seconds for a query; longer where a search waits longer.
    """

    def __init__(
        self, embedder: Embedder, guard: ModelGuard | None, cache: ByteCache, *, patience_s: float = PATIENCE_SECONDS
    ) -> None:
        self.embedder = embedder
        self._guard = guard
        self._cache = cache
        self._patience_s = patience_s
        self._dimension: int | None = None
        self._threads = Share(Threads("query vector"), MOST_FLIGHTS)
        self._flights: SingleFlight[Vector] = SingleFlight(self._threads)

    @property
    def model_id(self) -> str:
        return self.embedder.model_id

    def load(self, deadline: float) -> None:
        """Runs a model that is not loaded yet, whatever is cached; raises as `embed`."""
        if self._guard is not None and not self.embedder.is_loaded:
            with _as_channel_fault():
                self._loaded(self._guard, deadline)

    def embed(self, text: str, deadline: float, scope: str = "") -> tuple[Vector, str]:
        """The vector of a query, shape (dimension,), read-only, and its origin: "memory", "shared" or "model".

        The cache serves a scope nothing that another one has asked for. The deadline is of `time.monotonic`. Raises
        ChannelUnavailable with EMBEDDER_TIMEOUT, MODEL_CIRCUIT_OPEN, MODEL_UNAVAILABLE or EMBEDDER_FAILED.
        """
        key = scope + text
        with _as_channel_fault():
            if self._guard is None:
                return self._held(key) or (self._made(text, key), MODEL)
            found = _as_vector(self._cache.get(_key(self.model_id, key)))
            # Another model of the same name may have left a vector of another dimension with the other processes.
            if found is not None and self._dimension in (None, found[0].size):
                return found
            if not self.embedder.is_loaded:
                self._loaded(self._guard, deadline)
            return self._landed(key, text, self._guard, deadline, self._patience_s), MODEL

    def known(self, text: str, scope: str = "") -> Vector | None:
        """The vector of a query that was asked lately; None where no cache holds it, and no model is asked."""
        found = _as_vector(self._cache.get(_key(self.model_id, scope + text)))
        return None if found is None else found[0]

    def similarities(self, query: str, texts: Sequence[str], deadline: float, scope: str = "") -> NDArray[np.float64]:
        """Cosines of texts, at most MOST_CHARACTERS of each, to a query, in this model's space, shape (n_texts,).

        The texts' vectors are cached in this process, since a page that is read for one query is read for the next.
        Scope, deadline and errors are as for `embed`.
        """
        vector, _ = self.embed(query, deadline, scope)
        held = {text: self._held(scope + PASSAGE + text) for text in texts}
        lacking = [text for text, entry in held.items() if entry is None]
        made: dict[str, Vector] = {}
        if lacking:
            with _as_channel_fault():
                work = partial(self._passages_made, lacking, scope)
                made = work() if self._guard is None else self._guard.call(work, deadline)
        rows = [made[text] if entry is None else entry[0] for text in texts for entry in [held[text]]]
        return np.array([float(row @ vector) if row.size == vector.size else np.nan for row in rows], dtype=np.float64)

    def _passages_made(self, texts: Sequence[str], scope: str) -> dict[str, Vector]:
        try:
            rows = np.asarray(self.embedder.embed_documents([text[:MOST_CHARACTERS] for text in texts]), np.float32)
        except ModelUnavailable:
            raise
        except Exception as error:  # the boundary between a search and a model
            logger.exception("model %r failed on passages", self.model_id)
            raise UnusableVectors(
                _("model {model_id!r} failed on passages: see the log", model_id=self.model_id)
            ) from error
        if rows.ndim != 2 or len(rows) != len(texts) or not np.isfinite(rows).all():
            raise UnusableVectors(
                _("model {model_id!r} gave no usable vectors of passages: check its files", model_id=self.model_id)
            )
        for text, row in zip(texts, rows, strict=True):
            self._cache.keep(_key(self.model_id, scope + PASSAGE + text), _to_bytes(row))
        return dict(zip(texts, rows, strict=True))

    def _held(self, key: str) -> tuple[Vector, str] | None:
        return _as_vector(self._cache.held(_key(self.model_id, key)))

    def _loaded(self, guard: ModelGuard, deadline: float) -> None:
        """All who ask meanwhile wait for one call, so that none of them takes loading for hanging."""
        self._landed(None, WARM_UP, guard, deadline, LOAD_SECONDS)

    def _landed(self, key: str | None, text: str, guard: ModelGuard, deadline: float, patience_s: float) -> Vector:
        while True:
            judged = max(deadline, time.monotonic() + patience_s)
            try:
                flight = self._flights.join(key, partial(self._fly, text, key or text, guard, judged))
            except NoRoom:
                if not self._threads.room.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    raise ModelTimeout(too_late(self.model_id)) from None
                self._threads.room.release()
                continue
            try:
                return flight.result(timeout=max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise ModelTimeout(too_late(self.model_id)) from None
            except ModelTimeout:
                # The flight had the deadline of whoever asked first, who may have had less time.
                if time.monotonic() >= deadline:
                    raise

    def _fly(self, text: str, key: str, guard: ModelGuard, deadline: float, land: Land[Vector]) -> None:
        vector = guard.call(partial(self._made, text, key), deadline)
        land(vector)
        self._cache.publish(_key(self.model_id, key), _to_bytes(vector))

    # -- In a thread of the guard, where there is one --------------------------------------------------------------------
    def _made(self, text: str, key: str) -> Vector:
        """Caches the vector itself, so that one that comes too late serves the next who asks."""
        try:
            vector = np.array(self.embedder.embed_query(text), dtype=np.float32)
            dimension = self.embedder.dimension
        except ModelUnavailable as error:
            logger.warning("%s", error)
            raise
        except Exception as error:  # the boundary between a search and a model
            logger.exception("model %r failed on a query", self.model_id)
            raise UnusableVectors(
                _(
                    "model {model_id!r} failed on this query ({kind}): see the log",
                    model_id=self.model_id,
                    kind=type(error).__name__,
                )
            ) from error
        self._check(vector, dimension)
        vector.flags.writeable = False  # all who ask share it
        self._dimension = dimension
        self._cache.keep(_key(self.model_id, key), _to_bytes(vector))
        return vector

    def _check(self, vector: Vector, dimension: int) -> None:
        problem: Message | None = None
        if vector.shape != (dimension,):
            problem = _("answered with shape {shape}, not ({dimension},)", shape=str(vector.shape), dimension=dimension)
        elif not np.isfinite(vector).all():
            problem = _("answered with a vector that is not finite")
        if problem:
            logger.warning("model %r %s", self.model_id, problem)
            raise UnusableVectors(
                _(
                    "model {name!r} {problem}: check its files or its server's settings, or choose another model",
                    name=self.model_id,
                    problem=problem,
                )
            )


@dataclass(frozen=True, slots=True)
class ScopedQueryEmbedder:
    """A model's vectors of the queries of one scope.

    Neither where a vector comes from nor how long it takes tells whether the same words were asked of other scopes.
    """

    embedder: QueryEmbedder  # which all scopes share, with its breaker
    scope: str  # has an end that no query can imitate

    @property
    def model_id(self) -> str:
        return self.embedder.model_id

    def embed(self, text: str, deadline: float) -> tuple[Vector, str]:
        return self.embedder.embed(text, deadline, self.scope)

    def similarities(self, query: str, texts: Sequence[str], deadline: float) -> NDArray[np.float64]:
        return self.embedder.similarities(query, texts, deadline, self.scope)


def _key(model_id: str, text: str) -> bytes:
    # The length says where the model's name ends.
    name = model_id.encode()
    named = _FORMAT + len(name).to_bytes(8, "little") + name
    return hashlib.sha256(named + text.encode("utf-8", "surrogatepass")).digest()


def _as_vector(entry: Entry | None) -> tuple[Vector, str] | None:
    if entry is None or not entry.value or len(entry.value) % _STORED.itemsize:
        return None
    return np.frombuffer(entry.value, dtype=_STORED), entry.tier


def _to_bytes(vector: Vector) -> bytes:
    return vector.astype(_STORED).tobytes()


_CODES = {
    ModelTimeout: DegradationCode.EMBEDDER_TIMEOUT,
    CircuitOpen: DegradationCode.MODEL_CIRCUIT_OPEN,
    UnusableVectors: DegradationCode.EMBEDDER_FAILED,
}


@contextmanager
def _as_channel_fault() -> Iterator[None]:
    try:
        yield
    except ModelUnavailable as error:
        code = _CODES.get(type(error), DegradationCode.MODEL_UNAVAILABLE)
        raise ChannelUnavailable(code, message_of(error)) from error
