import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, cast

from typing_extensions import Doc

from retrieval.errors import Message, storable


class DegradationCode(StrEnum):
    """Every way in which an answer can be less than asked for. The README lists them; tests depend on them."""

    BM25_DEPENDENCIES_MISSING = "bm25_dependencies_missing"
    BM25_POSTINGS_OUTDATED = "bm25_postings_outdated"
    BM25_INDEX_BUILDING = "bm25_index_building"
    CHANNEL_FAILED = "channel_failed"
    CHANNEL_TIMEOUT = "channel_timeout"
    EMBEDDER_FAILED = "embedder_failed"
    EMBEDDER_TIMEOUT = "embedder_timeout"
    EXTERNAL_LEFT_OUT = "external_left_out"
    EXTERNAL_NOT_CONFIGURED = "external_not_configured"
    EXTERNAL_QUOTA = "external_quota"
    EXTERNAL_REFUSED = "external_refused"
    EXTERNAL_TIMEOUT = "external_timeout"
    EXTERNAL_UNAVAILABLE = "external_unavailable"
    FACTS_FAILED = "facts_failed"
    HASHING_EMBEDDER = "hashing_embedder"
    LLM_NOT_CONFIGURED = "llm_not_configured"
    LLM_STREAM_BROKEN = "llm_stream_broken"
    LLM_TIMEOUT = "llm_timeout"
    LLM_UNAVAILABLE = "llm_unavailable"
    LLM_UNUSABLE = "llm_unusable"
    MODEL_CIRCUIT_OPEN = "model_circuit_open"
    MODEL_UNAVAILABLE = "model_unavailable"
    RERANKER_FAILED = "reranker_failed"
    RERANKER_TIMEOUT = "reranker_timeout"
    RERANKER_UNAVAILABLE = "reranker_unavailable"
    SHARED_CACHE_UNAVAILABLE = "shared_cache_unavailable"
    STORE_BEHIND = "store_behind"
    STORE_UNAVAILABLE = "store_unavailable"
    THRESHOLD_NOT_APPLIED = "threshold_not_applied"


@dataclass(frozen=True, slots=True)
class Degradation:
    """What is worse than it should be, and why.

    Attributes:
        detail: for readers, a `Message` where it can be translated. It may quote a server, so what no database and no
            response can hold is taken out.
    """

    stage: str
    code: DegradationCode
    detail: Annotated[str, Doc("What is degraded, and what to do about it, in the caller's language.")]

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", storable(self.detail))

    def as_dict(self) -> dict[str, Any]:
        """What is stored of it, for `from_dict`; `detail` is English, for whoever reads no messages."""
        message = {"message": self.detail.as_dict()} if isinstance(self.detail, Message) else {}
        return {"stage": self.stage, "code": str(self.code), "detail": str(self.detail), **message}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Degradation":
        """One that was stored, also by a version that knew other codes or stored sentences only."""
        detail = Message.from_dict(stored["message"]) if "message" in stored else stored["detail"]
        code = stored["code"] if stored["code"] not in set(DegradationCode) else DegradationCode(stored["code"])
        return cls(stored["stage"], cast(DegradationCode, code), detail)


@dataclass(frozen=True, slots=True)
class Span:
    """One stage of one search: what went in, what came out, how long it took.

    Attributes:
        ended: when, on the clock of `time.perf_counter`; seconds.
    """

    stage: str
    milliseconds: float
    detail: Mapping[str, Any] = field(default_factory=dict)
    ended: float = field(default_factory=time.perf_counter, compare=False, repr=False, kw_only=True)

    def as_dict(self) -> dict[str, Any]:
        return {"stage": self.stage, "milliseconds": round(self.milliseconds, 3), **self.detail}


@dataclass(frozen=True, slots=True)
class Dropped:
    """A chunk that a channel found and that is no candidate.

    Attributes:
        stage: "channels" (too far back in every channel), "passages" (it is gone, or not to be seen by who searches),
            "dedupe" (another chunk stands for its content) or "vector_only" (not found by vectors, which alone count where no
            reranker is used).
        ranks: its best rank in each channel that found it, over all queries.
        represented_by: the chunk that stands for its content.
    """

    stage: str
    kb_id: int
    chunk_id: int
    ranks: Mapping[str, int]
    represented_by: int | None = None


class Trace:
    """Collects the spans and degradations of one search. Its owner is one thread.

    Args:
        explains: whether it also collects every chunk that was dropped before there were candidates.
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
