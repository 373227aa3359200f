"""Why was this chunk not found? The URL holds the search and the chunk, so it can be shared."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core import signing
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _, gettext_lazy, gettext_noop, ngettext

from kb.access.models import Principal
from kb.access.services.rate_limits import GENERAL
from kb.base.errors import NotVisible, Rejected, Superseded
from kb.content.models import Chunk
from kb.index.services.tokenizing import tokenizing_progress
from kb.ingest.services.corrections import checked_again
from kb.profiles.admin.choices import changes_text, profile_url
from kb.profiles.services import SettingDifference
from kb.quality.debug.admin.form import SearchPage, open_search_page, search_parameters, with_current
from kb.quality.debug.admin.judge import debug_url
from kb.quality.why_not.services.places import (
    Place,
    PlaceState,
    Remedy,
    RemedyCode,
    Stage,
    State,
    Step,
    Term,
    Terms,
    channel_text,
    effect_text,
    filter_text,
    find_chunks,
    stage_text,
    verdict_sentence,
)
from kb.quality.why_not.services.remedies import apply_remedy, changed_with, may_share, own_draft_name, remedies
from kb.quality.why_not.services.trials import changed_request, profile_in_force
from kb.quality.why_not.services.walk import WhyNot, why_not_found
from kb.search.admin.labels import degradation_heading, notices, stage_label
from kb.search.services.baseline import beyond_baseline
from kb.search.services.search import SearchRequest, request_as_json
from kb.web.admin.current import remember_knowledge_base
from kb.web.admin.fields import listed
from kb.web.admin.navigation import Section, add_tab
from kb.web.admin.scoped import reporting, row_id
from kb.web.admin.site import AdminPage, admin_page
from retrieval.errors import InvalidConfiguration, NoChannelAvailable
from retrieval.recall import RANKS_A_CANDIDATE
from retrieval.selection import RELEVANCE
from retrieval.types import STAGES

SALT = "why-not"
ABSENT = "–"
EXACT = ("vector", "bm25", "question", "question_bm25")


def why_not_url(request: SearchRequest, chunk_id: int | None, before: str = "") -> str:
    """The page, for a search as its form could ask for it; `before` is from `remembered`, to compare with."""
    given = search_parameters(request.knowledge_base_ids, request.query, request_as_json(request))
    given += [(name, value) for name, value in (("chunk", chunk_id), ("before", before)) if value]
    return f"{reverse('admin:why_not')}?{urlencode(given)}"


def remembered(why: WhyNot) -> str:
    """What the page after a remedy compares with, signed, so that a link cannot make it up."""
    return signing.dumps({"stage": str(why.verdict.stage), "places": _places(why)}, salt=SALT, compress=True)


def effect(token: str, why: WhyNot) -> dict[str, Any] | None:
    """The search before a remedy beside this one; None for a token that this installation has not made."""
    try:
        before: dict[str, Any] = signing.loads(token, salt=SALT)
    except signing.BadSignature:
        return None
    was, now = before["places"], _places(why)
    labels = {
        **{channel: _("%(channel)s, exact rank") % {"channel": channel_text(channel)} for channel in EXACT},
        "characters": _("Rank by characters"),
        "fused": _("Fused rank"),
        "rerank": _("Rank after the reranker"),
        "relevance": _("Relevance"),
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
        found |= {stage: str(rank) for stage, rank in why.candidate.ranks.items() if stage not in EXACT}
        if RELEVANCE in why.candidate.scores:
            found["relevance"] = f"{why.candidate.scores[RELEVANCE]:.4f}"
    return found if why.rank is None else {**found, "result": str(why.rank)}


def _outcome(stage: str) -> str:
    return _("found") if stage == Stage.FOUND else _("lost at “%(stage)s”") % {"stage": stage_text(Stage(stage))}


STATES = {
    State.PASSED: ("check_circle", gettext_noop("passed")),
    State.WEAKENED: ("error", gettext_noop("passed, with less than it could have")),
    State.LOST: ("cancel", gettext_noop("lost here")),
    State.NOT_ASKED: ("radio_button_unchecked", gettext_noop("not asked")),
}


def why_not_details(why: WhyNot) -> dict[str, Any]:
    state, icon = ("lost", "search_off") if why.rank is None else ("found", "task_alt")
    return {
        "verdict": verdict_sentence(why.verdict),
        "state": state,
        "icon": icon,
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
        "question_bm25": _("no question of it holds a term of the query"),
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


def _ranks(why: WhyNot) -> list[tuple[str, str, str]]:
    if why.candidate is None:
        return []
    ranks, scores = why.candidate.ranks, why.candidate.scores
    return [
        (
            stage_label(stage),
            str(ranks.get(stage, ABSENT)),
            f"{scores[stage]:.5f}" if stage in scores else ABSENT,
        )
        for stage in STAGES
        if stage in ranks or stage in scores
    ]


READ_ONLY = frozenset({RemedyCode.CHANGE_REQUEST, RemedyCode.SHOW_DOUBLE, RemedyCode.RUN_COMMAND})


def shown_remedies(why: WhyNot, *, may_edit: bool) -> list[dict[str, Any]]:
    """The remedies that the caller may use; who may only read keeps the links and the commands.

    Each is a form with a button, a link where it has a `url`, or a `command` to copy.
    """
    offered = [remedy for remedy in remedies(why) if may_edit or remedy.code in READ_ONLY]
    drafts = any(remedy.code is RemedyCode.DRAFT for remedy in offered)
    shared = shared_text(changed_with(why)) if drafts and may_share(why.principal, why) else ""
    return [
        {
            "id": remedy.id,
            "command": remedy.command,
            "suggestions": remedy.suggestions,
            "value": next(iter(remedy.suggestions), ""),
            "effect": effect_text(remedy),
            "becomes_result": remedy.effect is not None and remedy.effect.becomes_result,
            "shared": shared if remedy.code is RemedyCode.DRAFT else "",
            **_remedy_text(remedy, why),
        }
        for remedy in offered
    ]


def shared_text(names: Sequence[str]) -> str:
    """Whom a further version of a shared profile changes besides, once it is published."""
    if not names:
        return _("No other knowledge base searches by it now; others may choose it later.")
    message = ngettext(
        "Published, it changes %(count)d other knowledge base too: %(names)s.",
        "Published, it changes %(count)d other knowledge bases too: %(names)s.",
        len(names),
    )
    return message % {"count": len(names), "names": listed(names)}


def _remedy_text(remedy: Remedy, why: WhyNot) -> dict[str, str]:
    if remedy.code is RemedyCode.DRAFT:
        return _draft(remedy, why)
    if remedy.code is RemedyCode.CHANGE_REQUEST:
        failed = _(", ").join(map(filter_text, remedy.about.split("+")))
        label = _("Search without the filter: %(filter)s") % {"filter": failed}
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
            "hint": _("The question gets a vector of its own: similar questions will match this chunk."),
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
    profile = profile_in_force(why)
    # The channels search by the settings of their knowledge base, which its cut follows.
    is_of_scope = why.verdict.stage is Stage.CHANNELS and why.scope is not None
    config = why.scope.config if is_of_scope and why.scope else why.outcome.wiring.config
    # What a setting comes to where it is left to the search.
    derived: Mapping[str, Any] = {
        "vector_top_k": config.vector_candidates,
        "bm25_top_k": config.bm25_candidates,
        "score_threshold": why.outcome.result.threshold,
        "overlap_threshold": why.outcome.result.threshold,
        "cosine_threshold": why.outcome.result.threshold,
        "rerank_top_k": config.top_k,
    }
    given = {name: getattr(config, name) for name in remedy.settings}
    before = {name: derived.get(name) if value is None else value for name, value in given.items()}
    changes = (SettingDifference(name, before[name], value) for name, value in remedy.settings.items())
    return {
        "icon": "tune",
        "label": _("Try in a draft: %(changes)s") % {"changes": ", ".join(changes_text(changes))},
        "hint": _(
            "Saved as a draft of this knowledge base’s own profile “%(profile)s”, and the search runs again under it. Other "
            "searches change when it is published."
        )
        % {"profile": profile.name if profile.knowledge_base_id else own_draft_name(why)},
        "shared_name": profile.name,
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


@admin_page("why-not/", name="why_not")
class WhyNotView(AdminPage):
    template_name = "quality/why_not/page.html"
    rate_limit_kind = GENERAL

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        principal = Principal(request.user)
        # A chunk alone is looked for where it is.
        page = open_search_page(principal, request.GET if request.GET.get("chunk") else with_current(request))
        chunk_id = row_id(request.GET.get("chunk", ""))
        text = request.GET.get("text", "").strip()
        context: dict[str, Any] = {**page.context, "text": text, "chunk_problem": ""}
        status = 400 if page.form.is_bound and not page.form.is_valid() else 200
        if page.form.asks:
            if text and not chunk_id:
                found = find_chunks(principal, page.form.cleaned_data["kb"], text)
                choices = [(chunk, why_not_url(page.form.request(), chunk.pk)) for chunk in found.chunks]
                context |= {"found": found, "choices": choices}
                if len(choices) == 1 and not found.is_alike:
                    chunk_id = found.chunks[0].pk
            if chunk_id:
                status = self._explain(principal, page, chunk_id, context)
        elif chunk_id:
            context |= _chosen_chunk(principal, page, chunk_id)
        return self._render(page, context, status)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        """Applies a remedy to the search of the URL, and goes on to the search that shows its effect."""
        principal = Principal(request.user)
        page = open_search_page(principal, request.GET)
        chunk_id = row_id(request.GET.get("chunk", ""))
        if not page.form.asks or not chunk_id:
            raise Http404
        try:
            why = why_not_found(principal, page.form.request(), chunk_id)
        except (InvalidConfiguration, NoChannelAvailable):
            return HttpResponseRedirect(request.get_full_path())  # the page says what is wrong
        remedy = next((each for each in remedies(why) if each.id == request.POST.get("remedy")), None)
        if remedy is None:
            messages.warning(request, _("That is not needed any longer: nothing was changed."))
            return HttpResponseRedirect(why_not_url(why.request, chunk_id))
        sets_a_worker_to_work = remedy.code in (RemedyCode.ADD_WORD, RemedyCode.RETRY_DOCUMENT)
        if sets_a_worker_to_work and "confirmed" not in request.POST:
            return self._ask(page, why, remedy)
        return self._apply(principal, why, remedy)

    def _apply(self, principal: Principal, why: WhyNot, remedy: Remedy) -> HttpResponse:
        text = self.request.POST.get("text", "").strip()
        token = remembered(why)  # of the search as it is before
        with reporting(self.request, (Rejected, NotVisible, Superseded)):
            after = apply_remedy(principal, why, remedy, text, shared="shared" in self.request.POST)
            said = text or next(iter(remedy.suggestions), "")
            messages.success(self.request, done_text(remedy, said))
            if remedy.code in (RemedyCode.ENABLE, RemedyCode.INDEX_CHUNK, RemedyCode.ADD_QUESTION):  # in effect already
                for is_found, sentence in checked_again(principal, why.chunk, {why.request.query, said}):
                    (messages.success if is_found else messages.warning)(self.request, sentence)
            return HttpResponseRedirect(why_not_url(after, why.chunk.pk, token))
        return HttpResponseRedirect(why_not_url(why.request, why.chunk.pk))

    def _ask(self, page: SearchPage, why: WhyNot, remedy: Remedy) -> HttpResponse:
        """Before a worker is set to work on more than the chunk."""
        context = {
            **page.context,
            "remedy": remedy,
            "said": self.request.POST.get("text", "").strip() or next(iter(remedy.suggestions), ""),
            "chunk": why.chunk,
            "chunk_count": Chunk.objects.filter(knowledge_base=why.chunk.knowledge_base).count(),
            "back_url": why_not_url(why.request, why.chunk.pk),
        }
        self.template_name = "quality/why_not/confirm.html"
        return self._render(page, context, 200)

    def _explain(self, principal: Principal, page: SearchPage, chunk_id: int, context: dict[str, Any]) -> int:
        """Runs the search and puts what became of the chunk into the context; returns the HTTP status."""
        try:
            why = why_not_found(principal, page.form.request(), chunk_id)
        except InvalidConfiguration as error:
            page.form.reject(error)
            return 400
        except NotVisible as error:
            context["chunk_problem"] = str(error)
            return 404
        except NoChannelAvailable as error:
            context["outage"] = notices(error.degradations, (), page.bases)
            return 503
        # This very question, its chunk named by its id also where it was found by its text: a remedy needs one.
        again = {**dict(self.request.GET.lists()), "chunk": chunk_id}
        again.pop("text", None)
        kb = page.bases[why.chunk.knowledge_base_id]
        remember_knowledge_base(self.request, kb)
        may_edit = bool(getattr(kb, "may_edit", False))
        profile = why.outcome.wiring.profile
        context |= {
            "chunk": why.chunk,
            "chunk_url": reverse("admin:kb_chunk_place", args=[why.chunk.pk]),
            "details": why_not_details(why),
            "remedies": shown_remedies(why, may_edit=may_edit),
            "may_edit": may_edit,
            "effect": effect(self.request.GET.get("before", ""), why),
            "notices": notices(
                beyond_baseline(why.outcome.result.degraded, why.outcome.knowledge_bases),
                why.outcome.wiring.pipeline.scopes,
                page.bases,
            ),
            "draft": None if profile.published else profile,
            "draft_url": profile_url(profile),
            "progress": tokenizing_progress(kb),
            "again_url": f"{self.request.path}?{urlencode(again, doseq=True)}",
            "other_url": why_not_url(why.request, None),
            "debug_url": debug_url(why.request.knowledge_base_ids, why.request.query, request_as_json(why.request)),
        }
        return 200

    def _render(self, page: SearchPage, context: Mapping[str, Any], status: int) -> HttpResponse:
        context = {**context, "title": _("Why not found?"), "query_about": page.form["q"].value() or ""}
        return self.render_to_response(self.get_context_data(**context), status=status)


def _chosen_chunk(principal: Principal, page: SearchPage, chunk_id: int) -> dict[str, Any]:
    """A chunk that was chosen before there is a query; its knowledge base is then the one to search."""
    chunk = Chunk.objects.visible_to(principal).select_related("document", "knowledge_base").filter(pk=chunk_id).first()
    if chunk is None:
        return {"chunk_problem": _("There is no chunk with the id %(id)s: look for it by its text.") % {"id": chunk_id}}
    if not page.form.is_bound:
        page.form.initial["kb"] = [str(chunk.knowledge_base_id)]
    return {"chunk": chunk, "chunk_url": reverse("admin:kb_chunk_place", args=[chunk.pk])}


add_tab(Section.TEST, gettext_lazy("Why not found?"), "why_not", order=20, covers=("why_not_",))
