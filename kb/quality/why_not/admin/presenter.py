"""What the page says of a chunk's way through a search.

The URL of the page for a search and a chunk, and what it remembers of the search before a remedy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.core import signing
from django.http import QueryDict
from django.urls import reverse
from django.utils.translation import gettext as _

from kb.profiles.admin.choices import setting_label, value_text
from kb.quality.debug.admin.form import parameters_of
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
    WhyNot,
)
from kb.quality.why_not.services.remedies import changed_request, profile_in_force, remedies
from kb.quality.why_not.services.sentences import (
    channel_text,
    filter_text,
    stage_text,
    verdict_sentence,
)
from kb.search.admin.labels import degradation_heading
from kb.search.services.search import SearchRequest
from retrieval.config import RetrievalConfig
from retrieval.recall import RANKS_A_CANDIDATE

SALT = "why-not"
ABSENT = "–"
EXACT = ("vector", "bm25", "question")
STAGES = ("fused", "rerank")


def why_not_url(request: SearchRequest, chunk_id: int | None, before: str = "") -> str:
    """The page, for a search as its form could ask for it.

    Args:
        request: the search.
        chunk_id: the chunk; None: not chosen yet.
        before: from `remembered`, to compare with.
    """
    asked = {
        "overrides": request.overrides,
        "filters": None if request.filters is None else request.filters.as_dict(),
        "profile": request.profile,
        "profile_version": request.profile_version,
        "latency_budget_ms": request.latency_budget_ms,
    }
    query = QueryDict(mutable=True)
    query.setlist("kb", [str(kb_id) for kb_id in request.knowledge_base_ids])
    query["q"] = request.query
    query.update(parameters_of(asked))
    if chunk_id is not None:
        query["chunk"] = str(chunk_id)
    if before:
        query["before"] = before
    return f"{reverse('admin:why_not')}?{query.urlencode()}"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a remedy has changed: the verdicts, and a row for each figure (label, before, after, whether it differs)."""

    before: str
    after: str
    is_found_now: bool
    rows: tuple[tuple[str, str, str, bool], ...]


def remembered(why: WhyNot) -> str:
    """What the page after a remedy compares with, signed, so that a link cannot make it up."""
    return signing.dumps({"stage": str(why.verdict.stage), "places": _places(why)}, salt=SALT, compress=True)


def effect(token: str, why: WhyNot) -> Effect | None:
    """The search before a remedy beside this one; None for a token that this installation has not made."""
    try:
        before: dict[str, Any] = signing.loads(token, salt=SALT)
    except signing.BadSignature:
        return None
    was, now = before["places"], _places(why)
    labels = [*EXACT, *STAGES, "score", "result"]
    rows = [
        (_label(name), str(was.get(name, ABSENT)), str(now.get(name, ABSENT)), was.get(name) != now.get(name))
        for name in labels
        if name in was or name in now
    ]
    return Effect(_as_text(before["stage"]), _as_text(str(why.verdict.stage)), why.rank is not None, tuple(rows))


def _places(why: WhyNot) -> dict[str, str]:
    """What there is to say of the chunk, by name: exact ranks in the channels, then its ranks as a candidate."""
    found: dict[str, str] = {}
    for place in why.places:
        if place.channel in EXACT and place.rank is not None:
            best = found.get(place.channel)
            found[place.channel] = str(min(place.rank, int(best)) if best else place.rank)
    candidate = next((c for c in why.outcome.result.candidates if c.chunk_id == why.chunk.pk), None)
    if candidate is not None:
        found |= {stage: str(candidate.ranks[stage]) for stage in STAGES if stage in candidate.ranks}
        if "rerank" in candidate.scores:
            found["score"] = f"{candidate.scores['rerank']:.4f}"
    if why.rank is not None:
        found["result"] = str(why.rank)
    return found


