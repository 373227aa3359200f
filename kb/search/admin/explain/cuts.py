"""Which stage of an explained search cut a candidate, and why."""

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from kb.search.admin.stage_labels import source_caps, source_label
from kb.search.services.search import SearchOutcome
from retrieval.selection import result_count, stands_for_parent
from retrieval.types import Candidate, Result

_LABELS = {
    "fusion": gettext_lazy("Fusion"),
    "gate": gettext_lazy("Gate"),
    "parent": gettext_lazy("Passage"),
    "per_source": gettext_lazy("Kind of source"),
    "top_k": gettext_lazy("Top K"),
}


def cut_label(stage: str | None) -> str:
    return str(_LABELS.get(stage or "", stage or ""))


def gated_stage(result: Result) -> str:
    """The stage whose scores meet the threshold."""
    if any("rerank" in candidate.scores for candidate in result.candidates):
        return "rerank"
    return "vector" if result.score_scale == "cosine" else "fused"


def why_cut(outcome: SearchOutcome, candidate: Candidate, place: int) -> str:
    """Why a candidate is no result, with the figures; blank where it is one.

    Args:
        outcome: of the search.
        candidate: of its candidates.
        place: among those that are left after the gate and the caps of the kinds of sources, or were cut by neither.
    """
    config, result = outcome.wiring.config, outcome.result
    if candidate.cut_by == "fusion":
        depth = max(config.rerank_candidates, config.top_k)
        words = _("Fused rank %(rank)d: only the first %(depth)d go on.")
        return words % {"rank": candidate.ranks["fused"], "depth": depth}
    if candidate.cut_by == "gate":
        words = _("Score %(score)s is below the threshold %(threshold)s.")
        score = candidate.scores[gated_stage(result)]
        return words % {"score": f"{score:.4f}", "threshold": f"{result.threshold:g}"}
    if candidate.cut_by == "parent":
        words = _("Chunk %(id)d stands for the longer passage that both were cut from.")
        return words % {"id": stands_for_parent(result.candidates, candidate)}
    if candidate.cut_by == "per_source":
        kind = candidate.passage.source_type if candidate.passage else ""
        caps = source_caps(config)
        words = _("The places for its kind of source, “%(kind)s”, are taken: %(count)d.")
        return words % {"kind": source_label(kind), "count": caps.get(kind, caps["book"])}
    if candidate.cut_by == "top_k":
        words = _("Rank %(rank)d: only the first %(count)d become results.")
        return words % {"rank": place, "count": result_count(config)}
    return ""
