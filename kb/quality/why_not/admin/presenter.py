"""What the page says of a chunk's way through a search, what would help it, and what a remedy has changed."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.core import signing
from django.urls import reverse
from django.utils.translation import gettext as _, gettext_noop

from kb.profiles.admin.choices import setting_label, value_text
from kb.quality.debug.admin.form import search_parameters
from kb.quality.why_not.services.places import Place, PlaceState, Remedy, RemedyCode, Stage, State, Step, Term, Terms
from kb.quality.why_not.services.remedies import changed_request, profile_in_force, remedies
from kb.quality.why_not.services.sentences import channel_text, filter_text, stage_text, verdict_sentence
from kb.quality.why_not.services.walk import WhyNot
from kb.search.admin.labels import degradation_heading
from kb.search.services.search import SearchRequest, request_as_json
from retrieval.recall import RANKS_A_CANDIDATE

SALT = "why-not"
ABSENT = "–"
EXACT = ("vector", "bm25", "question")
STAGES = ("fused", "rerank")


def why_not_url(request: SearchRequest, chunk_id: int | None, before: str = "") -> str:
    """The page, for a search as its form could ask for it; `before` is from `remembered`, to compare with."""
    given = search_parameters(request.knowledge_base_ids, request.query, request_as_json(request))
    given += [(name, value) for name, value in (("chunk", chunk_id), ("before", before)) if value]
    return f"{reverse('admin:why_not')}?{urlencode(given)}"


def remembered(why: WhyNot) -> str:
    """What the page after a remedy compares with, signed, so that a link cannot make it up."""
    return signing.dumps({"stage": str(why.verdict.stage), "places": _places(why)}, salt=SALT, compress=True)


def effect(token: str, why: WhyNot) -> dict[str, Any] | None:
    """The search before a remedy beside this one; None for a token that this installation has not made.

    `rows` holds for each figure its label, before, after, and whether it differs.
    """
    try:
        before: dict[str, Any] = signing.loads(token, salt=SALT)
    except signing.BadSignature:
        return None
    was, now = before["places"], _places(why)
    labels = {
        **{channel: _("%(channel)s, exact rank") % {"channel": channel_text(channel)} for channel in EXACT},
        "fused": _("Fused rank"),
        "rerank": _("Rank after the reranker"),
        "score": _("Score of the reranker"),
        "result": _("Place among the results"),
    }
    return {
        "before": _outcome(before["stage"]),
        "after": _outcome(str(why.verdict.stage)),
        "is_found_now": why.rank is not None,
        "rows": [
            (label, str(was.get(name, ABSENT)), str(now.get(name, ABSENT)), was.get(name) != now.get(name))
            for name, label in labels.items()
            if name in was or name in now
        ],
    }


def _places(why: WhyNot) -> dict[str, str]:
    """What there is to say of the chunk, by name: exact ranks in the channels, then its ranks as a candidate."""
    found: dict[str, str] = {}
    for place in why.places:
        if place.channel in EXACT and place.rank is not None:
            found[place.channel] = str(min(place.rank, int(found.get(place.channel, place.rank))))
    if why.candidate is not None:
        found |= {stage: str(rank) for stage, rank in why.candidate.ranks.items() if stage in STAGES}
        if "rerank" in why.candidate.scores:
            found["score"] = f"{why.candidate.scores['rerank']:.4f}"
    return found if why.rank is None else {**found, "result": str(why.rank)}


def _outcome(stage: str) -> str:
    return _("found") if stage == Stage.FOUND else _("lost at “%(stage)s”") % {"stage": stage_text(Stage(stage))}


STATES = {
    State.PASSED: ("check_circle", gettext_noop("passed")),
    State.WEAKENED: ("error", gettext_noop("passed, with less than it could have")),
    State.LOST: ("cancel", gettext_noop("lost here")),
    State.NOT_ASKED: ("radio_button_unchecked", gettext_noop("not asked")),
}
CANDIDATE_STAGES = ("vector", "bm25", "question", "fts", "lexical", "fused", "rerank")


def why_not_details(why: WhyNot) -> dict[str, Any]:
    found = why.rank is not None
    return {
        "verdict": verdict_sentence(why.verdict),
        "state": "found" if found else "lost",
        "icon": "task_alt" if found else "search_off",
        "stages": [_stage(step, why) for step in why.steps if step.stage is not Stage.FOUND],
        "profile": str(why.outcome.wiring.profile),
    }


def _stage(step: Step, why: WhyNot) -> dict[str, Any]:
    icon, text = STATES[step.state]
    shown: dict[str, Any] = {
        "stage": str(step.stage),
        "label": stage_text(step.stage),
        "state": str(step.state),
        "state_text": _(text),
        "icon": icon,
        "sentence": step.sentence,
        "is_unfolded": step == why.verdict or (step.stage is Stage.CHANNELS and why.rank is None),
    }
    if step.stage is Stage.CHANNELS:
        shown["places"] = [_place(place, why) for place in why.places]
        shown["terms"] = _terms(why.terms, why.chunk_count) if why.terms else None
    if step.stage is Stage.FUSION and step.state is not State.NOT_ASKED:
        shown["ranks"] = _ranks(why)
    score, threshold = step.figures.get("score"), step.figures.get("threshold")
    if score is not None and threshold:
        # In per cent of 1, for a bar.
        shown["gauge"] = (f"{100 * min(max(score, 0.0), 1.0):.1f}", f"{100 * min(threshold, 1.0):.1f}")
    return shown


# -- Channels ------------------------------------------------------------------------------------------------------------
def _place(place: Place, why: WhyNot) -> dict[str, Any]:
    return {
        "channel": place.channel,
        "label": channel_text(place.channel),
        "query": why.outcome.result.analysis.queries[place.query].text if place.query else "",
        "state": str(place.state),
        "description": _place_text(place),
        "rank": _("%(rank)s of %(total)s") % {"rank": place.rank, "total": place.total} if place.rank else ABSENT,
        "channel_rank": place.channel_rank or ABSENT,
        "depth": str(place.depth),
        "score": ABSENT if place.score is None else f"{place.score:.4f}",
    }


def _place_text(place: Place) -> str:
    if place.state is PlaceState.FAILED:
        return degradation_heading(place.error)
    if place.state is PlaceState.MISSED and place.is_indexed:
        return _("near enough, and missed by the index")
    if place.state is PlaceState.DEEPER and place.rank is not None and place.rank <= RANKS_A_CANDIDATE * place.depth:
        return _("read, and too far down to be a candidate by itself")
    absence = {
        "vector": _("it has no vector that could be compared"),
        "question": _("it has no question"),
        "bm25": _("it holds no term of the query"),
        "fts": _("it holds no term of the query"),
        "lexical": _("it shares too few character n-grams with the query"),
    }
    return {
        PlaceState.CANDIDATE: _("among the candidates"),
        PlaceState.MISSED: _("near enough, and not returned: its vectors of text and keywords are searched apart"),
        PlaceState.DEEPER: _("too far down: not read"),
        PlaceState.ABSENT: absence.get(place.channel, ""),
        PlaceState.NOT_ASKED: _("not needed"),
    }[place.state]


# -- Terms ---------------------------------------------------------------------------------------------------------------
def _terms(terms: Terms, chunk_count: int) -> dict[str, Any]:
    most = max((row.contribution for row in terms.query), default=0.0) or 1.0
    asked = {row.term for row in terms.query}
    rows = [
        {
            "term": row.term,
            "note": _note(row),
            "idf": f"{row.idf:.3f}",
            "in_chunks": _("%(count)s of %(all)s") % {"count": row.in_chunks, "all": chunk_count},
            "in_chunk": row.in_chunk,
            "contribution": f"{row.contribution:.4f}" if row.contribution else ABSENT,
            "share": f"{100 * row.contribution / most:.1f}",
        }
        for row in terms.query
    ]
    return {"rows": rows, "chunk_terms": [(each.term, each.count, each.term in asked) for each in terms.chunk]}


def _note(row: Term) -> str:
    is_missing = not row.is_written and not row.in_chunk
    notes = {
        _("%(count)s times in the query") % {"count": row.in_query}: row.in_query > 1,
        _("in another name of a concept"): row.is_other,
        _("its text holds it, cut into other words"): row.is_written,
        _("missing in this chunk"): is_missing and row.in_chunks,
        _("in no chunk at all"): is_missing and not row.in_chunks,
    }
    return " · ".join(note for note, applies in notes.items() if applies)


# -- Fusion and gate -----------------------------------------------------------------------------------------------------
def _ranks(why: WhyNot) -> list[tuple[str, str, str]]:
    if why.candidate is None:
        return []
    labels = {"fused": _("Fused"), "rerank": _("Rerank")}
    ranks, scores = why.candidate.ranks, why.candidate.scores
    return [
        (
            labels.get(stage) or channel_text(stage),
            str(ranks.get(stage, ABSENT)),
            f"{scores[stage]:.5f}" if stage in scores else ABSENT,
        )
        for stage in CANDIDATE_STAGES
        if stage in ranks or stage in scores
    ]


# What sets a worker to work on more than the chunk.
ASKS_FIRST = frozenset({RemedyCode.ADD_WORD, RemedyCode.RETRY_DOCUMENT})
READ_ONLY = frozenset({RemedyCode.CHANGE_REQUEST, RemedyCode.SHOW_DOUBLE, RemedyCode.RUN_COMMAND})


def shown_remedies(why: WhyNot, *, may_edit: bool) -> list[dict[str, Any]]:
    """The remedies that the caller may use; who may only read keeps the links and the commands.

    Each is a form with a button, a link where it has a `url`, or a `command` to copy; `input_label` is of the field that is
    sent with the form, which the first suggestion fills.
    """
    return [
        {
            "id": remedy.id,
            "command": remedy.command,
            "suggestions": remedy.suggestions,
            "value": next(iter(remedy.suggestions), ""),
            **_remedy_text(remedy, why),
        }
        for remedy in remedies(why)
        if may_edit or remedy.code in READ_ONLY
    ]


def _remedy_text(remedy: Remedy, why: WhyNot) -> dict[str, str]:
    if remedy.code is RemedyCode.DRAFT:
        return _draft(remedy, why)
    if remedy.code is RemedyCode.CHANGE_REQUEST:
        label = _("Search without the filter: %(filter)s") % {"filter": filter_text(remedy.about)}
        if remedy.about == "knowledge_base":
            label = _("Search “%(name)s” too") % {"name": why.chunk.knowledge_base.name}
        return {
            "icon": "filter_alt_off",
            "label": label,
            "hint": _("Changes nothing but this search."),
            "url": why_not_url(changed_request(why, remedy), why.chunk.pk, remembered(why)),
        }
    return {
        RemedyCode.SHOW_DOUBLE: {
            "icon": "content_copy",
            "label": _("Ask about chunk %(id)s") % {"id": remedy.chunk_id},
            "hint": _(
                "Of several chunks of the same content a search shows one. To change that, change or delete one of them."
            ),
            "url": why_not_url(why.request, remedy.chunk_id),
        },
        RemedyCode.ENABLE: {
            "icon": "toggle_on",
            "label": _("Switch the chunk on"),
            "hint": _("Searches find it again at once."),
        },
        RemedyCode.INDEX_CHUNK: {
            "icon": "refresh",
            "label": _("Index this chunk again"),
            "hint": _("Makes its terms and its vectors again, by the tokenizer and the model in use."),
        },
        RemedyCode.RETRY_DOCUMENT: {
            "icon": "restart_alt",
            "label": _("Index the document’s chunks again"),
            "hint": _(
                "A worker makes terms and vectors of all its chunks, as they are: run this again when it is done."
            ),
        },
        RemedyCode.ADD_WORD: {
            "icon": "dictionary",
            "label": _("Add to the dictionary"),
            "hint": _(
                "Query and chunk are both written with it, and cut into other words. In the dictionary it stays whole in both; a "
                "worker tokenises all chunks again, and searches use it when that is done."
            ),
            "input_label": _("Word"),
        },
        RemedyCode.ADD_QUESTION: {
            "icon": "contact_support",
            "label": _("Add the question"),
            "hint": _("The question gets a vector of its own: whoever asks alike finds this chunk."),
            "input_label": _("A question that this chunk answers"),
        },
        RemedyCode.RUN_COMMAND: {
            "icon": "terminal",
            "hint": _(
                "Run it on the server if other chunks of the knowledge base lack the same; searches go on meanwhile."
            ),
        },
    }[remedy.code]


def _draft(remedy: Remedy, why: WhyNot) -> dict[str, str]:
    config = why.outcome.wiring.config
    if why.verdict.stage is Stage.CHANNELS:
        scopes = why.outcome.wiring.pipeline.scopes
        config = next(scope.config for scope in scopes if scope.kb_id == why.chunk.knowledge_base_id)
    # What a setting comes to where it is left to the search.
    derived: Mapping[str, Any] = {
        "vector_top_k": config.vector_candidates,
        "bm25_top_k": config.bm25_candidates,
        "score_threshold": why.outcome.result.threshold,
        "overlap_threshold": why.outcome.result.threshold,
        "cosine_threshold": why.outcome.result.threshold,
        "rerank_top_k": config.top_k,
    }
    changes = ", ".join(
        _("%(setting)s: %(before)s → %(after)s")
        % {
            "setting": setting_label(name),
            "before": value_text(name, derived.get(name) if getattr(config, name) is None else getattr(config, name)),
            "after": value_text(name, value),
        }
        for name, value in remedy.settings.items()
    )
    return {
        "icon": "tune",
        "label": _("Try in a draft: %(changes)s") % {"changes": changes},
        "hint": _(
            "Saved as a draft of the profile “%(profile)s”, and the search runs again under it. Other searches change when it "
            "is published."
        )
        % {"profile": profile_in_force(why).name},
    }


def done_text(remedy: Remedy, text: str) -> str:
    return {
        RemedyCode.ENABLE: _("The chunk is switched on."),
        RemedyCode.INDEX_CHUNK: _("The chunk was indexed again."),
        RemedyCode.RETRY_DOCUMENT: _("The document waits for a worker: run this again when it is done."),
        RemedyCode.ADD_WORD: _(
            "“%(word)s” was added to the dictionary. A worker tokenises the chunks: run this again when it is done."
        )
        % {"word": text},
        RemedyCode.ADD_QUESTION: _("The question was added."),
        RemedyCode.DRAFT: _("The change was saved as a draft, and this search ran under it."),
    }.get(remedy.code, "")
