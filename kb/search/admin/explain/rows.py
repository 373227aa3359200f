"""The candidates of an explained search and what each stage dropped, as rows of the search-debug page."""

import math
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _, gettext_lazy, ngettext_lazy

from kb.access.models import KnowledgeBase, Principal
from kb.base.text import web_address
from kb.content.models import GONE_SINCE, Chunk
from kb.search.admin.explain.scores import USUAL_DECIMALS, character_scores, keyword_scores
from kb.search.admin.labels import fusion_text, source_label, stage_explanation, stage_label
from kb.search.services.search import SearchOutcome, pictures_of
from kb.web.admin.fields import listed
from retrieval.config import RetrievalConfig
from retrieval.evidence import CHARACTERS
from retrieval.highlight import Segment, excerpt, highlight
from retrieval.protocols import Tokenizer
from retrieval.recall import RANKS_A_CANDIDATE
from retrieval.rerankers.chain import AGREEMENT_SHARE
from retrieval.selection import ORDER, RELEVANCE, ScoreScale, gated_stage, result_count, source_caps, stands_for_parent
from retrieval.types import STAGES, Candidate, CutBy, Dropped, Passage, Provenance, Relevance, Span, clock

LABELS = {
    CutBy.FUSION: gettext_lazy("Fusion"),
    CutBy.GATE: gettext_lazy("Relevance threshold"),
    CutBy.PARENT: gettext_lazy("Passage"),
    CutBy.PER_SOURCE: gettext_lazy("Kind of source"),
    CutBy.TOP_K: gettext_lazy("Top K"),
}


def why_cut(outcome: SearchOutcome, candidate: Candidate, place: int) -> str:
    """Why a candidate is no result, with the figures; blank where it is one.

    Its place is among those that neither the gate nor the caps of the kinds of sources have cut.
    """
    config, result = outcome.wiring.config, outcome.result
    match candidate.cut_by:
        case CutBy.FUSION:
            return _("Fused rank %(rank)d: only the first %(depth)d go on.") % {
                "rank": candidate.ranks["fused"],
                "depth": max(config.rerank_candidates, config.top_k),
            }
        case CutBy.GATE:
            message = _("Score %(score)s is below the threshold %(threshold)s.")
            if candidate.is_near_miss:
                message = _("Score %(score)s is below the threshold %(threshold)s: given apart, as a near miss.")
            return message % {
                "score": f"{candidate.scores[gated_stage(result)]:.4f}",
                "threshold": f"{result.threshold:g}",
            }
        case CutBy.PARENT:
            return _("Chunk %(id)d stands for the longer passage that both were cut from.") % {
                "id": stands_for_parent(result.candidates, candidate)
            }
        case CutBy.PER_SOURCE:
            kind, caps = candidate.passage.source_type if candidate.passage else "", source_caps(config)
            return _("The places for its kind of source, “%(kind)s”, are taken: %(count)d.") % {
                "kind": source_label(kind),
                "count": caps.get(kind, caps["book"]),
            }
        case CutBy.TOP_K:
            return _("Rank %(rank)d: only the first %(count)d become results.") % {
                "rank": place,
                "count": result_count(config),
            }
        case None:
            return ""


UP = ngettext_lazy(
    "up %(n)d place from rank %(rank)d in “%(stage)s”", "up %(n)d places from rank %(rank)d in “%(stage)s”", "n"
)
DOWN = ngettext_lazy(
    "down %(n)d place from rank %(rank)d in “%(stage)s”", "down %(n)d places from rank %(rank)d in “%(stage)s”", "n"
)
FINAL = "final"
# What comes after the channels, of every search; the order has the ranks of the relevance.
LATER = ("fused", RELEVANCE, ORDER)


def moves(candidate: Candidate, final_rank: int | None) -> dict[str, dict[str, Any]]:
    """How far each stage moved a candidate from the stage before it, up positive; `FINAL` is a result's last move."""
    channels = sorted((rank, stage) for stage, rank in candidate.ranks.items() if stage not in LATER)
    way = [(stage, rank) for rank, stage in channels[:1]]
    way += [(stage, candidate.ranks[stage]) for stage in LATER if stage in candidate.ranks]
    if final_rank is not None:
        way.append((FINAL, final_rank))
    return {stage: _move(before, rank_before, rank) for (before, rank_before), (stage, rank) in pairwise(way)}