def _label(name: str) -> str:
    if name in EXACT:
        return _("%(channel)s, exact rank") % {"channel": channel_text(name)}
    return {
        "fused": _("Fused rank"),
        "rerank": _("Rank after the reranker"),
        "score": _("Score of the reranker"),
        "result": _("Place among the results"),
    }[name]


def _as_text(stage: str) -> str:
    if stage == Stage.FOUND:
        return _("found")
    return _("lost at “%(stage)s”") % {"stage": stage_text(Stage(stage))}


ICONS = {
    State.PASSED: "check_circle",
    State.WEAKENED: "error",
    State.LOST: "cancel",
    State.NOT_ASKED: "radio_button_unchecked",
}
CANDIDATE_STAGES = ("vector", "bm25", "question", "fts", "lexical", "fused", "rerank")


@dataclass(frozen=True, slots=True)
class ShownPlace:
    """A row of the table of channels.

    Attributes:
        query: the sub-query; blank for the query itself.
    """

    channel: str
    label: str
    query: str
    state: str
    description: str
    rank: str
    channel_rank: str
    depth: str
    score: str


@dataclass(frozen=True, slots=True)
class ShownTerm:
    """A row of the table of terms.

    Attributes:
        share: of the largest contribution, in per cent, for a bar.
    """

    term: str
    note: str
    idf: str
    in_chunks: str
    in_chunk: int
    contribution: str
    share: str


@dataclass(frozen=True, slots=True)
class ShownTerms:
    """BM25 as a table, and the terms of the chunk with those of the query marked."""

    rows: tuple[ShownTerm, ...]
    chunk_terms: tuple[tuple[str, int, bool], ...]
    length: int
    distinct: int


@dataclass(frozen=True, slots=True)
class ShownStage:
    """A stage of the list.

    Attributes:
        state_text: what its icon says.
        ranks: rank and score of the candidate by channel, where they have met.
    """

    stage: str
    label: str
    state: str
    state_text: str
    icon: str
    sentence: str
    places: tuple[ShownPlace, ...] = ()
    terms: ShownTerms | None = None
    ranks: tuple[tuple[str, str, str], ...] = ()
    gauge: tuple[str, str] | None = None
    is_unfolded: bool = False


@dataclass(frozen=True, slots=True)
class WhyNotDetails:
    """Everything that the page says of one chunk, apart from what can be done."""

    verdict: str
    state: str
    icon: str
    stages: tuple[ShownStage, ...]
    profile: str


def why_not_details(why: WhyNot) -> WhyNotDetails:
    found = why.rank is not None
    return WhyNotDetails(
        verdict=verdict_sentence(why),
        state="found" if found else "lost",
        icon="task_alt" if found else "search_off",
        stages=tuple(_stage(step, why) for step in why.steps if step.stage is not Stage.FOUND),
        profile=str(why.outcome.wiring.profile),
    )


def _stage(step: Step, why: WhyNot) -> ShownStage:
    is_verdict = step == why.verdict
    return ShownStage(
        stage=str(step.stage),
        label=stage_text(step.stage),
        state=str(step.state),
        state_text=state_text(step.state),
        icon=ICONS[step.state],
        sentence=step.sentence,
        places=tuple(_place(place, why) for place in why.places) if step.stage is Stage.CHANNELS else (),
        terms=_terms(why.terms, why.chunk_count) if step.stage is Stage.CHANNELS and why.terms else None,
        ranks=_ranks(why) if step.stage is Stage.FUSION and step.state is not State.NOT_ASKED else (),
        gauge=_gauge(step),
        is_unfolded=is_verdict or (step.stage is Stage.CHANNELS and why.rank is None),
    )


def state_text(state: State) -> str:
    return {
        State.PASSED: _("passed"),
        State.WEAKENED: _("passed, with less than it could have"),
        State.LOST: _("lost here"),
        State.NOT_ASKED: _("not asked"),
    }[state]


