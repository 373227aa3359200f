"""Turns the outcome of an explained search into what the search-debug page shows."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _, gettext_lazy, ngettext_lazy

from kb.access.models import KnowledgeBase, Principal
from kb.base.messages import shown
from kb.index.admin import tokenizer_url
from kb.profiles.admin.choices import profile_state, profile_url
from kb.profiles.services import scorer_text
from kb.providers.endpoints import chat_endpoint
from kb.search.admin.explain.rows import LATER, Rows, channels_asked, columns, cutters, drops
from kb.search.admin.labels import (
    CHANNELS,
    STAND_INS,
    degradation_heading,
    fusion_text,
    milliseconds,
    notices,
    source_label,
    stage_label,
    with_figure,
)
from kb.search.services.baseline import beyond_baseline
from kb.search.services.search import SearchOutcome, tier_that_answers, trace_as_json
from kb.web.admin.fields import listed
from retrieval.analysis import MOST_NAMES_A_CONCEPT
from retrieval.config import RetrievalConfig
from retrieval.errors import DegradationCode
from retrieval.external import ExternalChannel
from retrieval.fusion import channel_weights
from retrieval.highlight import highlight
from retrieval.protocols import Fallback, Scope, Tokenizer
from retrieval.rerankers.overlap import COVERAGE_SHARE
from retrieval.selection import MOST_NEAR_MISSES, SETTING_OF_SCALE, ScoreScale, gated_stage, result_count, source_caps
from retrieval.types import STAGES, Analysis, CutBy, Result, Span

ORDER = (
    "analysis",
    "channels",
    "passages",
    "dedupe",
    "characters",
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


def weights_in_force(scope: Scope, spans: Iterable[Span]) -> dict[str, float]:
    answered = {span.stage for span in spans if span.detail.get("kb_id") == scope.kb_id and "found" in span.detail}
    return channel_weights(scope.config, answered)


class _Description:
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
            "characters": self._characters,
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
        return ngettext_lazy("%(count)d found", "%(count)d found", "count") % {"count": found}

    def _analysis(self) -> Iterable[str]:
        queries, terms = self._result.analysis.queries, self._details["analysis"]["terms"]
        if len(queries) > 1:
            yield ngettext_lazy("%(count)d query", "%(count)d queries", "count") % {"count": len(queries)}
        yield ngettext_lazy("%(count)d term", "%(count)d terms", "count") % {"count": len(terms)}

    def _passages(self) -> Iterable[str]:
        message = ngettext_lazy("%(count)d passage read", "%(count)d passages read", "count")
        yield message % {"count": self._details["passages"]["loaded"]}

    def _dedupe(self) -> Iterable[str]:
        message = ngettext_lazy(
            "%(count)d chunk of a content that another one stands for",
            "%(count)d chunks of a content that another one stands for",
            "count",
        )
        count = self._details["dedupe"]["dropped"]
        yield message % {"count": count} if count else _("no content twice")

    def _characters(self) -> Iterable[str]:
        found = sum(span.detail["found"] for span in self._result.spans if span.stage == "characters")
        message = ngettext_lazy(
            "%(count)d candidate scored by words, pairs and characters",
            "%(count)d candidates scored by words, pairs and characters",
            "count",
        )
        yield message % {"count": found}

    def _fusion(self) -> Iterable[str]:
        scopes = self._outcome.wiring.pipeline.scopes
        yield " | ".join(dict.fromkeys(fusion_text(scope.config) for scope in scopes))
        yield " | ".join(dict.fromkeys(map(self._weights, scopes)))
        candidates = ngettext_lazy("%(count)d candidate", "%(count)d candidates", "count")
        yield candidates % {"count": self._details["fusion"]["candidates"]}

    def _weights(self, scope: Scope) -> str:
        if not scope.config.use_rerank:
            return _("without a reranker only the vector channel counts")
        weights = weights_in_force(scope, self._result.spans)
        own = {span.stage for span in self._result.spans if span.detail.get("kb_id") == scope.kb_id}
        asked = [stage for stage in STAGES if stage in own and stage in weights]
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
            scored = ngettext_lazy(
                "%(name)s scored %(count)d candidate", "%(name)s scored %(count)d candidates", "count"
            )
            yield scored % {"name": capfirst(scorer_text(answered)), "count": detail["scored"]}
        else:
            yield _("no reranker could answer")
        for name in self._config.rerankers:
            if name in passed_over:
                # A degradation's code, or a sentence of the link's own
                reason = passed_over[name]
                known = RERANKER_FAULTS.get(reason) or (
                    degradation_heading(reason) if reason in set(DegradationCode) else shown(reason)
                )
                yield _("%(name)s passed over: %(reason)s") % {"name": capfirst(scorer_text(name)), "reason": known}
            elif name not in present:
                yield _("%(name)s: not configured") % {"name": capfirst(scorer_text(name))}

    def _gate(self) -> Iterable[str]:
        detail, asked = self._details["gate"], self._config.score_threshold
        cut = _("threshold %(cut)s on the scale %(scale)s")
        gate = cut if detail["threshold"] else _("no threshold on the scale %(scale)s")
        yield gate % {"cut": f"{detail['threshold']:g}", "scale": scorer_text(detail["scale"])}
        if any(each.code == DegradationCode.THRESHOLD_NOT_APPLIED for each in self._result.degraded):
            message = _("the scale’s default, in place of the threshold %(asked)s, which is meant for another scale")
            yield message % {"asked": f"{asked:g}"}
        else:
            of_scale = SETTING_OF_SCALE.get(detail["scale"])
            is_set = asked is not None or (of_scale is not None and getattr(self._config, of_scale) is not None)
            yield _("as the settings ask") if is_set else _("the scale’s default")
        yield ngettext_lazy("%(count)d passed", "%(count)d passed", "count") % {"count": detail["passed"]}
        if "high" in detail:
            borders = {name: f"{detail[name]:g}" for name in ("medium", "high")}
            yield _("relevance: medium from %(medium)s, high from %(high)s") % borders

    def _selection(self) -> Iterable[str]:
        detail, config = self._details["selection"], self._config
        yield ngettext_lazy("at most %(count)d result", "at most %(count)d results", "count") % detail
        if not config.general_retrieval:
            yield listed(with_figure(source_label(kind), count) for kind, count in source_caps(config).items())
        if config.neighbours:
            yield ngettext_lazy(
                "with %(count)d neighbour on either side", "with %(count)d neighbours on either side", "count"
            ) % {"count": config.neighbours}
        if count := detail.get("near_misses"):
            message = ngettext_lazy("%(count)d near miss given apart", "%(count)d near misses given apart", "count")
            yield message % {"count": count}
        if count := detail.get("larger"):
            yield ngettext_lazy(
                "%(count)d gives the longer passage around it", "%(count)d give the longer passage around them", "count"
            ) % {"count": count}

    def _facts(self) -> Iterable[str]:
        yield ngettext_lazy("%(count)d found", "%(count)d found", "count") % {"count": self._details["facts"]["found"]}


RERANKER_FAULTS = {
    DegradationCode.RERANKER_FAILED: gettext_lazy("it failed"),
    DegradationCode.RERANKER_TIMEOUT: gettext_lazy("it was too slow"),
    DegradationCode.RERANKER_UNAVAILABLE: gettext_lazy("it is unavailable"),
    DegradationCode.MODEL_CIRCUIT_OPEN: gettext_lazy("it failed repeatedly and is left alone for a while"),
}


# -- What the query was taken for ---------------------------------------------------------------------------------------
def shown_analysis(outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase]) -> dict[str, Any]:
    """What the query was taken for; `rewritten_by` is blank where the text is the user's own."""
    analysis = outcome.result.analysis
    is_rewritten = any("rewritten" in span.detail for span in outcome.result.spans if span.stage == "analysis")
    concepts = {
        concept.concept_id: {
            "name": concept.name,
            "mention": "" if concept.mention == concept.name else concept.mention,
            "names": concept.names[:MOST_NAMES_A_CONCEPT],
            "kb_name": bases[concept.kb_id].name,
            "url": reverse("admin:kb_concept_change", args=[concept.concept_id]),
        }
        for query in analysis.queries
        for concept in query.concepts
    }
    return {
        "text": analysis.text,
        "rewritten_by": chat.name if is_rewritten and (chat := chat_endpoint()) else "",
        "language": {"zh": _("Chinese"), "en": _("English")}.get(analysis.language, analysis.language),
        "intent": "" if analysis.intent == analysis.text else analysis.intent,
        "keywords": analysis.keywords,
        "concepts": list(concepts.values()),
        "sub_queries": [each.text for each in analysis.sub_queries],
        "terms": _terms(outcome.result, cutters(outcome)),
    }


