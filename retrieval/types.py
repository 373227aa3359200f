"""The values that flow through the pipeline, of which a stage returns new ones and never changes one, and its trace."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Doc

from retrieval.errors import Degradation

if TYPE_CHECKING:
    from retrieval.character_counts import CharacterCounts
    from retrieval.evidence import CharacterEvidence
    from retrieval.questions import QuestionIndex


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation; `role` is "user" or "assistant"."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A query as a chat model has rewritten it; `sub_queries` are further ones, for other aspects."""

    text: str
    sub_queries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConceptMention:
    """A concept of a knowledge base's taxonomy that stands in a query."""

    concept_id: int
    kb_id: int
    name: str
    mention: str  # as the query writes it
    names: tuple[str, ...] = ()  # the concept's others: its name, synonyms and abbreviations, without the one mentioned


@dataclass(frozen=True, slots=True)
class Analysis:
    """A query as the channels use it.

    Knowledge bases have tokenizers of their own: one without a tokenizer at hand is missing in `tokens_by_kb`, which
    keeps order and repeats. `variants_by_kb` holds the tokens of the text with a concept's mention replaced by another
    name of it.
    """

    text: str  # normalised; after a rewrite, the rewritten one
    tokens_by_kb: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    variants_by_kb: Mapping[int, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    language: str = "zh"  # or "en"
    keywords: tuple[str, ...] = ()  # fine-grained, the most telling ones first
    concepts: tuple[ConceptMention, ...] = ()
    intent: str = ""  # the query without courtesies and question words
    sub_queries: tuple["Analysis", ...] = ()  # for other aspects of the question; they have none of their own

    def tokens(self, kb_id: int) -> tuple[str, ...]:
        return self.tokens_by_kb.get(kb_id, ())

    def terms(self, kb_id: int) -> tuple[str, ...]:
        """The distinct tokens for a knowledge base in order of appearance."""
        return tuple(dict.fromkeys(self.tokens(kb_id)))

    def search_tokens(self, kb_id: int) -> tuple[str, ...]:
        """The query's tokens, and once each those that only other names of its concepts have."""
        tokens = self.tokens(kb_id)
        others = (token for variant in self.variants_by_kb.get(kb_id, ()) for token in variant)
        return (*tokens, *dict.fromkeys(token for token in others if token not in tokens))

    @property
    def all_terms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(token for tokens in self.tokens_by_kb.values() for token in tokens))

    @property
    def queries(self) -> tuple["Analysis", ...]:
        return (self, *self.sub_queries)