def _move(before: str, rank_before: int, rank: int) -> dict[str, Any]:
    places = rank_before - rank
    known = {"n": abs(places), "rank": rank_before, "stage": stage_label("fusion" if before == "fused" else before)}
    moved = (UP if places > 0 else DOWN) if places else _("the same rank as in “%(stage)s”")
    return {"places": places, "distance": abs(places), "description": moved % known}


def cutters(outcome: SearchOutcome) -> dict[int, Tokenizer]:
    return {scope.kb_id: scope.tokenizer for scope in outcome.wiring.pipeline.scopes if scope.tokenizer}


def channels_asked(spans: Iterable[Span]) -> tuple[str, ...]:
    """The channels of a search in the order of the page: the standing ones, and the others that were asked."""
    spans = list(spans)
    asked = {span.stage for span in spans}
    named = dict.fromkeys(span.detail["channel"] for span in spans if "channel" in span.detail)
    usual = (each for each in STAGES if each not in LATER and (each in asked or each in ("vector", "bm25")))
    # Sources elsewhere share a stage, and each has a ranking of its own.
    return (*usual, *named)


EXCERPT_CHARACTERS = 200
ROWS_AT_FIRST = 25
ABSENT = "–"
NOTHING_IN_COMMON = {
    "bm25": gettext_lazy("holds none of the query's terms"),
    CHARACTERS: gettext_lazy("holds no word, pair or character of the query"),
}
# Enough to distinguish neighbours: neighbouring ranks differ by 0.00002 in their fused score.
DECIMALS = {"fused": 5}


def columns(outcome: SearchOutcome) -> list[dict[str, str]]:
    """The stages that rank candidates, with what their scores say: the channels asked, the fusion, and the reranker."""
    methods = {scope.config.fusion for scope in outcome.wiring.pipeline.scopes}
    by_method = {"rrf": _("rank, RRF"), "weighted": _("rank, sum")}
    notes = {"vector": _("rank, cosine"), "question": _("rank, cosine"), ORDER: _("score")}
    if len(methods) == 1:
        notes["fused"] = by_method[methods.pop()]
    return [
        {
            "label": stage_label(stage),
            "stage": stage,
            "note": notes.get(stage, _("rank, score")),
            "explanation": stage_explanation(stage),
        }
        for stage in (*channels_asked(outcome.result.spans), *LATER)
    ]


