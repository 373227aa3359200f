"""Results of a search as Dify's records; its chats show titles and texts as Markdown, in which nothing is to load."""

from collections.abc import Mapping
from typing import Any

from retrieval.gate import ScoreScale
from retrieval.inert import inert

# What a document has that is first in one list of reciprocal ranks with k = 60, which is worth a half.
RRF_HALF = 1 / 61


def records_of(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records of a response of the search, in its order."""
    degraded = degradations_of(response)
    notes = {"trace_id": response["trace_id"], **({"degraded": degraded} if degraded else {})}
    return [_record(result, notes) for result in response["results"]]


def degradations_of(response: Mapping[str, Any]) -> list[str]:
    """Codes of what could not be done, each once."""
    return list(dict.fromkeys(each["code"] for each in response["degraded"]))


def unit_score(score: float, scale: str) -> float:
    """A score from 0 to 1, in the same order as those of its scale.

    The scales that a threshold applies to are from 0 to 1 as they are, but for cosines below 0, which are 0 here. Fused
    scores have no upper end: x / (x + 1/61) takes them there.
    """
    score = max(0.0, score)
    return score / (score + RRF_HALF) if scale == ScoreScale.RRF else min(1.0, score)


def _record(result: Mapping[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
    source, document_id = result["source"], result["document_id"]
    return {
        "content": inert(result["text"]),
        "score": unit_score(result["score"], result["score_scale"]),
        "title": inert(result["title"] or source),
        "metadata": {
            **result["metadata"],
            # What a live or external source has found is no document here; its address tells it from others.
            "document_id": str(document_id) if document_id is not None else f"external:{source}",
            "chunk_id": str(result["chunk_id"]) if result["chunk_id"] is not None else "",
            "knowledge_base_id": str(result["knowledge_base_id"]),
            "path": source,
            "source": source,
            "page": result["page"],
            "score_scale": result["score_scale"],
            **notes,
        },
    }
