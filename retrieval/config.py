import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Self, get_args

from retrieval.errors import InvalidConfiguration


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalConfig:
    """The settings of one search, resolved: environment, then profile, then the request's overrides.

    Attributes:
        top_k: number of results.
        vector_top_k: candidates of the vector channel; None: derived from `candidate_floor` and `top_k`.
        bm25_top_k: likewise for the keyword channel.
        candidate_floor: least number of candidates a channel, so that asking for more results does not reorder the first.
        rerank_candidates: how many fused candidates the reranker scores.
        rrf_k: the constant of reciprocal rank fusion.
        vector_weight: weight of the vector channel in the fusion.
        keyword_weight: weight of the keyword channel in the fusion.
        use_rerank: False returns the vector channel's results directly.
        score_threshold: cut of the gate on the reranker's scale; 0 switches it off, None is that scale's default.
    """

    top_k: int = 5
    vector_top_k: int | None = None
    bm25_top_k: int | None = None
    candidate_floor: int = 60
    rerank_candidates: int = 25
    rrf_k: int = 60
    vector_weight: float = 0.6
    keyword_weight: float = 0.4
    use_rerank: bool = True
    score_threshold: float | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("top_k", 1, 200),
            ("vector_top_k", 1, 2_000),
            ("bm25_top_k", 1, 2_000),
            ("candidate_floor", 1, 2_000),
            ("rerank_candidates", 1, 500),
            ("rrf_k", 1, 10_000),
            ("vector_weight", 0, 1_000),
            ("keyword_weight", 0, 1_000),
            ("score_threshold", 0, 1),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidConfiguration(name, f"{name} is {value}: give a number from {low} to {high}")
        if self.vector_weight + self.keyword_weight == 0:
            raise InvalidConfiguration("keyword_weight", "both weights are 0: give at least one channel a weight")

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
        for name, value in settings.items():
            if name not in fields:
                raise InvalidConfiguration(name, f"unknown setting {name!r}: choose from {', '.join(sorted(fields))}")
            if not _fits(value, fields[name].type):
                raise InvalidConfiguration(name, f"{name} is {value!r}: expected {_names(fields[name].type)}")
        return dataclasses.replace(self, **settings)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def fingerprint(self) -> str:
        """A short digest that is equal exactly when all settings are."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:16]


def _fits(value: object, annotation: Any) -> bool:
    """Whether a value is of an annotated type; an integer serves as a float, a boolean never as a number."""
    allowed = get_args(annotation) or (annotation,)
    return type(value) in allowed or (type(value) is int and float in allowed)


def _names(annotation: Any) -> str:
    return " or ".join("null" if kind is NoneType else kind.__name__ for kind in get_args(annotation) or (annotation,))
