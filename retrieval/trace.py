"""What a search did, stage by stage, and what it could not do."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from retrieval.errors import Degradation


@dataclass(frozen=True, slots=True)
class Span:
    """One stage of one search: what went in, what came out, how long it took."""

    stage: str
    milliseconds: float
    detail: Mapping[str, Any] = field(default_factory=dict)
    # On the clock of `time.perf_counter`, in seconds.
    ended: float = field(default_factory=time.perf_counter, compare=False, repr=False, kw_only=True)

    def as_dict(self) -> dict[str, Any]:
        return {"stage": self.stage, "milliseconds": round(self.milliseconds, 3), **self.detail}


@dataclass(frozen=True, slots=True)
class Dropped:
    """A chunk that a channel found and that is no candidate.

    The stage is "channels" (too far back in every channel), "passages" (it is gone, or not to be seen by who searches),
    "dedupe" (another chunk stands for its content) or "vector_only" (not found by vectors, which alone count where no
    reranker is used).
    """

    stage: str
    kb_id: int
    chunk_id: int
    ranks: Mapping[str, int]  # its best rank in each channel that found it, over all queries
    represented_by: int | None = None  # the chunk that stands for its content


class Trace:
    """Collects the spans and degradations of one search. Its owner is one thread.

    Where it `explains`, it also collects every chunk that was dropped before there were candidates.
    """

    def __init__(self, *, explains: bool = False) -> None:
        self._started = time.perf_counter()
        self.explains = explains
        self.spans: list[Span] = []
        self.degradations: list[Degradation] = []
        self.dropped: list[Dropped] = []

    @contextmanager
    def span(self, stage: str, **detail: Any) -> Iterator[dict[str, Any]]:
        """Times a stage; what the body puts into the yielded dictionary becomes the span's detail."""
        started = time.perf_counter()
        yield detail
        self.spans.append(Span(stage, (time.perf_counter() - started) * 1_000, detail))

    def degrade(self, *degradations: Degradation) -> None:
        """Notes what is worse than it should be, each once."""
        self.degradations += [each for each in dict.fromkeys(degradations) if each not in self.degradations]

    def timings_ms(self) -> dict[str, float]:
        """Milliseconds by stage; stages that ran once per knowledge base count with their longest run."""
        timings: dict[str, float] = {}
        for span in self.spans:
            timings[span.stage] = max(timings.get(span.stage, 0.0), round(span.milliseconds, 3))
        timings["total"] = round((time.perf_counter() - self._started) * 1_000, 3)
        return timings