def _terms(result: Result, tokenizers: Mapping[int, Tokenizer]) -> list[dict[str, Any]]:
    """The terms over all knowledge bases, each as the first one that has it makes it; those of other names come last.

    `origin` is the word of the query that a term was made from, where they differ.
    """
    held = {term for candidate in result.candidates for term in candidate.matched_terms}
    own: dict[str, dict[str, Any]] = {}
    other: dict[str, dict[str, Any]] = {}
    for kb_id, cutter in tokenizers.items():
        for term in result.analysis.terms(kb_id):
            if term not in own:
                words = [each.text for each in highlight(result.analysis.text, [term], cutter) if each.is_match]
                own[term] = {
                    "text": term,
                    "origin": words[0] if words and words[0].casefold() != term else "",
                    "is_found": term in held,
                    "note": "" if term in held else _("no candidate holds it"),
                }
        for term in result.analysis.search_tokens(kb_id):
            missing = _("in another name of a concept; no candidate holds it")
            note = _("in another name of a concept") if term in held else missing
            other[term] = {"text": term, "is_other": True, "is_found": term in held, "note": note}
    return [*own.values(), *(each for term, each in other.items() if term not in own)]


# -- Where it searched ---------------------------------------------------------------------------------------------------
LEAST_WAIT_SHOWN_MS = 1