# -- Channels ------------------------------------------------------------------------------------------------------------
def _place(place: Place, why: WhyNot) -> ShownPlace:
    queries = why.outcome.result.analysis.queries
    return ShownPlace(
        channel=place.channel,
        label=channel_text(place.channel),
        query=queries[place.query].text if place.query else "",
        state=str(place.state),
        description=_place_text(place),
        rank=_of(place.rank, place.total),
        channel_rank=_number(place.channel_rank),
        depth=str(place.depth),
        score=ABSENT if place.score is None else f"{place.score:.4f}",
    )


def _of(rank: int | None, total: int | None) -> str:
    if rank is None:
        return ABSENT
    return _("%(rank)s of %(total)s") % {"rank": rank, "total": total}


def _number(value: int | None) -> str:
    return ABSENT if value is None else str(value)


def _place_text(place: Place) -> str:
    if place.state is PlaceState.FAILED:
        return degradation_heading(place.error)
    return {
        PlaceState.CANDIDATE: _("among the candidates"),
        PlaceState.MISSED: _("near enough, and missed by the index")
        if place.is_indexed
        else _("near enough, and not returned: its vectors of text and keywords are searched apart"),
        PlaceState.DEEPER: _depth_text(place),
        PlaceState.ABSENT: _absence_text(place.channel),
        PlaceState.NOT_ASKED: _("not needed"),
    }[place.state]


def _depth_text(place: Place) -> str:
    if place.rank is not None and place.rank <= RANKS_A_CANDIDATE * place.depth:
        return _("read, and too far down to be a candidate by itself")
    return _("too far down: not read")


def _absence_text(channel: str) -> str:
    return {
        "vector": _("it has no vector that could be compared"),
        "question": _("it has no question"),
        "bm25": _("it holds no term of the query"),
        "fts": _("it holds no term of the query"),
        "lexical": _("it shares too few character n-grams with the query"),
    }.get(channel, "")


# -- Terms ---------------------------------------------------------------------------------------------------------------
def _terms(terms: Terms, chunk_count: int) -> ShownTerms:
    most = max((row.contribution for row in terms.query), default=0.0) or 1.0
    asked = {row.term for row in terms.query}
    return ShownTerms(
        rows=tuple(_term(row, chunk_count, most) for row in terms.query),
        chunk_terms=tuple((each.term, each.count, each.term in asked) for each in terms.chunk),
        length=sum(each.count for each in terms.chunk),
        distinct=len(terms.chunk),
    )


def _term(row: Term, chunk_count: int, most: float) -> ShownTerm:
    return ShownTerm(
        term=row.term,
        note=_note(row),
        idf=f"{row.idf:.3f}",
        in_chunks=_("%(count)s of %(all)s") % {"count": row.in_chunks, "all": chunk_count},
        in_chunk=row.in_chunk,
        contribution=f"{row.contribution:.4f}" if row.contribution else ABSENT,
        share=f"{100 * row.contribution / most:.1f}",
    )


def _note(row: Term) -> str:
    notes = []
    if row.in_query > 1:
        notes.append(_("%(count)s times in the query") % {"count": row.in_query})
    if row.is_other:
        notes.append(_("in another name of a concept"))
    if row.is_written:
        notes.append(_("its text holds it, cut into other words"))
    elif not row.in_chunk:
        notes.append(_("missing in this chunk") if row.in_chunks else _("in no chunk at all"))
    return " · ".join(notes)


# -- Fusion and gate -----------------------------------------------------------------------------------------------------
def _ranks(why: WhyNot) -> tuple[tuple[str, str, str], ...]:
    """Stage, rank and score of the candidate, as far as it came."""
    candidate = next((c for c in why.outcome.result.candidates if c.chunk_id == why.chunk.pk), None)
    if candidate is None:
        return ()
    return tuple(
        (_candidate_stage_text(stage), _number(candidate.ranks.get(stage)), _score(candidate.scores.get(stage)))
        for stage in CANDIDATE_STAGES
        if stage in candidate.ranks or stage in candidate.scores
    )


