"""What is told of a chunk that a search was expected to find."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kb.content.models import Chunk
from kb.search.services.search import SearchOutcome, SearchRequest


class Stage(StrEnum):
    """The stages in the order in which a chunk can be lost; `FOUND` comes after all of them."""

    KNOWLEDGE_BASE = "knowledge_base"
    DOCUMENT = "document"
    ENABLED = "enabled"
    POSTINGS = "postings"
    EMBEDDING = "embedding"
    FILTERS = "filters"
    CHANNELS = "channels"
    DEDUPE = "dedupe"
    FUSION = "fusion"
    RERANK = "rerank"
    GATE = "gate"
    PARENT = "parent"
    PER_SOURCE = "per_source"
    TOP_K = "top_k"
    FOUND = "found"


class State(StrEnum):
    """What became of the chunk at a stage; `WEAKENED`: it went on, with less than it could have."""

    PASSED = "passed"
    WEAKENED = "weakened"
    LOST = "lost"
    NOT_ASKED = "not_asked"


class Reason(StrEnum):
    """Why a stage has lost the chunk, or what is worth saying of one that it passed."""

    NOT_SEARCHED = "not_searched"
    NOT_READY = "not_ready"
    FAILED = "failed"
    DISABLED = "disabled"
    NO_POSTINGS = "no_postings"
    NO_VECTOR = "no_vector"
    OTHER_MODEL = "other_model"
    FILTERED = "filtered"
    TOO_DEEP = "too_deep"
    MISSED_BY_INDEX = "missed_by_index"
    CHANNEL_FAILED = "channel_failed"
    NOTHING_IN_COMMON = "nothing_in_common"
    BLANK_QUERY = "blank_query"
    CHANGED_MEANWHILE = "changed_meanwhile"
    DOUBLE = "double"
    VECTOR_ONLY = "vector_only"
    BEYOND_CUT = "beyond_cut"
    RERANKER_OFF = "reranker_off"
    NO_RERANKER = "no_reranker"
    BELOW = "below"
    GATE_OPEN = "gate_open"
    SAME_PARENT = "same_parent"
    NO_PARENT = "no_parent"
    CAP_FULL = "cap_full"
    NO_CAPS = "no_caps"
    TOO_MANY = "too_many"


@dataclass(frozen=True, slots=True)
class Step:
    """One stage, and what it did with the chunk.

    Attributes:
        figures: what the sentence about it is made of, of JSON's types.
    """

    stage: Stage
    state: State
    reason: Reason | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)


class PlaceState(StrEnum):
    """How a channel has the chunk."""

    CANDIDATE = "candidate"
    DEEPER = "deeper"
    MISSED = "missed"
    ABSENT = "absent"
    FAILED = "failed"
    NOT_ASKED = "not_asked"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chunk stands in one channel for one query.

    Attributes:
        query: position in the analysis's queries; 0 is the query itself.
        rank: among all chunks that the search may find, from 1; None where the channel knows nothing of it.
        channel_rank: where the channel, as it was searched, puts it; None: not among what it reads.
        total: how many chunks the channel could rank; None: not counted.
        depth: the first so many become candidates.
        is_indexed: an approximate index answers the channel.
        error: the code of the degradation where the channel has failed.
    """

    channel: str
    query: int
    state: PlaceState
    rank: int | None = None
    channel_rank: int | None = None
    score: float | None = None
    total: int | None = None
    depth: int = 0
    is_indexed: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class TermRow:
    """A query term and the chunk, as BM25 sees them.

    Attributes:
        in_query: how often the query holds it.
        is_other: it stands in another name of a concept, not in the query.
        in_chunks: how many chunks of the knowledge base hold it.
        in_chunk: how often this one does.
        is_written: the chunk does not hold the term, and yet its text does: it is cut into other words there.
    """

    term: str
    in_query: int
    is_other: bool
    idf: float
    in_chunks: int
    in_chunk: int
    contribution: float
    is_written: bool


@dataclass(frozen=True, slots=True)
class Terms:
    """BM25, term by term.

    Attributes:
        chunk_terms: distinct terms of the chunk in order of appearance, and how often it holds each.
        words: what query and chunk share as they are written, and not as they are cut: words for the dictionary.
    """

    rows: tuple[TermRow, ...]
    chunk_terms: tuple[tuple[str, int], ...]
    chunk_count: int
    words: tuple[str, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(row.term for row in self.rows if not row.in_chunk and not row.is_other)


class RemedyCode(StrEnum):
    ENABLE = "enable"
    INDEX_CHUNK = "index_chunk"
    RETRY_DOCUMENT = "retry_document"
    ADD_WORD = "add_word"
    ADD_QUESTION = "add_question"
    DRAFT = "draft"
    CHANGE_REQUEST = "change_request"
    SHOW_DOUBLE = "show_double"
    RUN_COMMAND = "run_command"


@dataclass(frozen=True, slots=True)
class Remedy:
    """What would help.

    Attributes:
        key: tells it apart from the others of its kind.
        settings: what a draft of a profile changes, by the names of RetrievalConfig.
        suggestions: what to begin with: words for the dictionary, or a question.
        request: the search that would find it, where another one is all that it takes.
        chunk_id: the chunk to look at instead.
        command: to be run on the server.
    """

    code: RemedyCode
    key: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    suggestions: tuple[str, ...] = ()
    request: SearchRequest | None = None
    chunk_id: int | None = None
    command: str = ""

    @property
    def id(self) -> str:
        return f"{self.code}:{self.key}" if self.key else str(self.code)


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Why a search has not found a chunk, or at which place it has.

    Attributes:
        chunk: read with its document and knowledge base.
        steps: every stage, in order.
        places: by channel and query.
        terms: None where there is no keyword index to ask.
    """

    request: SearchRequest
    chunk: Chunk
    outcome: SearchOutcome
    steps: tuple[Step, ...]
    places: tuple[Place, ...]
    terms: Terms | None

    @property
    def verdict(self) -> Step:
        """The first stage that has lost the chunk, or the last step of all, which says where it was found."""
        return next((step for step in self.steps if step.state is State.LOST), self.steps[-1])

    @property
    def rank(self) -> int | None:
        """Among the results, from 1; None where it is none of them."""
        verdict = self.verdict
        return verdict.figures["rank"] if verdict.stage is Stage.FOUND else None

    def step(self, stage: Stage) -> Step:
        return next(step for step in self.steps if step.stage == stage)
