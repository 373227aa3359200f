import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Self, get_args, get_origin

from retrieval.errors import InvalidConfiguration

Fusion = Literal["rrf", "weighted"]
Rewrite = Literal["off", "conversation", "always"]
# Cosine orders and gates worse than overlap: NDCG@10 .651 against .718 on scifact with MiniLM, AUROC .838 against .940 on
# xquad-en with half of its paragraphs removed.
RERANKERS = ("cross_encoder", "http", "overlap", "cosine")
RANGES: Mapping[str, tuple[int, int]] = {
    "top_k": (1, 200),
    "vector_top_k": (1, 2_000),
    "bm25_top_k": (1, 2_000),
    "candidate_floor": (1, 2_000),
    "vector_timeout_ms": (1, 60_000),
    "keyword_timeout_ms": (1, 60_000),
    "external_timeout_ms": (1, 60_000),
    "external_top_k": (1, 50),
    "rerank_candidates": (1, 500),
    "rerank_top_k": (1, 500),
    "rrf_k": (1, 10_000),
    "vector_weight": (0, 1_000),
    "keyword_weight": (0, 1_000),
    "question_weight": (0, 1_000),
    "external_weight": (0, 1_000),
    "hybrid_vector_weight": (0, 1_000),
    "hybrid_text_weight": (0, 1_000),
    "keyword_vector_share": (0, 1),
    "score_threshold": (0, 1),
    "similarity_threshold": (0, 1),
    "cosine_threshold": (0, 1),
    "overlap_threshold": (0, 1),
    "max_retrieval_queries": (1, 10),
    "general_final_count": (1, 500),
    "max_books": (0, 200),
    "max_videos": (0, 200),
    "max_qa": (0, 200),
    "max_web": (0, 200),
    "neighbours": (0, 10),
    "max_graph_facts": (0, 500),
    "max_chunk_chars": (50, 100_000),
    "max_source_count": (1, 100),
    "context_tokens": (50, 1_000_000),
}
"""The least and the greatest value of each setting that is a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalConfig:
    """The settings of one search, resolved: environment, then profile, then the request's overrides.

    Attributes:
        top_k: number of results.
        vector_top_k: candidates of the vector channel; None: derived from `candidate_floor` and `top_k`.
        bm25_top_k: likewise for the keyword channel.
        candidate_floor: least number of candidates a channel, so that asking for more results does not reorder the first.
        vector_timeout_ms: how long the channels of vectors may take; None: as long as the latency budget lasts.
        keyword_timeout_ms: likewise for those of keywords.
        external: whether the knowledge bases' live pages, feeds and search services are asked.
        external_top_k: how many results of each of them are candidates.
        external_timeout_ms: how long each of them may take, where it has no limit of its own.
        external_weight: weight of each of them in the fusion, where it has none of its own.
        enable_fts: PostgreSQL's full text serves where the keyword index cannot.
        lexical_fallback: character n-grams serve where keywords find next to nothing or the embedder is out.
        fusion: `rrf`, or `weighted` for a sum of min-max normalised scores.
        rrf_k: the constant of reciprocal rank fusion.
        vector_weight: weight of the vector channel in reciprocal rank fusion.
        keyword_weight: weight of the keyword channel in it.
        question_weight: weight of the question vectors in it.
        hybrid_vector_weight: weight of the vector channel in the weighted sum.
        hybrid_text_weight: weight of the keyword channel in the weighted sum.
        keyword_vector_share: share of a chunk's keyword vector in its similarity, where it has one.
        use_rerank: False returns the vector channel's results directly.
        rerankers: the chain: the first that is healthy answers.
        rerank_candidates: how many fused candidates the reranker scores.
        rerank_top_k: how many candidates leave the reranker; None: `top_k`.
        score_threshold: cut of the gate on the scale of the chain's first link; 0 switches the gate off, None is the
            default of the scale that answers.
        similarity_threshold: default cut of cross-encoders.
        cosine_threshold: default cut of cosines; None: the calibrated one.
        overlap_threshold: default cut of the overlap reranker; None: the calibrated one.
        rewrite: whether a language model rewrites the query: never, where there is a conversation to read it in, or always.
        max_retrieval_queries: how many queries are searched for, sub-queries included.
        general_retrieval: True selects by score alone, False with a cap for each kind of source.
        general_final_count: most results of a general search.
        max_books: most results from books where kinds are capped; likewise `max_videos`, `max_qa` and `max_web`.
        neighbours: how many chunks before and after a result come with it.
        graph_facts: facts of the graph come with the results.
        max_graph_facts: at most so many.
        max_chunk_chars: most characters of a fragment in a packed context.
        max_source_count: most sources that an answer names.
        context_tokens: size of a packed context.
    """

    top_k: int = 5
    vector_top_k: int | None = None
    bm25_top_k: int | None = None
    candidate_floor: int = 60
    vector_timeout_ms: int | None = None
    keyword_timeout_ms: int | None = None
    external: bool = True
    external_top_k: int = 10
    external_timeout_ms: int | None = 3_000
    external_weight: float = 0.4
    enable_fts: bool = True
    lexical_fallback: bool = True
    fusion: Fusion = "rrf"
    rrf_k: int = 60
    vector_weight: float = 0.6
    keyword_weight: float = 0.4
    question_weight: float = 0.4
    hybrid_vector_weight: float = 0.7
    hybrid_text_weight: float = 0.3
    keyword_vector_share: float = 0.5
    use_rerank: bool = True
    rerankers: tuple[str, ...] = RERANKERS
    rerank_candidates: int = 25
    rerank_top_k: int | None = None
    score_threshold: float | None = None
    similarity_threshold: float = 0.6
    cosine_threshold: float | None = None
    overlap_threshold: float | None = None
    rewrite: Rewrite = "conversation"
    max_retrieval_queries: int = 3
    general_retrieval: bool = True
    general_final_count: int = 10
    max_books: int = 5
    max_videos: int = 3
    max_qa: int = 5
    max_web: int = 3
    neighbours: int = 0
    graph_facts: bool = True
    max_graph_facts: int = 50
    max_chunk_chars: int = 800
    max_source_count: int = 3
    context_tokens: int = 3_000

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
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

        Raises:
            InvalidConfiguration: a field is unknown, of the wrong type or out of range.
        """
        fields = {field.name: field for field in dataclasses.fields(self)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
        }
        for name, value in values.items():
            if name not in fields:
                raise InvalidConfiguration(name, f"unknown setting {name!r}: choose from {', '.join(sorted(fields))}")
            if not _fits(value, fields[name].type):
                raise InvalidConfiguration(name, f"{name} is {value!r}: expected {_names(fields[name].type)}")
        return dataclasses.replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

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
