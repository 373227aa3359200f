import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Self, get_args, get_origin

from retrieval.errors import InvalidConfiguration, gettext_noop as _
from retrieval.settings import setting, settings_of

Fusion = Literal["rrf", "weighted"]
Rewrite = Literal["off", "conversation", "always"]
# Cosine orders and gates worse than overlap: NDCG@10 .651 against .718 on scifact with MiniLM, AUROC .838 against .940 on
# xquad-en with half of its paragraphs removed.
RERANKERS = ("cross_encoder", "http", "overlap", "cosine")

QUERY, CANDIDATES, FUSION, SOURCES = _("Query"), _("Candidates"), _("Fusion"), _("Live and external sources")
RERANKING, GATE, RESULTS, FACTS = _("Reranking"), _("Relevance threshold"), _("Results"), _("Facts and answers")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalConfig:
    """The settings of one search, resolved: environment, then profile, then the request's overrides.

    This is the one declaration of each: forms, environment, `overrides` and documentation are made from it, in this order.
    None is a value that the search works out by itself.
    """

    rewrite: Rewrite = setting(
        _("Rewrite"),
        _("Whether a chat model rewrites the query before the search: never, in conversations only, or always."),
        default="conversation",
        group=QUERY,
        choices={"off": _("off"), "conversation": _("in conversations"), "always": _("always")},
    )
    max_retrieval_queries: int = setting(
        _("Max queries"),
        _("How many queries are searched for at most, sub-queries included."),
        default=3,
        group=QUERY,
        between=(1, 10),
    )
    candidate_floor: int = setting(
        _("Candidate floor"),
        _(
            "The least number of chunks that each channel proposes, so that asking for more results does not reorder the first."
        ),
        default=60,
        group=CANDIDATES,
        between=(1, 2000),
    )
    vector_top_k: int | None = setting(
        _("Vector candidates"),
        _("How many chunks the vector channel proposes; auto: three times Top K, and no fewer than the floor."),
        default=None,
        group=CANDIDATES,
        between=(1, 2000),
    )
    bm25_top_k: int | None = setting(
        _("Keyword candidates"),
        _("How many chunks the keyword channel proposes; auto: three times Top K, and no fewer than the floor."),
        default=None,
        group=CANDIDATES,
        between=(1, 2000),
    )
    vector_timeout_ms: int | None = setting(
        _("Vector time limit, ms"),
        _("After so long the search goes on without the vector channels; auto: when its time is up."),
        default=None,
        group=CANDIDATES,
        between=(1, 60_000),
    )
    keyword_timeout_ms: int | None = setting(
        _("Keyword time limit, ms"),
        _("After so long the search goes on without the keyword channels; auto: when its time is up."),
        default=None,
        group=CANDIDATES,
        between=(1, 60_000),
    )
    enable_fts: bool = setting(
        _("Full text as stand-in"),
        _("PostgreSQL’s full text answers where the keyword index cannot."),
        default=True,
        group=CANDIDATES,
    )
    lexical_fallback: bool = setting(
        _("N-grams as stand-in"),
        _("Character n-grams answer where keywords find next to nothing or the embedding model is out."),
        default=True,
        group=CANDIDATES,
    )
    fusion: Fusion = setting(
        _("Fusion"),
        _(
            "How the channels’ lists become one: RRF looks at ranks only, the weighted sum also at how much better a score is."
        ),
        default="rrf",
        group=FUSION,
        env="HYBRID_FUSION",
        choices={"rrf": _("RRF"), "weighted": _("weighted sum")},
    )
    vector_weight: float = setting(
        _("Vector weight"),
        _("How much the vector channel counts in RRF."),
        default=0.6,
        group=FUSION,
        env="RRF_VECTOR_WEIGHT",
        between=(0, 1000),
    )
    keyword_weight: float = setting(
        _("Keyword weight"),
        _("How much the keyword channel counts in RRF."),
        default=0.4,
        group=FUSION,
        env="RRF_KEYWORD_WEIGHT",
        between=(0, 1000),
    )
    rrf_k: int = setting(
        _("RRF constant k"),
        _("The larger it is, the less it matters to stand first rather than tenth."),
        default=60,
        group=FUSION,
        between=(1, 10_000),
    )
    hybrid_vector_weight: float = setting(
        _("Vector share"),
        _("How much the vector channel counts in the weighted sum."),
        default=0.7,
        group=FUSION,
        between=(0, 1000),
    )
    hybrid_text_weight: float = setting(
        _("Keyword share"),
        _("How much the keyword channel counts in the weighted sum."),
        default=0.3,
        group=FUSION,
        between=(0, 1000),
    )
    question_weight: float = setting(
        _("Question weight"),
        _("How much the questions count that chunks are said to answer, in either fusion; 0: they are not searched."),
        default=0.4,
        group=FUSION,
        between=(0, 1000),
    )
    keyword_vector_share: float = setting(
        _("Keyword vector share"),
        _("The part, from 0 to 1, of a chunk’s keyword vector in its similarity, where it has one."),
        default=0.5,
        group=FUSION,
        between=(0, 1),
    )
    external: bool = setting(
        _("Search external sources"),
        _("Live pages, feeds and search services of the knowledge base are searched too. Off: none is."),
        default=True,
        group=SOURCES,
        env="EXTERNAL_ENABLED",
    )
    external_top_k: int = setting(
        _("Results of each source"),
        _("How many results of each live or external source count."),
        default=10,
        group=SOURCES,
        between=(1, 50),
    )
    external_timeout_ms: int | None = setting(
        _("Time of each source"),
        _("Milliseconds after which the search goes on without a source that has no limit of its own."),
        default=3_000,
        group=SOURCES,
        between=(1, 60_000),
    )
    external_weight: float = setting(
        _("Weight of each source"),
        _("How much a live or external source counts in the fusion that has no weight of its own."),
        default=0.4,
        group=SOURCES,
        between=(0, 1000),
    )
    use_rerank: bool = setting(
        _("Rerank"),
        _("Off: the results of the vector channel are returned as they are, without the rest."),
        default=True,
        group=RERANKING,
    )
    rerankers: tuple[str, ...] = setting(
        _("Rerankers"),
        _(
            "Tried in this order until one answers: cross_encoder, http (a rerank server), overlap (of words), cosine; none: the fused order stays."
        ),
        default=RERANKERS,
        group=RERANKING,
    )
    rerank_candidates: int = setting(
        _("Candidates reranked"),
        _("How many of the fused candidates the reranker scores."),
        default=25,
        group=RERANKING,
        between=(1, 500),
    )
    rerank_top_k: int | None = setting(
        _("Kept by the reranker"),
        _("How many candidates the reranker keeps; auto: as many as Top K."),
        default=None,
        group=RERANKING,
        between=(1, 500),
    )
    score_threshold: float | None = setting(
        _("Relevance threshold"),
        _(
            "The minimum score of a result, on the scale of the first reranker; 0: no threshold; auto: the "
            "scale’s own threshold, below."
        ),
        default=None,
        group=GATE,
        between=(0, 1),
        env="",
    )
    similarity_threshold: float = setting(
        _("Threshold of cross-encoders"),
        _("The minimum score where a cross-encoder or a rerank server answered."),
        default=0.6,
        group=GATE,
        between=(0, 1),
        alias="MIN_RELEVANCE_SCORE",
    )
    cosine_threshold: float | None = setting(
        _("Threshold of cosine"),
        _("The minimum score where the cosine reranked; auto: no threshold."),
        default=None,
        group=GATE,
        between=(0, 1),
        env="",
    )
    overlap_threshold: float | None = setting(
        _("Threshold of word overlap"),
        _(
            "The minimum score where word overlap reranked; auto: the built-in one; the best below it are given "
            "apart, as near misses."
        ),
        default=None,
        group=GATE,
        between=(0, 1),
        env="",
    )
    top_k: int = setting(
        _("Top K"),
        _("How many results a search gives that does not ask for a number."),
        default=5,
        group=RESULTS,
        between=(1, 200),
    )
    general_retrieval: bool = setting(
        _("Select by score alone"),
        _("Off: each kind of source has a cap of its own, below."),
        default=True,
        group=RESULTS,
        env="GENERAL_RETRIEVAL_ENABLED",
    )
    general_final_count: int = setting(
        _("Max results"),
        _("The most results of a search that selects by score alone."),
        default=10,
        group=RESULTS,
        env="GENERAL_RETRIEVAL_FINAL_COUNT",
        between=(1, 500),
    )
    max_books: int = setting(
        _("From documents"),
        _("The most results from documents, where kinds of sources have caps."),
        default=5,
        group=RESULTS,
        between=(0, 200),
    )
    max_videos: int = setting(
        _("From videos"),
        _("The most results from videos, where kinds of sources have caps."),
        default=3,
        group=RESULTS,
        between=(0, 200),
    )
    max_qa: int = setting(
        _("From Q&A"),
        _("The most results from Q&A, where kinds of sources have caps."),
        default=5,
        group=RESULTS,
        between=(0, 200),
    )
    max_web: int = setting(
        _("From the web"),
        _("The most results from the web, where kinds of sources have caps."),
        default=3,
        group=RESULTS,
        between=(0, 200),
    )
    neighbours: int = setting(
        _("Neighbours"),
        _("How many chunks before and after each result come along with it."),
        default=0,
        group=RESULTS,
        between=(0, 10),
    )
    graph_facts: bool = setting(
        _("Graph facts"),
        _("Facts about what the query names come along, beside the results."),
        default=True,
        group=FACTS,
        env="GRAPH_FACTS_ENABLED",
    )
    max_graph_facts: int = setting(
        _("Max facts"),
        _("How many facts come along at most."),
        default=50,
        group=FACTS,
        between=(0, 500),
    )
    context_tokens: int = setting(
        _("Context, tokens"),
        _("How much of the results the chat model is given to answer from."),
        default=3_000,
        group=FACTS,
        between=(50, 1_000_000),
    )
    max_chunk_chars: int = setting(
        _("Characters per passage"),
        _("Longer passages are cut before the chat model gets them."),
        default=800,
        group=FACTS,
        between=(50, 100_000),
    )
    max_source_count: int = setting(
        _("Sources named"),
        _("How many sources an answer names in its last line at most."),
        default=3,
        group=FACTS,
        between=(1, 100),
    )

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidConfiguration(name, f"{name} is {value}: give a number from {low} to {high}")
        if self.vector_weight + self.keyword_weight == 0:
            raise InvalidConfiguration("keyword_weight", "both weights are 0: give at least one channel a weight")
        if self.hybrid_vector_weight + self.hybrid_text_weight == 0:
            raise InvalidConfiguration("hybrid_text_weight", "both weights are 0: give at least one channel a weight")
        if unknown := [name for name in self.rerankers if name not in RERANKERS]:
            raise InvalidConfiguration(
                "rerankers", f"there is no reranker {unknown[0]!r}: choose from {', '.join(RERANKERS)}"
            )
        if len(set(self.rerankers)) < len(self.rerankers):
            raise InvalidConfiguration("rerankers", "a reranker is named twice: name each once")

    @property
    def vector_candidates(self) -> int:
        return self.vector_top_k or max(self.candidate_floor, 3 * self.top_k)

    @property
    def bm25_candidates(self) -> int:
        return self.bm25_top_k or max(self.candidate_floor, 3 * self.top_k)

    def override(self, settings: Mapping[str, Any]) -> Self:
        """The same configuration with some fields replaced.

        Raises InvalidConfiguration where a field is unknown, of the wrong type or out of range.
        """
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
        }
        for name, value in values.items():
            if name not in SETTINGS:
                raise InvalidConfiguration(name, f"unknown setting {name!r}: choose from {', '.join(sorted(SETTINGS))}")
            if not _fits(value, SETTINGS[name].kind):
                raise InvalidConfiguration(name, f"{name} is {value!r}: expected {_names(SETTINGS[name].kind)}")
        return dataclasses.replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SETTINGS}

    def fingerprint(self) -> str:
        """A short digest that is equal exactly when all settings are."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:16]


def _fits(value: object, annotation: Any) -> bool:
    """Whether a value is of an annotated type; an integer serves as a float, a boolean never as a number."""
    if get_origin(annotation) is Literal:
        return value in get_args(annotation)
    if get_origin(annotation) is tuple:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    allowed = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return type(value) in allowed or (type(value) is int and float in allowed)


def _names(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(map(repr, get_args(annotation)))
    if get_origin(annotation) is tuple:
        return "a list of strings"
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return " or ".join("null" if kind is NoneType else kind.__name__ for kind in kinds)


SETTINGS = settings_of(RetrievalConfig, has_variables=True)
RANGES = tuple((name, declared.between) for name, declared in SETTINGS.items() if declared.between)
