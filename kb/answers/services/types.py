"""What is asked and what is answered."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from kb.base.messages import degradation_as_json
from kb.search.services.search import SearchOutcome, SearchRequest
from retrieval.trace import Degradation


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRequest(SearchRequest):
    """What to ask: a search, whose latency budget does not count the writing of the answer.

    Attributes:
        knowledge_base_ids: may be left out where a conversation is continued, which has its own.
        conversation_id: the conversation that the question continues.
        remember: begin a conversation with the question, where it continues none.
    """

    knowledge_base_ids: Sequence[int] = ()
    conversation_id: UUID | None = None
    remember: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A passage that the answer could be written from; `number` is what the answer cites it by."""

    number: int
    label: str
    title: str
    source: str
    page: int | None
    chunk_id: int | None
    document_id: int | None
    knowledge_base_id: int
    text: str
    score: float
    score_scale: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer and what it rests on.

    Attributes:
        text: with the citations that name a source, and as its last line the sources' names.
        hit: whether something relevant was found and, as far as a language model was asked, answers the question.
        confidence: 0 to 1, on the scale of the best source; None where the scores have no scale.
        conversation_id: of the conversation that it was kept in.
        removed_citations: numbers that the language model cited and that name no source.
        model: the language model that wrote it; None where none did.
    """

    text: str
    sources: tuple[Source, ...]
    hit: bool
    confidence: float | None
    outcome: SearchOutcome
    degraded: tuple[Degradation, ...]
    timings_ms: dict[str, float]
    removed_citations: tuple[int, ...] = ()
    model: str | None = None
    conversation_id: UUID | None = None

    def as_dict(self) -> dict[str, Any]:
        """The response of POST /api/v1/ask/."""
        profile = self.outcome.wiring.profile
        return {
            "answer": self.text,
            **found(self.sources, self.outcome, self.degraded, hit=self.hit),
            "confidence": self.confidence,
            "conversation_id": None if self.conversation_id is None else str(self.conversation_id),
            "profile": {"name": profile.name, "version": profile.version},
            "timings_ms": self.timings_ms,
            "removed_citations": list(self.removed_citations),
            "model": self.model,
        }


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """A step of an answer as it is written.

    `sources` comes first and tells what was found; each `delta` holds further "text"; `done`, the last, holds the whole
    answer, which counts where it differs from the pieces.
    """

    name: Literal["sources", "delta", "done"]
    data: dict[str, Any]


def found(
    sources: Sequence[Source], outcome: SearchOutcome, degraded: Sequence[Degradation], *, hit: bool
) -> dict[str, Any]:
    """What is known before the answer is written."""
    return {
        "sources": [dataclasses.asdict(source) for source in sources],
        "hit": hit,
        "trace_id": str(outcome.trace_id),
        "degraded": [degradation_as_json(degradation) for degradation in degraded],
        "facts": [fact.as_dict() for fact in outcome.result.facts],
    }