def searched_bases(outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase]) -> list[dict[str, Any]]:
    """The knowledge bases in the order of the search, each with its settings in it and what its channels found."""
    named = outcome.wiring.profile if outcome.request.profile else None
    stages = channels_asked(outcome.result.spans)
    shown = []
    for scope in outcome.wiring.pipeline.scopes:
        kb = bases[scope.kb_id]
        spans = [span for span in outcome.result.spans if span.detail.get("kb_id") == kb.pk]
        keyword: Mapping[str, Any] = next((span.detail for span in spans if span.stage == "bm25"), {})
        tier = str(keyword.get("cache_tier", ""))
        shown.append(
            {
                "kb_id": kb.pk,
                "name": kb.name,
                "url": reverse("admin:kb_knowledgebase_change", args=[kb.pk]),
                "profile": str(named or kb.profile),
                "profile_url": profile_url(named or kb.profile),
                "model": scope.space,
                "fusion": fusion_text(scope.config),
                "channels": [_channel_run(stage, scope, spans, outcome.result.analysis) for stage in stages],
                "tier": tier,
                "tier_text": TIERS.get(tier, tier),
                "index_notes": list(index_notes(keyword)),
            }
        )
    return shown


def _channel_run(stage: str, scope: Scope, spans: Sequence[Span], analysis: Analysis) -> dict[str, Any]:
    """The searches of one channel, of the query and then of the sub-queries; none where it was not asked."""
    own = [span for span in spans if span.detail.get("channel", span.stage) == stage]
    notes = [*_why_fallback(stage, scope, spans)] if own else []
    details: Mapping[str, Any] = own[0].detail if own else {}
    if "keyword_share" in details:
        message = _("content and keyword vectors %(content)s / %(keywords)s")
        share = details["keyword_share"]
        notes.append(message % {"content": f"{1 - share:g}", "keywords": f"{share:g}"})
    searches = [
        {
            "query": analysis.queries[span.detail["query"]].text if span.detail.get("query") else "",
            "found": span.detail.get("found"),
            "milliseconds": milliseconds(span.milliseconds),
            "source": vector_source_text(str(span.detail.get("query_vector", ""))),
            "error": str(span.detail.get("error", "")),
            "error_text": degradation_heading(str(span.detail["error"])) if span.detail.get("error") else "",
        }
        for span in own
    ]
    weight = details.get("weight", weights_in_force(scope, spans).get(stage, 0))
    return {"stage": stage, "searches": searches, "weight": f"{weight:g}", "notes": notes}


def _why_fallback(stage: str, scope: Scope, spans: Sequence[Span]) -> Iterable[str]:
    """Why a stand-in was searched: a channel failed, or too little was found."""
    fallback: Fallback | None = next((each for each in scope.fallbacks if each.channel.name == stage), None)
    if fallback is None:
        return
    failed = [span.stage for span in spans if span.stage in fallback.failed and "error" in span.detail]
    for each in dict.fromkeys(failed):
        yield _("stood in: “%(channel)s” did not answer") % {"channel": stage_label(each)}
    if not failed:
        yield ngettext_lazy(
            "stood in: keywords found fewer than %(count)d chunk",
            "stood in: keywords found fewer than %(count)d chunks",
            "count",
        ) % {"count": fallback.below}


