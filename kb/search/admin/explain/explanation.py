"""Turns the outcome of an explained search into what the search-debug page shows."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from django.utils.translation import gettext as _

from kb.access.models.accounts import Principal
from kb.access.models.knowledge import KnowledgeBase
from kb.profiles.admin.choices import profile_state, profile_url
from kb.search.admin.degradations import Notice, notices
from kb.search.admin.explain.analysis import ShownAnalysis, ShownFact, shown_analysis, shown_facts
from kb.search.admin.explain.bases import SearchedBase, response_cache_in_words, searched_bases
from kb.search.admin.explain.cuts import gated_stage
from kb.search.admin.explain.drops import drops
from kb.search.admin.explain.rows import Column, Row, columns, rows
from kb.search.admin.explain.stages import Stage, stages
from kb.search.admin.stage_labels import milliseconds
from kb.search.services.responses import kept_in
from kb.search.services.search import SearchOutcome, trace_as_json
from retrieval.types import Result

COLUMNS_BESIDE_STAGES = 3  # rank, passage, cut by


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that the page says about one search."""

    results: tuple[Row, ...]
    cut: tuple[Row, ...]
    columns: tuple[Column, ...]
    hidden: int
    empty_words: str
    profile: str
    profile_state: str
    profile_url: str
    scale: str
    scale_words: str
    threshold: str
    total_ms: str
    stages: tuple[Stage, ...]
    analysis: ShownAnalysis
    facts: tuple[ShownFact, ...]
    bases: tuple[SearchedBase, ...]
    response_tier: str
    response_words: str
    notices: tuple[Notice, ...]
    trace_id: str
    trace_url: str
    trace_json: str

    @property
    def candidate_count(self) -> int:
        return len(self.results) + len(self.cut)

    @property
    def column_count(self) -> int:
        return len(self.columns) + COLUMNS_BESIDE_STAGES

    @property
    def channels(self) -> tuple[Column, ...]:
        return self.columns[:-2]

    @property
    def has_several_bases(self) -> bool:
        return len(self.bases) > 1


def explain(outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase], principal: Principal) -> Explanation:
    """What the page shows of a search.

    Args:
        outcome: of a search with `explain`.
        bases: the searched knowledge bases by id, with their profile and `has_chunks`.
        principal: who searched.
    """
    result, wiring = outcome.result, outcome.wiring
    candidates = rows(outcome, bases)
    tier = kept_in(outcome)
    return Explanation(
        results=tuple(row for row in candidates if not row.cut_by),
        cut=tuple(row for row in candidates if row.cut_by),
        columns=columns(outcome),
        hidden=sum(row.starts_hidden for row in candidates),
        empty_words=_why_empty(result, is_filtered=bool(outcome.request.filters)),
        profile=str(wiring.profile),
        profile_state=profile_state(wiring.profile),
        profile_url=profile_url(wiring.profile),
        scale=result.score_scale,
        scale_words=scale_in_words(result.score_scale),
        threshold=f"{result.threshold:g}",
        total_ms=milliseconds(result.timings_ms["total"]),
        stages=stages(outcome, drops(outcome, candidates, principal)),
        analysis=shown_analysis(outcome, bases),
        facts=shown_facts(result, bases),
        bases=searched_bases(outcome, bases),
        response_tier=tier or "",
        response_words=response_cache_in_words(tier),
        notices=notices(result.degraded, wiring.pipeline.scopes, bases),
        trace_id=str(outcome.trace_id),
        trace_url=f"/api/v1/traces/{outcome.trace_id}/",
        trace_json=json.dumps(trace_as_json(outcome), ensure_ascii=False, indent=2),
    )


def scale_in_words(scale: str) -> str:
    return {
        "cross_encoder": _("cross-encoder: how well a passage answers the query, as the model judges it, 0 to 1"),
        "overlap": _(
            "overlap: how much of the query's words a chunk holds, and how often, joined with the agreement of the channels, "
            "0 to 1"
        ),
        "cosine": _("cosine: similarity of the vectors, at most 1"),
        "rrf": _("RRF: a sum over ranks without a scale of its own, which no threshold can cut"),
    }.get(scale, scale)


def _why_empty(result: Result, *, is_filtered: bool) -> str:
    """Why there is no result; blank when there is one."""
    if result.hits:
        return ""
    if result.candidates and not any(candidate.cut_by == "gate" for candidate in result.candidates):
        return _("All %(count)d candidates were cut: the last column says by which stage, and why.") % {
            "count": len(result.candidates)
        }
    if result.candidates:
        gated = gated_stage(result)
        best = max(candidate.scores.get(gated, 0.0) for candidate in result.candidates)
        return _(
            "All %(count)d candidates were cut. The best score is %(score)s, the threshold %(threshold)s: lower it to "
            "see what stands below."
        ) % {"count": len(result.candidates), "score": f"{best:.4f}", "threshold": f"{result.threshold:g}"}
    if is_filtered:
        return _("No channel found anything that passes the filters: remove one of them, or check the spelling.")
    return _("No channel found anything: check the spelling, the chosen knowledge bases and their documents' state.")
