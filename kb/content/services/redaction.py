"""What the search log keeps of a search where the installation keeps queries out of it (SEARCH_LOG_QUERIES)."""

from collections.abc import Mapping
from typing import Any

WITHHELD = "withheld"
"""The key in a trace that says so."""

_KEPT = ("request", "configuration", "models", "scopes", "score_scale", "threshold", "results")
_KEPT_OF_CANDIDATE = ("chunk_id", "kb_id", "ranks", "scores", "cut_by", "provenance")
# Words of a stage's own; any other may be the query's. What is new in a trace is left out until it is named here.
_WORDS_OF_STAGE = frozenset(
    {"stage", "method", "reranker", "scale", "cache_tier", "model", "query_vector", "error", "language", "tokenizer"}
)


def without_query(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of the search log without the query, and without anything that was made of its words.

    What is left tells which settings were in force, which chunks were found, and how long it took. A degradation keeps its
    code and loses its sentence, which may quote a server that quotes the query.

    Args:
        entry: fields of SearchLog.
    """
    degraded = [{"stage": each["stage"], "code": each["code"], "detail": ""} for each in entry["degraded"]]
    return {**entry, "query": "", "history": [], "degraded": degraded, "trace": _trace(entry["trace"])}


def _trace(trace: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: trace[name] for name in _KEPT if name in trace},
        "terms": [],
        "spans": [_span(span) for span in trace["spans"]],
        "candidates": [
            {**{name: each[name] for name in _KEPT_OF_CANDIDATE if name in each}, "matched_terms": []}
            for each in trace["candidates"]
        ],
        WITHHELD: True,
    }


def _span(span: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in span.items() if name in _WORDS_OF_STAGE or _is_figures(value)}


def _is_figures(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_figures, value.values()))
    return value is None or isinstance(value, bool | int | float)