def _candidate_stage_text(stage: str) -> str:
    return {"fused": _("Fused"), "rerank": _("Rerank")}.get(stage) or channel_text(stage)


def _score(score: float | None) -> str:
    return ABSENT if score is None else f"{score:.5f}"


def _gauge(step: Step) -> tuple[str, str] | None:
    """Score and threshold in per cent of 1, for a bar."""
    score, threshold = step.figures.get("score"), step.figures.get("threshold")
    if step.stage is not Stage.GATE or step.state is State.NOT_ASKED or score is None or not threshold:
        return None
    return f"{100 * min(max(score, 0.0), 1.0):.1f}", f"{100 * min(threshold, 1.0):.1f}"


ASKS_FIRST = frozenset({RemedyCode.ADD_WORD, RemedyCode.RETRY_DOCUMENT})
"""What sets a worker to work on more than the chunk."""

READ_ONLY = frozenset({RemedyCode.CHANGE_REQUEST, RemedyCode.SHOW_DOUBLE, RemedyCode.RUN_COMMAND})


@dataclass(frozen=True, slots=True)
class ShownRemedy:
    """A remedy: a form with a button, a link, or a command to copy.

    Attributes:
        id: what the form sends.
        input_label: of the field that is sent with it; blank where there is none.
        suggestions: for that field; the first one stands in it.
    """

    id: str
    label: str
    hint: str
    icon: str
    url: str = ""
    command: str = ""
    input_label: str = ""
    suggestions: tuple[str, ...] = ()

    @property
    def value(self) -> str:
        return next(iter(self.suggestions), "")


def shown_remedies(why: WhyNot, *, may_edit: bool) -> tuple[ShownRemedy, ...]:
    """Those that the caller may use; who may only read keeps the links and the commands."""
    return tuple(_shown(remedy, why) for remedy in remedies(why) if may_edit or remedy.code in READ_ONLY)


def _shown(remedy: Remedy, why: WhyNot) -> ShownRemedy:
    why_not_details = {
        RemedyCode.ENABLE: _enable,
        RemedyCode.INDEX_CHUNK: _index_chunk,
        RemedyCode.RETRY_DOCUMENT: _retry_document,
        RemedyCode.ADD_WORD: _add_word,
        RemedyCode.ADD_QUESTION: _add_question,
        RemedyCode.DRAFT: _draft,
        RemedyCode.CHANGE_REQUEST: _change_request,
        RemedyCode.SHOW_DOUBLE: _show_double,
        RemedyCode.RUN_COMMAND: _run_command,
    }[remedy.code]
    return why_not_details(remedy, why)


def _enable(remedy: Remedy, _why: WhyNot) -> ShownRemedy:
    return ShownRemedy(remedy.id, _("Switch the chunk on"), _("Searches find it again at once."), "toggle_on")


def _index_chunk(remedy: Remedy, _why: WhyNot) -> ShownRemedy:
    hint = _("Makes its terms and its vectors again, by the tokenizer and the model in use.")
    return ShownRemedy(remedy.id, _("Index this chunk anew"), hint, "refresh")


def _retry_document(remedy: Remedy, _why: WhyNot) -> ShownRemedy:
    hint = _("A worker makes terms and vectors of all its chunks, as they are: run this again when it is done.")
    return ShownRemedy(remedy.id, _("Index the document’s chunks anew"), hint, "restart_alt")


def _add_word(remedy: Remedy, _why: WhyNot) -> ShownRemedy:
    hint = _(
        "Query and chunk are both written with it, and cut into other words. In the dictionary it stays whole in both; a "
        "worker tokenises all chunks anew, and searches use it when that is done."
    )
    return ShownRemedy(
        remedy.id,
        _("Add to the dictionary"),
        hint,
        "dictionary",
        input_label=_("Word"),
        suggestions=remedy.suggestions,
    )