class Rows:
    """The candidates of one search in their final order.

    `number` counts them from 0, `rank` is a dash for what was cut, `missing` is empty where the keyword index has not answered, `url` is blank for what
    was found elsewhere without a web address.
    """

    def __init__(self, outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase]) -> None:
        self._result = outcome.result
        self._config: RetrievalConfig = outcome.wiring.config
        self._configs = {scope.kb_id: scope.config for scope in outcome.wiring.pipeline.scopes}
        self._bases = bases
        self._cutters = cutters(outcome)
        self._stages = [column["stage"] for column in columns(outcome)]
        self._answered = {
            (span.detail.get("channel", span.stage), span.detail["kb_id"])
            for span in self._result.spans
            if "kb_id" in span.detail and "found" in span.detail
        }
        self._has_lexicon = {kb_id for stage, kb_id in self._answered if stage == "bm25"}
        self._keyword_scores = keyword_scores(self._result)
        self._character_scores = character_scores(self._result)
        self._gated = gated_stage(self._result)
        self._gate = next(span.detail for span in self._result.spans if span.stage == "gate")
        self._outcome = outcome
        self._pictures = pictures_of(outcome)

    def all(self) -> list[dict[str, Any]]:
        # What the caps of the kinds of sources cut takes no place among the results.
        places = accumulate(int(candidate.cut_by in {None, CutBy.TOP_K}) for candidate in self._result.candidates)
        return [
            {
                **self._row(place, candidate, starts_hidden=number >= ROWS_AT_FIRST and not candidate.is_near_miss),
                "number": number,
            }
            for number, (place, candidate) in enumerate(zip(places, self._result.candidates, strict=True))
        ]

    def _row(self, place: int, candidate: Candidate, *, starts_hidden: bool) -> dict[str, Any]:
        passage = candidate.passage
        if passage is None:
            raise ValueError("rows are made from an explained search, which loads every passage")
        final = None if candidate.cut_by else place
        moved = moves(candidate, final)
        title = passage.title or passage.source or _("untitled")
        is_stored = passage.origin is None
        own = self._result.analysis.terms(candidate.kb_id) if candidate.kb_id in self._has_lexicon else ()
        text = self._mark(passage.text, candidate)
        short = tuple(excerpt(text, EXCERPT_CHARACTERS))
        return {
            "chunk_id": candidate.chunk_id,
            "kb_id": candidate.kb_id,
            "kb_name": self._bases[candidate.kb_id].name,
            "name": _("%(title)s, chunk %(number)d") % {"title": title, "number": passage.position + 1}
            if is_stored
            else title,
            "rank": str(final or ABSENT),
            "title": self._mark(title, candidate),
            "place": _place(passage),
            "headings": self._mark(" > ".join(passage.heading_path), candidate),
            "text": text,
            "excerpt": short,
            "is_shortened": text != short,
            "matched": candidate.matched_terms,
            "question": candidate.question,
            "missing": [term for term in own if term not in candidate.matched_terms],
            "keyword_score": self._keyword_scores.get(candidate.chunk_id),
            "character_score": self._character_scores.get(candidate.chunk_id),
            "cells": [self._cell(stage, candidate, moved.get(stage)) for stage in self._stages],
            "move": moved.get(FINAL),
            **self._gated_score(candidate),
            "is_near_miss": candidate.is_near_miss,
            "is_given": candidate.is_given,
            "cut_by": candidate.cut_by or "",
            "cut_label": str(LABELS[candidate.cut_by] if candidate.cut_by else ""),
            "cut_text": why_cut(self._outcome, candidate, place),
            "found_at": [self._found_at(each, candidate) for each in candidate.provenance],
            "doubles": len({each.chunk_id for each in candidate.provenance} - {candidate.chunk_id}),
            "neighbours": candidate.neighbours,
            "pictures": self._pictures.get(candidate.chunk_id, ()),
            "url": found_url(passage),
            "is_stored": is_stored,
            "is_gone": GONE_SINCE in passage.metadata,
            "starts_hidden": starts_hidden,
        }

    def _gated_score(self, candidate: Candidate) -> dict[str, Any]:
        """The score that meets the cut, as it is written, as it is and in per cent of 1, with what it says of the passage.

        `moves` is whether another cut could make it a result, or keep it from being one.
        """
        score = candidate.scores.get(self._gated)
        if score is None or self._result.score_scale == ScoreScale.RRF:
            return {"score": "", "exact_score": "", "share": "", "relevance": None, "moves": False}
        return {
            "score": f"{score:.2f}",
            "exact_score": f"{score:.6f}",
            "share": f"{100 * min(max(score, 0.0), 1.0):.0f}",
            "relevance": self._relevance(score),
            "moves": candidate.cut_by in {None, CutBy.GATE, CutBy.TOP_K},
        }

    def _relevance(self, score: float) -> Relevance | None:
        if "high" not in self._gate:
            return None
        if score >= self._gate["high"]:
            return Relevance.HIGH
        return Relevance.MEDIUM if score >= self._gate["medium"] else Relevance.LOW

    def _mark(self, text: str, candidate: Candidate) -> tuple[Segment, ...]:
        is_known = candidate.kb_id in self._has_lexicon
        terms = candidate.matched_terms if is_known else self._result.analysis.terms(candidate.kb_id)
        cutter = self._cutters.get(candidate.kb_id)
        if cutter is None:
            return (Segment(text, is_match=False),) if text else ()
        return tuple(highlight(text, terms, cutter))

    def _found_at(self, found: Provenance, candidate: Candidate) -> dict[str, Any]:
        is_double = found.chunk_id != candidate.chunk_id and found.chunk_id >= 0
        return {
            "channel": stage_label(found.channel),
            "kb_name": self._bases[found.kb_id].name,
            "query": self._result.analysis.queries[found.query].text if found.query else "",
            "rank": found.rank,
            "score": f"{found.score:.{USUAL_DECIMALS}f}",
            "double_id": found.chunk_id if is_double else None,
            "double_url": reverse("admin:kb_chunk_place", args=[found.chunk_id]) if is_double else "",
        }

    # -- Cells ---------------------------------------------------------------------------------------------------------
    def _cell(self, stage: str, candidate: Candidate, move: Mapping[str, Any] | None) -> dict[str, Any]:
        """Rank and score in one stage; the note says more, above all why there is none."""
        rank, score = candidate.ranks.get(stage), candidate.scores.get(stage)
        exact = "" if score is None else f"{score!r}"
        note = self._note(stage, candidate)
        return {
            "stage": stage,
            "label": stage_label(stage),
            "rank": "" if stage == ORDER else str(rank or ABSENT),
            "score": ABSENT if score is None else f"{score:.{DECIMALS.get(stage, USUAL_DECIMALS)}f}",
            "note": _("%(score)s: %(note)s") % {"score": exact, "note": note} if exact and note else exact or note,
            "move": move,
            "is_absent": rank is None and score is None,
        }

    def _note(self, stage: str, candidate: Candidate) -> str:
        if stage in LATER:
            return self._note_after_channels(stage, candidate)
        if stage not in candidate.ranks:
            return self._why_not_found(stage, candidate)
        if math.isnan(candidate.scores.get(stage, math.nan)):
            return _("the rank of a double in another knowledge base, whose score does not count here")
        return ""

    def _why_not_found(self, stage: str, candidate: Candidate) -> str:
        if (stage, candidate.kb_id) not in self._answered:
            return _("this channel did not answer")
        if ":" in stage or candidate.chunk_id < 0:
            # A source elsewhere knows no chunks, and no index here knows what was found there.
            return _("only what is elsewhere is ranked here") if ":" in stage else _("found elsewhere, so in no index")
        if stage != "vector" and not self._config.use_rerank:
            return _("without a reranker only the vector channel counts")
        if stage == CHARACTERS or (stage == "bm25" and not candidate.matched_terms):
            return str(NOTHING_IN_COMMON[stage])
        message = _("not among the first %(depth)d of this channel") % {
            "depth": RANKS_A_CANDIDATE * _depth(stage, self._configs[candidate.kb_id])
        }
        if stage in candidate.scores:
            return _("%(reason)s; scored exactly for the weighted sum") % {"reason": message}
        return message

    def _note_after_channels(self, stage: str, candidate: Candidate) -> str:
        if stage == "fused":
            return fusion_text(self._configs[candidate.kb_id])
        if stage not in candidate.scores:
            return self._why_not_reranked(candidate)
        share = AGREEMENT_SHARE.get(ScoreScale(self._result.score_scale), 0.0)
        if stage != ORDER or candidate.question or not share:
            return ""
        figures = {
            "relevance": f"{candidate.scores[RELEVANCE]:.{USUAL_DECIMALS}f}",
            "agreement": f"{candidate.agreement:.{USUAL_DECIMALS}f}",
            "own": f"{1 - share:g}",
            "share": f"{share:g}",
        }
        return _("%(own)s × relevance %(relevance)s + %(share)s × agreement %(agreement)s") % figures

    def _why_not_reranked(self, candidate: Candidate) -> str:
        if not self._config.use_rerank:
            return _("the reranker is off")
        is_cut = candidate.cut_by == CutBy.FUSION
        return _("not among the candidates that are reranked") if is_cut else _("no reranker could answer")