@dataclass(frozen=True, slots=True)
class Ranking:
    """What one channel found in one knowledge base for one query, best first.

    Scores are on the channel's own scale (cosine similarity, BM25). `score` gives exact ones of any chunk ids of the
    knowledge base, shape (n,), NaN for a chunk that has none; None where the channel cannot tell.
    """

    channel: str
    kb_id: int
    chunk_ids: NDArray[np.int64]  # shape (n,)
    scores: NDArray[np.float64]  # shape (n,)
    query: int = 0  # position in `Analysis.queries`; 0 is the query itself
    detail: Mapping[str, Any] = field(default_factory=dict)  # for the trace, for example which cache tier answered
    degradations: tuple[Degradation, ...] = ()  # what the channel could not do although it answered
    lexicon: "Lexicon | None" = None  # if the channel has one
    characters: "CharacterCounts | None" = None  # where the lexicon's knowledge base has counted them
    questions: "QuestionIndex | None" = None  # of the channel that searches them by keywords
    score: Callable[[NDArray[np.int64]], NDArray[np.float64]] | None = None
    passages: Mapping[int, "Passage"] = field(default_factory=dict)  # brought along, as no knowledge base holds them
    weight: float | None = None  # of the channel in the fusion; None: the configuration's


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a passage comes from that no knowledge base holds."""

    kind: str  # of the provider, as "feed" or "vertex_ai_search"
    source: str  # its name, as the knowledge base knows it
    id: str  # the provider's own
    url: str
    published: str = ""  # as the provider states it, blank where it does not
    rank: int = 0  # from 1, as the provider ranks it
    score: float | None = None  # on the provider's own scale; None where it gives none


@dataclass(frozen=True, slots=True)
class ExternalHit:
    """A result of a provider; what it does not state is blank, or None."""

    url: str
    title: str
    text: str
    id: str = ""  # the provider's own
    score: float | None = None  # on the provider's own scale
    published: str = ""  # a date or a time as it is stated


Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class PageRegion:
    """Where part of a passage stands in its document."""

    page: Annotated[int, Doc("From 1; of a presentation the slide.")]
    box: Annotated[
        Box | None,
        Doc(
            "Left, top, right and bottom as shares of the page as it is seen, from its top left corner; null: where on the page "
            "is not known."
        ),
    ]


def clock(seconds: int) -> str:
    """A time in a recording for readers: 12:34, or 1:02:03 from an hour on."""
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def searchable_text(title: str, heading_path: Sequence[str], text: str) -> str:
    """What is indexed, embedded and reranked: a chunk in its context, as a reader would meet it."""
    return "\n".join(part for part in (title, " > ".join(heading_path), text) if part)


class Passage(NamedTuple):
    """The envelope of a chunk: content and provenance. A search makes hundreds, hence no dataclass.

    What comes from elsewhere has no chunk: its id is negative, made of its content, and means nothing outside of a search.

    """

    chunk_id: int
    document_id: int
    kb_id: int
    title: str
    source: str
    page: int | None
    text: str  # what is given to readers: the chunk, or the longer passage that it was cut from
    heading_path: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = MappingProxyType({})
    source_type: str = "book"
    position: int = 0
    parent_id: int | None = None  # of the longer passage
    matched: str = ""  # the chunk, where the longer passage is given in its place
    origin: Origin | None = None  # None for a chunk
    questions: tuple[str, ...] = ()  # that the chunk answers, where they are searched
    seconds: int | None = None  # at which a recording says it
    regions: tuple[PageRegion, ...] = ()  # where its text stands

    @property
    def stored_chunk_id(self) -> int | None:
        return self.chunk_id if self.origin is None else None

    @property
    def stored_document_id(self) -> int | None:
        return self.document_id if self.origin is None else None

    @property
    def searchable(self) -> str:
        return searchable_text(self.title, self.heading_path, self.text)

    @property
    def searched(self) -> str:
        """The chunk itself, which is what was found, reranked and highlighted."""
        return self.matched or self.text


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a candidate was found: the chunk, by a channel, for a query (position in `Analysis.queries`)."""

    channel: str
    kb_id: int
    chunk_id: int
    query: int
    rank: int
    score: float


# The names of ranks and scores, in the order of the pipeline; "order" has no rank of its own.
STAGES = (
    "vector",
    "bm25",
    "characters",
    "question",
    "question_bm25",
    "fts",
    "lexical",
    "fused",
    "rerank",
    "order",
)


class CutBy(StrEnum):
    """What drops a candidate, in the order of the pipeline."""

    FUSION = "fusion"
    GATE = "gate"
    PARENT = "parent"
    PER_SOURCE = "per_source"
    TOP_K = "top_k"