def vector_source_text(source: str) -> str:
    return {
        "memory": _("query vector from this process’s memory"),
        "shared": _("query vector from Redis"),
        "model": _("query vector from the model"),
    }.get(source, source)


def index_notes(keyword: Mapping[str, Any]) -> Iterator[str]:
    """How large the keyword index was, and what it took to have it, from the detail of the channel's span."""
    if (indexed := keyword.get("indexed_chunks")) is not None:
        yield ngettext_lazy("%(count)d chunk indexed", "%(count)d chunks indexed", "count") % {"count": indexed}
    if (allowed := keyword.get("allowed_chunks")) is not None:
        message = ngettext_lazy("the filters leave %(count)d chunk", "the filters leave %(count)d chunks", "count")
        yield message % {"count": allowed}
    if changed := keyword.get("changed_chunks"):
        yield ngettext_lazy(
            "%(count)d changed chunk read over the base", "%(count)d changed chunks read over the base", "count"
        ) % {"count": changed}
    if keyword.get("waited_ms", 0) >= LEAST_WAIT_SHOWN_MS:
        yield _("waited %(ms)s ms for it") % {"ms": milliseconds(keyword["waited_ms"])}


TIERS = {
    "": gettext_lazy("no index was used"),
    "process": gettext_lazy("from the memory of this process"),
    "redis": gettext_lazy("from Redis"),
    "database": gettext_lazy("from the database"),
    "build": gettext_lazy("built now from the stored postings"),
}


# Whether an app that asks the same is answered by a search; the debug page itself always searches.
RESPONSE_TIERS = {
    None: gettext_lazy("No response is kept: an app that asks the same now has a search of its own."),
    "memory": gettext_lazy("An app that asks the same now is answered from this process’s memory, without a search."),
    "shared": gettext_lazy("An app that asks the same now is answered from Redis, without a search."),
}


# -- The page -------------------------------------------------------------------------------------------------------------
COLUMNS_BESIDE_STAGES = 3  # rank, passage, cut by


def shown_results(outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase]) -> dict[str, Any]:
    """The results of a search with `explain`, what just missed them and the rest; the bases are by id, with their profile.

    The notices are of what these knowledge bases do not lack in every search.
    """
    result, wiring = outcome.result, outcome.wiring
    candidates = Rows(outcome, bases).all()
    unusual = beyond_baseline(result.degraded, outcome.knowledge_bases)
    return {
        "results": [row for row in candidates if not row["cut_by"]],
        "near_misses": [row for row in candidates if row["is_near_miss"]],
        "cut": [row for row in candidates if row["cut_by"] and not row["is_near_miss"]],
        "candidate_count": len(candidates),
        "empty_text": _why_empty(result, is_filtered=bool(outcome.request.filters)),
        "profile": str(wiring.profile),
        "profile_state": profile_state(wiring.profile),
        "is_draft": not wiring.profile.published and wiring.profile.published_at is None,
        "profile_url": profile_url(wiring.profile),
        "scale": result.score_scale,
        "scale_name": scorer_text(result.score_scale),
        "threshold": f"{result.threshold:g}",
        "has_cut": result.score_scale != ScoreScale.RRF and bool(candidates),
        "most_results": result_count(wiring.config),
        "most_near_misses": MOST_NEAR_MISSES,
        "total_ms": milliseconds(result.timings_ms["total"]),
        "has_several_bases": len(wiring.pipeline.scopes) > 1,
        "facts": [
            (
                fact,
                bases[fact.knowledge_base_id].name,
                fact.chunk_id and reverse("admin:kb_chunk_place", args=[fact.chunk_id]),
            )
            for fact in result.facts
        ],
        "tokenizing": [
            (scope.kb_id, bases[scope.kb_id].name, tokenizer_url(bases[scope.kb_id]))
            for scope in wiring.pipeline.scopes
            if bases[scope.kb_id].target_tokenizer_id
        ],
        "notices": notices(unusual, wiring.pipeline.scopes, bases),
        "trace_id": str(outcome.trace_id),
        "trace_url": f"/api/v1/traces/{outcome.trace_id}/",
    }