def found_url(passage: Passage) -> str:
    """Of the chunk, or the address of what was found elsewhere, where a browser may open it."""
    if passage.origin is None:
        return reverse("admin:kb_chunk_place", args=[passage.chunk_id])
    return web_address(passage.origin.url)


def _place(passage: Passage) -> tuple[str, ...]:
    if passage.origin is not None:
        origin = passage.origin
        place = _("from %(source)s, place %(rank)d") % {"source": origin.source, "rank": origin.rank}
        return tuple(filter(None, (place, origin.url, origin.published)))
    source = passage.source if passage.title else ""
    return tuple(filter(None, (source, page_label(passage), _("chunk %(number)d") % {"number": passage.position + 1})))


def page_label(passage: Passage) -> str:
    """The page that it is on, or the time at which a recording says it; blank where neither is known."""
    if passage.seconds is not None:
        return clock(passage.seconds)
    return _("page %(page)d") % {"page": passage.page} if passage.page else ""


MOST_LISTED = 100
# The stage of the page, where it is not what cut a candidate or dropped a chunk.
SHOWN_AT = {"parent": "selection", "per_source": "selection", "top_k": "selection", "vector_only": "fusion"}


def drops(outcome: SearchOutcome, rows: Iterable[Mapping[str, Any]], principal: Principal) -> dict[str, dict[str, Any]]:
    """What was dropped, by stage of the page, in at most one query: its count, and the first chunks, best first.

    Chunks that are no candidates show a title only where the principal may see them.
    """
    found: dict[str, list[Dropped | Mapping[str, Any]]] = {}
    for dropped in outcome.result.dropped:
        found.setdefault(SHOWN_AT.get(dropped.stage, dropped.stage), []).append(dropped)
    for row in rows:
        if row["cut_by"]:
            found.setdefault(SHOWN_AT.get(row["cut_by"], row["cut_by"]), []).append(row)
    early = [each.chunk_id for chunks in found.values() for each in chunks[:MOST_LISTED] if isinstance(each, Dropped)]
    named = Chunk.objects.visible_to(principal).filter(pk__in=early)
    titles = {
        pk: _("%(title)s, chunk %(number)d") % {"title": title or source or _("untitled"), "number": position + 1}
        for pk, title, source, position in named.values_list("pk", "document__title", "document__source", "position")
    }
    configs = {scope.kb_id: scope.config for scope in outcome.wiring.pipeline.scopes}

    def shown(dropped: Dropped | Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(dropped, Dropped):
            return {
                "chunk_id": dropped["chunk_id"],
                "title": dropped["name"],
                "url": f"#chunk-{dropped['chunk_id']}",
                "description": dropped["cut_text"],
            }
        title = titles.get(dropped.chunk_id)
        return {
            "chunk_id": dropped.chunk_id,
            "title": title or _("chunk %(number)d") % {"number": dropped.chunk_id},
            "url": reverse("admin:kb_chunk_place", args=[dropped.chunk_id]) if title else "",
            "description": _why_dropped(dropped, configs[dropped.kb_id]),
        }

    return {
        stage: {
            "count": len(chunks),
            "chunks": [shown(each) for each in chunks[:MOST_LISTED]],
            "unlisted": max(len(chunks) - MOST_LISTED, 0),
        }
        for stage, chunks in found.items()
    }


def _why_dropped(dropped: Dropped, config: RetrievalConfig) -> str:
    match dropped.stage:
        case "channels":
            places = (
                _("rank %(rank)d in “%(channel)s”, whose first %(depth)d go on")
                % {"rank": rank, "channel": stage_label(channel), "depth": _depth(channel, config)}
                for channel, rank in dropped.ranks.items()
            )
            return _("Too far back in every channel: %(places)s.") % {"places": listed(places)}
        case "dedupe":
            return _("Chunk %(id)d stands for its content.") % {"id": dropped.represented_by}
        case "vector_only":
            return _("Not found by vectors, which alone count without a reranker.")
    return _("It was deleted since the index was read, or you may not see it.")


def _depth(channel: str, config: RetrievalConfig) -> int:
    return config.vector_candidates if channel in {"vector", "question"} else config.bm25_candidates