def _add_question(remedy: Remedy, _why: WhyNot) -> ShownRemedy:
    hint = _("The question gets a vector of its own: whoever asks alike finds this chunk.")
    return ShownRemedy(
        remedy.id,
        _("Add the question"),
        hint,
        "contact_support",
        input_label=_("A question that this chunk answers"),
        suggestions=remedy.suggestions,
    )


def _draft(remedy: Remedy, why: WhyNot) -> ShownRemedy:
    scopes = why.outcome.wiring.pipeline.scopes
    own = next((scope.config for scope in scopes if scope.kb_id == why.chunk.knowledge_base_id), None)
    config = own if own and why.verdict.stage is Stage.CHANNELS else why.outcome.wiring.config
    changes = ", ".join(
        _("%(setting)s: %(before)s → %(after)s")
        % {
            "setting": setting_label(name),
            "before": value_text(name, _effective(config, name, why)),
            "after": value_text(name, value),
        }
        for name, value in remedy.settings.items()
    )
    hint = _(
        "Saved as a draft of the profile “%(profile)s”, and the search runs again under it. Other searches change when it "
        "is published."
    ) % {"profile": profile_in_force(why).name}
    return ShownRemedy(remedy.id, _("Try in a draft: %(changes)s") % {"changes": changes}, hint, "tune")


def _effective(config: RetrievalConfig, name: str, why: WhyNot) -> Any:
    """A setting's value, and what it comes to where it is left to the search."""
    derived: Mapping[str, Any] = {
        "vector_top_k": config.vector_candidates,
        "bm25_top_k": config.bm25_candidates,
        "score_threshold": why.outcome.result.threshold,
        "overlap_threshold": why.outcome.result.threshold,
        "cosine_threshold": why.outcome.result.threshold,
        "rerank_top_k": config.top_k,
    }
    value = getattr(config, name)
    return derived.get(name) if value is None else value


def _change_request(remedy: Remedy, why: WhyNot) -> ShownRemedy:
    if remedy.about == "knowledge_base":
        label = _("Search “%(name)s” too") % {"name": why.chunk.knowledge_base.name}
    else:
        label = _("Search without the filter: %(filter)s") % {"filter": filter_text(remedy.about)}
    url = why_not_url(changed_request(why, remedy), why.chunk.pk, remembered(why))
    return ShownRemedy(remedy.id, label, _("Changes nothing but this search."), "filter_alt_off", url=url)


def _show_double(remedy: Remedy, why: WhyNot) -> ShownRemedy:
    label = _("Ask about chunk %(id)s") % {"id": remedy.chunk_id}
    hint = _("Of several chunks of the same content a search shows one. To change that, change or delete one of them.")
    return ShownRemedy(remedy.id, label, hint, "content_copy", url=why_not_url(why.request, remedy.chunk_id))


def _run_command(remedy: Remedy, _why: WhyNot) -> ShownRemedy:
    hint = _("Run it on the server if other chunks of the knowledge base lack the same; searches go on meanwhile.")
    return ShownRemedy(remedy.id, "", hint, "terminal", command=remedy.command)


def done_text(remedy: Remedy, text: str) -> str:
    """What to say when a remedy was applied."""
    return {
        RemedyCode.ENABLE: _("The chunk is switched on."),
        RemedyCode.INDEX_CHUNK: _("The chunk was indexed anew."),
        RemedyCode.RETRY_DOCUMENT: _("The document waits for a worker: run this again when it is done."),
        RemedyCode.ADD_WORD: _(
            "“%(word)s” was added to the dictionary. A worker tokenises the chunks: run this again when it is done."
        )
        % {"word": text},
        RemedyCode.ADD_QUESTION: _("The question was added."),
        RemedyCode.DRAFT: _("The change was saved as a draft, and this search ran under it."),
    }.get(remedy.code, "")
