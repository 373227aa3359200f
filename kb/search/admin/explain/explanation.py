"""Turns the outcome of an explained search into what the search-debug page shows."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from kb.access.models import KnowledgeBase, Principal
from kb.profiles.admin.choices import profile_state, profile_url
from kb.search.admin.explain.analysis import shown_analysis
from kb.search.admin.explain.bases import response_cache_text, searched_bases
from kb.search.admin.explain.rows import Rows, columns, drops, gated_stage
from kb.search.admin.labels import (
    CHANNELS,
    STAND_INS,
    degradation_heading,
    fusion_text,
    listed,
    milliseconds,
    notices,
    source_caps,
    source_label,
    stage_label,
    with_figure,
)
from kb.search.services.search import SearchOutcome, tier_that_answers, trace_as_json
from retrieval.config import RetrievalConfig
from retrieval.external import ExternalChannel
from retrieval.fusion import channel_weights
from retrieval.scope import Scope
from retrieval.trace import DegradationCode
from retrieval.types import Result

ORDER = (
    "analysis",
    "channels",
    "passages",
    "dedupe",
    "fusion",
    "rerank",
    "gate",
    "selection",
    "facts",
    "other",
)


def stages(outcome: SearchOutcome, drops: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    describe = _Description(outcome)

    def with_details(stage: Mapping[str, Any]) -> dict[str, Any]:
        name, lanes = stage["stage"], [with_details(lane) for lane in stage["lanes"]]
        return {**stage, "description": describe.of(name), "lanes": lanes, "drops": drops.get(name)}

    return [with_details(stage) for stage in stage_times(outcome.result.timings_ms)]


def stage_times(timings: Mapping[str, float]) -> list[dict[str, Any]]:
    """The parts of the total in order, each with its share in per cent.

    The channels ran side by side and count with the slowest; stand-ins ran after them. The channels are the lanes of their
    stage, with shares of the longest of them.
    """
    spent = {stage: timings[stage] for stage in ORDER if stage in timings}
    spent["channels"] = sum(
        max((timings.get(each, 0.0) for each in group), default=0.0) for group in (CHANNELS, STAND_INS)
    )
    spent["other"] = max(timings["total"] - sum(spent.values()), 0.0)
    searched = {stage: timings[stage] for stage in (*CHANNELS, *STAND_INS) if stage in timings}
    longest = max(searched.values(), default=0.0) or 1.0
    lanes = [_part(stage, time, longest) for stage, time in searched.items()]
    total = sum(spent.values()) or 1.0
    return [
        _part(stage, spent[stage], total, lanes if stage == "channels" else ()) for stage in ORDER if stage in spent
    ]


def _part(stage: str, time: float, whole: float, lanes: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    return {
        "stage": stage,
        "label": stage_label(stage),
        "milliseconds": milliseconds(time),
        "share": f"{100 * time / whole:.2f}",
        "lanes": lanes,
    }


class _Description:
    """What each stage of one search did; reads its spans."""

    def __init__(self, outcome: SearchOutcome) -> None:
        self._outcome = outcome
        self._result: Result = outcome.result
        self._config: RetrievalConfig = outcome.wiring.config
        self._details = {span.stage: span.detail for span in self._result.spans}

    def of(self, stage: str) -> tuple[str, ...]:
        if stage in {*CHANNELS, *STAND_INS}:
            return (self._channel(stage),)
        describe = {
            "analysis": self._analysis,
            "passages": self._passages,
            "dedupe": self._dedupe,
            "fusion": self._fusion,
            "rerank": self._rerank,
            "gate": self._gate,
            "selection": self._selection,
            "facts": self._facts,
        }.get(stage)
        return tuple(describe()) if describe and stage in self._details else ()

    def _channel(self, stage: str) -> str:
        runs = [span.detail for span in self._result.spans if span.stage == stage]
        if all("error" in run for run in runs):
            return _("did not answer")
        found = sum(run.get("found", 0) for run in runs)
        if len(runs) > 1:
            return _("%(count)d found in %(searches)d searches") % {"count": found, "searches": len(runs)}
        return ngettext("%(count)d found", "%(count)d found", found) % {"count": found}

    def _analysis(self) -> Iterable[str]:
        count = len(self._result.analysis.queries)
        if count > 1:
            yield ngettext("%(count)d query", "%(count)d queries", count) % {"count": count}
        terms = len(self._details["analysis"]["terms"])
        yield ngettext("%(count)d term", "%(count)d terms", terms) % {"count": terms}

    def _passages(self) -> Iterable[str]:
        count = self._details["passages"]["loaded"]
        yield ngettext("%(count)d passage read", "%(count)d passages read", count) % {"count": count}

    def _dedupe(self) -> Iterable[str]:
        count = self._details["dedupe"]["dropped"]
        if not count:
            yield _("no content twice")
            return
        yield ngettext(
            "%(count)d chunk of a content that another one stands for",
            "%(count)d chunks of a content that another one stands for",
            count,
        ) % {"count": count}

    def _fusion(self) -> Iterable[str]:
        scopes = self._outcome.wiring.pipeline.scopes
        yield " | ".join(dict.fromkeys(fusion_text(scope.config) for scope in scopes))
        yield " | ".join(dict.fromkeys(map(self._weights, scopes)))
        count = self._details["fusion"]["candidates"]
        yield ngettext("%(count)d candidate", "%(count)d candidates", count) % {"count": count}

    def _weights(self, scope: Scope) -> str:
        if not scope.config.use_rerank:
            return _("without a reranker only the vector channel counts")
        weights = channel_weights(scope.config)
        asked = [stage for stage in (*CHANNELS, *STAND_INS) if stage in self._details and stage in weights]
        named = [(stage_label(stage), weights[stage]) for stage in asked]
        named += [(each.source, each.weight) for each in scope.channels if isinstance(each, ExternalChannel)]
        return _("weights: %(weights)s") % {
            "weights": listed(with_figure(name, f"{weight:g}") for name, weight in named)
        }

    def _rerank(self) -> Iterable[str]:
        detail = self._details["rerank"]
        answered, passed_over = detail["reranker"], detail["passed_over"]
        present = {link.name for link in self._outcome.wiring.links}
        if answered:
            yield ngettext(
                "%(name)s scored %(count)d candidate", "%(name)s scored %(count)d candidates", detail["scored"]
            ) % {"name": reranker_label(answered), "count": detail["scored"]}
        else:
            yield _("no reranker could answer")
        for name in self._config.rerankers:
            if name in passed_over:
                yield _("%(name)s passed over: %(reason)s") % {
                    "name": reranker_label(name),
                    "reason": _reason(passed_over[name]),
                }
            elif name not in present:
                yield _("%(name)s: not configured") % {"name": reranker_label(name)}

    def _gate(self) -> Iterable[str]:
        detail = self._details["gate"]
        if not detail["threshold"]:
            yield _("open: no score is cut on the scale %(scale)s") % {"scale": detail["scale"]}
        else:
            yield _("cut %(cut)s on the scale %(scale)s") % {
                "cut": f"{detail['threshold']:g}",
                "scale": detail["scale"],
            }
        asked = self._config.score_threshold
        if any(each.code == DegradationCode.THRESHOLD_NOT_APPLIED for each in self._result.degraded):
            yield _("the scale’s default, in place of the threshold %(asked)s, which is meant for another scale") % {
                "asked": f"{asked:g}"
            }
        else:
            yield _("the scale’s default") if asked is None else _("as the settings ask")
        count = detail["passed"]
        yield ngettext("%(count)d passed", "%(count)d passed", count) % {"count": count}

    def _selection(self) -> Iterable[str]:
        detail, config = self._details["selection"], self._config
        yield ngettext("at most %(count)d result", "at most %(count)d results", detail["count"]) % {
            "count": detail["count"]
        }
        if not config.general_retrieval:
            yield listed(with_figure(source_label(kind), count) for kind, count in source_caps(config).items())
        if config.neighbours:
            yield ngettext(
                "with %(count)d neighbour on either side", "with %(count)d neighbours on either side", config.neighbours
            ) % {"count": config.neighbours}
        if count := detail.get("larger"):
            yield ngettext(
                "%(count)d gives the longer passage around it",
                "%(count)d give the longer passage around them",
                count,
            ) % {"count": count}

    def _facts(self) -> Iterable[str]:
        count = self._details["facts"]["found"]
        yield ngettext("%(count)d found", "%(count)d found", count) % {"count": count}


def reranker_label(name: str) -> str:
    return {
        "cross_encoder": _("Cross-encoder"),
        "http": _("HTTP reranker"),
        "cosine": _("Cosine"),
        "overlap": _("Overlap of terms"),
    }.get(name, name)


def _reason(reason: str) -> str:
    """Why a link of the chain was passed over: a degradation's code, or a sentence of the link's own."""
    if reason not in set(DegradationCode):
        return reason
    brief: Mapping[str, str] = {
        DegradationCode.RERANKER_FAILED: _("it failed"),
        DegradationCode.RERANKER_TIMEOUT: _("it was too slow"),
        DegradationCode.RERANKER_UNAVAILABLE: _("it cannot be had"),
        DegradationCode.MODEL_CIRCUIT_OPEN: _("it failed repeatedly and is left alone for a while"),
    }
    return brief.get(reason) or degradation_heading(reason)


COLUMNS_BESIDE_STAGES = 3  # rank, passage, cut by


def explain(outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase], principal: Principal) -> dict[str, Any]:
    """Everything that the page says about one search.

    Args:
        outcome: of a search with `explain`.
        bases: the searched knowledge bases by id, with their profile and `has_chunks`.
        principal: who searched.
    """
    result, wiring = outcome.result, outcome.wiring
    candidates, ranked = Rows(outcome, bases).all(), columns(outcome)
    tier = tier_that_answers(outcome)
    return {
        "results": [row for row in candidates if not row["cut_by"]],
        "cut": [row for row in candidates if row["cut_by"]],
        "candidate_count": len(candidates),
        "columns": ranked,
        "column_count": len(ranked) + COLUMNS_BESIDE_STAGES,
        "channels": ranked[:-2],
        "hidden": sum(row["starts_hidden"] for row in candidates),
        "empty_text": _why_empty(result, is_filtered=bool(outcome.request.filters)),
        "profile": str(wiring.profile),
        "profile_state": profile_state(wiring.profile),
        "profile_url": profile_url(wiring.profile),
        "scale": result.score_scale,
        "scale_text": scale_text(result.score_scale),
        "threshold": f"{result.threshold:g}",
        "total_ms": milliseconds(result.timings_ms["total"]),
        "stages": stages(outcome, drops(outcome, candidates, principal)),
        "analysis": shown_analysis(outcome, bases),
        "facts": [(fact, bases[fact.knowledge_base_id].name) for fact in result.facts],
        "bases": searched_bases(outcome, bases),
        "has_several_bases": len(wiring.pipeline.scopes) > 1,
        "response_tier": tier or "",
        "response_text": response_cache_text(tier),
        "notices": notices(result.degraded, wiring.pipeline.scopes, bases),
        "trace_id": str(outcome.trace_id),
        "trace_url": f"/api/v1/traces/{outcome.trace_id}/",
        "trace_json": json.dumps(trace_as_json(outcome), ensure_ascii=False, indent=2),
    }


def scale_text(scale: str) -> str:
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