class Relevance(StrEnum):
    """How sure it is, by its score alone, that a passage is about the query."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Candidate(NamedTuple):
    """A chunk on its way through the stages. A search makes hundreds, hence no dataclass.

    Ranks (from 1) and scores (each on its own scale) are by channel and stage: those of STAGES, and sources elsewhere.
    """

    chunk_id: int
    kb_id: int
    ranks: Mapping[str, int]
    scores: Mapping[str, float]
    agreement: float = 0.0  # the fused score as a share of the best that the channels could have given, 0 to 1
    passage: Passage | None = None
    matched_terms: tuple[str, ...] = ()  # query terms that the chunk holds
    question: str = ""  # the one of its chunk's questions that the query equals
    cut_by: CutBy | None = None  # None while it is a result
    is_near_miss: bool = False  # cut by the gate, and given apart from the results
    provenance: tuple[Provenance, ...] = ()  # every place where it, or a chunk of the same content, was found
    neighbours: tuple[Passage, ...] = ()  # before and after it in its document, where they were asked for

    @property
    def is_given(self) -> bool:
        """Whether whoever searches is given it, as a result or as a near miss."""
        return self.cut_by is None or self.is_near_miss


@dataclass(frozen=True, slots=True)
class RerankJob:
    """What a reranker is given.

    `similarity` gives exact cosine similarities of any chunk ids to the query, shape (n,), NaN where there is no
    vector; a knowledge base is missing where the vector channel has not answered, and in `lexicons`, `characters` and
    `questions` where the keyword index has not.
    """

    analysis: Analysis
    candidates: tuple[Candidate, ...]  # best first by fused score, each with its passage
    lexicons: Mapping[int, "Lexicon"] = field(default_factory=dict)
    characters: Mapping[int, "CharacterEvidence"] = field(default_factory=dict)
    questions: Mapping[int, "QuestionIndex"] = field(default_factory=dict)
    spaces: Mapping[int, str] = field(default_factory=dict)  # id of the embedding model by knowledge base
    similarity: Mapping[int, Callable[[NDArray[np.int64]], NDArray[np.float64]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """A result or a near miss: the passage, its score and the scale which that score is on."""

    passage: Passage
    score: float
    score_scale: str
    ranks: Mapping[str, int]
    scores: Mapping[str, float]
    matched_terms: tuple[str, ...] = ()
    provenance: tuple[Provenance, ...] = ()
    neighbours: tuple[Passage, ...] = ()
    relevance: Relevance | None = None  # None on a scale without meaning
    equal_question: str = ""  # the one of the passage's questions that the query equals


@dataclass(frozen=True, slots=True)
class Fact:
    """A row of a knowledge base's graph."""

    knowledge_base_id: int
    subject: str
    predicate: str
    object: str
    chunk_id: Annotated[int | None, Doc("The chunk that it was taken from, if that is known.")] = None


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


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a search; the last three are of an explained one."""

    query: str
    hits: tuple[Hit, ...]  # best first
    candidates: tuple[Candidate, ...]  # all that any channel found, in final order, with the stage that cut them
    analysis: Analysis  # of the query as it was searched for
    score_scale: str
    threshold: float
    degraded: tuple[Degradation, ...]
    spans: tuple[Span, ...]
    timings_ms: Mapping[str, float]  # by stage, and "total"
    near_misses: tuple[Hit, ...] = ()  # the best below a cut that refuses nothing, likewise
    facts: tuple[Fact, ...] = ()  # for the query's entities; beside the results, never among them
    dropped: tuple[Dropped, ...] = ()  # chunks that were found and are no candidates
    # Of knowledge bases whose keyword index has answered.
    lexicons: Mapping[int, "Lexicon"] = field(default_factory=dict)
    characters: Mapping[int, "CharacterEvidence"] = field(default_factory=dict)


class Lexicon(Protocol):
    """Term statistics of one knowledge base."""

    @property
    def chunk_count(self) -> int: ...

    def rarity(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Returns how telling each term is, positive, shape (n_terms,)."""

    def saturation(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns the share that each chunk has of the most that each term can add to a score, shape (n_chunks, n_terms).

        0 where the chunk does not hold the term.
        """

    def idf(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Returns the weight of each term in a score, shape (n_terms,)."""

    def frequencies(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Returns how often each chunk holds each term, shape (n_chunks, n_terms)."""

    def contributions(self, terms: NDArray[np.uint64], chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns what each term, named once, adds to each chunk's score, shape (n_chunks, n_terms)."""

    def saturation_of(self, frequencies: NDArray[np.uint32], lengths: NDArray[np.float64]) -> NDArray[np.float64]:
        """As `saturation`, of texts that are no chunks: frequencies of shape (n_texts, n_terms), lengths in terms."""

    def most(self, terms: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Returns the bound of what each term, named once, can add to a score, shape (n_terms,)."""


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