def explain(outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase], principal: Principal) -> dict[str, Any]:
    """The results, and everything that there is to say of how a search came by them."""
    found, result, ranked = shown_results(outcome, bases), outcome.result, columns(outcome)
    tier = tier_that_answers(outcome)
    candidates = [*found["results"], *found["near_misses"], *found["cut"]]
    return {
        **found,
        "columns": ranked,
        "column_count": len(ranked) + COLUMNS_BESIDE_STAGES,
        "channels": ranked[: -len(LATER)],
        "figures": [*((each["label"], each["explanation"]) for each in ranked), *_other_figures(result)],
        "hidden": sum(row["starts_hidden"] for row in candidates),
        "scale_text": SCALES.get(result.score_scale, result.score_scale),
        "stages": stages(outcome, drops(outcome, candidates, principal)),
        "analysis": shown_analysis(outcome, bases),
        "bases": searched_bases(outcome, bases),
        "response_tier": tier or "",
        "response_text": RESPONSE_TIERS[tier]
        if settings.CACHE_ENABLED
        else _("Switched off on this server: each request is searched again."),
        # All of them: the process is where one looks for what a search could not do.
        "notices": notices(result.degraded, outcome.wiring.pipeline.scopes, bases),
        "trace_json": json.dumps(trace_as_json(outcome), ensure_ascii=False, indent=2),
    }


SCALES = {
    "cross_encoder": gettext_lazy(
        "cross-encoder: how well a passage answers the query, as the model judges it, 0 to 1"
    ),
    "overlap": gettext_lazy(
        "word overlap: how much of the query's words and characters a chunk holds, and how often, 0 to 1"
    ),
    "cosine": gettext_lazy("cosine: similarity of the vectors, at most 1"),
    "rrf": gettext_lazy("RRF: a sum over ranks without a scale of its own, to which no threshold applies"),
}


def _other_figures(result: Result) -> Iterable[tuple[str, str]]:
    """What else the page says of a candidate than its scores, with the figures of this search."""
    gate = next(span.detail for span in result.spans if span.stage == "gate")
    if result.score_scale == ScoreScale.OVERLAP:
        shares = {"coverage": f"{COVERAGE_SHARE:g}", "saturation": f"{1 - COVERAGE_SHARE:g}"}
        yield (
            _("Coverage and saturation"),
            _(
                "The relevance on the scale “word overlap” is %(coverage)s × the share of the query’s telling words, pairs and characters, "
                "by their rarity, that the passage or the best of its questions holds, and %(saturation)s × the share that it has of "
                "the highest BM25 score that these could give."
            )
            % shares,
        )
        yield (
            _("Agreement"),
            _(
                "The fused score as a share of the best that the channels could have given: 1 where each of them puts the "
                "passage first."
            ),
        )
    if "high" in gate:
        yield (
            _("High, medium, low"),
            _(
                "What the relevance says: in this search %(high)s and more is high, %(medium)s and more medium, less is low."
            )
            % {name: f"{gate[name]:g}" for name in ("medium", "high")},
        )
    if result.near_misses:
        yield (
            _("Near miss"),
            _(
                "One of the best below a threshold that nobody has chosen for these documents: given apart from "
                "the results, and no answer is written from it."
            ),
        )


def _why_empty(result: Result, *, is_filtered: bool) -> str:
    if result.hits:
        return ""
    if not result.candidates and is_filtered:
        return _("No channel found anything that passes the filters: remove one of them, or check the spelling.")
    if not result.candidates:
        return _(
            "No channel found anything: check the spelling, the chosen knowledge bases and their documents' state."
        )
    message = _("All %(count)d candidates were dropped: their lines say at which stage.")
    if result.near_misses:
        message = _(
            "No passage reached the threshold %(threshold)s. Those that came closest stand below, as not certain."
        )
    elif any(candidate.cut_by == CutBy.GATE for candidate in result.candidates):
        message = _(
            "All %(count)d candidates were dropped. The best score is %(score)s, the threshold %(threshold)s: "
            "lower it to see what stands below."
        )
    gated = gated_stage(result)
    best = max(candidate.scores.get(gated, 0.0) for candidate in result.candidates)
    return message % {
        "count": len(result.candidates),
        "score": f"{best:.4f}",
        "threshold": f"{result.threshold:g}",
    }
