"""What the page says of a chunk's way through a search."""

from dataclasses import dataclass

from django.utils.translation import gettext as _

from kb.quality.why_not.services.types import Place, PlaceState, Stage, State, Step, TermRow, Terms, WhyNot
from kb.quality.why_not.services.words import channel_in_words, sentence, stage_in_words, verdict_sentence
from kb.search.admin.degradations import degradation_heading
from retrieval.recall import RANKS_A_CANDIDATE

ABSENT = "–"
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
    words: str
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
        state_words: what its icon says.
        ranks: rank and score of the candidate by channel, where they have met.
    """

    stage: str
    label: str
    state: str
    state_words: str
    icon: str
    sentence: str
    places: tuple[ShownPlace, ...] = ()
    terms: ShownTerms | None = None
    ranks: tuple[tuple[str, str, str], ...] = ()
    gauge: tuple[str, str] | None = None
    is_unfolded: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """Everything that the page says of one chunk, apart from what can be done."""

    verdict: str
    state: str
    icon: str
    stages: tuple[ShownStage, ...]
    profile: str


def tell(why: WhyNot) -> Told:
    found = why.rank is not None
    return Told(
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
        label=stage_in_words(step.stage),
        state=str(step.state),
        state_words=state_in_words(step.state),
        icon=ICONS[step.state],
        sentence=sentence(step, why),
        places=tuple(_place(place, why) for place in why.places) if step.stage is Stage.CHANNELS else (),
        terms=_terms(why.terms) if step.stage is Stage.CHANNELS and why.terms else None,
        ranks=_ranks(why) if step.stage is Stage.FUSION and step.state is not State.NOT_ASKED else (),
        gauge=_gauge(step),
        is_unfolded=is_verdict or (step.stage is Stage.CHANNELS and why.rank is None),
    )


def state_in_words(state: State) -> str:
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
        label=channel_in_words(place.channel),
        query=queries[place.query].text if place.query else "",
        state=str(place.state),
        words=_place_in_words(place),
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


def _place_in_words(place: Place) -> str:
    if place.state is PlaceState.FAILED:
        return degradation_heading(place.error)
    return {
        PlaceState.CANDIDATE: _("among the candidates"),
        PlaceState.MISSED: _("near enough, and missed by the index")
        if place.is_indexed
        else _("near enough, and not returned: its vectors of text and keywords are searched apart"),
        PlaceState.DEEPER: _depth_in_words(place),
        PlaceState.ABSENT: _absence_in_words(place.channel),
        PlaceState.NOT_ASKED: _("not needed"),
    }[place.state]


def _depth_in_words(place: Place) -> str:
    if place.rank is not None and place.rank <= RANKS_A_CANDIDATE * place.depth:
        return _("read, and too far down to be a candidate by itself")
    return _("too far down: not read")


def _absence_in_words(channel: str) -> str:
    return {
        "vector": _("it has no vector that could be compared"),
        "question": _("it has no question"),
        "bm25": _("it holds no term of the query"),
        "fts": _("it holds no term of the query"),
        "lexical": _("it shares too few character n-grams with the query"),
    }.get(channel, "")


# -- Terms ---------------------------------------------------------------------------------------------------------------
def _terms(terms: Terms) -> ShownTerms:
    most = max((row.contribution for row in terms.rows), default=0.0) or 1.0
    asked = {row.term for row in terms.rows}
    return ShownTerms(
        rows=tuple(_term(row, terms.chunk_count, most) for row in terms.rows),
        chunk_terms=tuple((term, count, term in asked) for term, count in terms.chunk_terms),
        length=sum(count for _term_of_chunk, count in terms.chunk_terms),
        distinct=len(terms.chunk_terms),
    )


def _term(row: TermRow, chunk_count: int, most: float) -> ShownTerm:
    return ShownTerm(
        term=row.term,
        note=_note(row),
        idf=f"{row.idf:.3f}",
        in_chunks=_("%(count)s of %(all)s") % {"count": row.in_chunks, "all": chunk_count},
        in_chunk=row.in_chunk,
        contribution=f"{row.contribution:.4f}" if row.contribution else ABSENT,
        share=f"{100 * row.contribution / most:.1f}",
    )


def _note(row: TermRow) -> str:
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
        (_candidate_stage_in_words(stage), _number(candidate.ranks.get(stage)), _score(candidate.scores.get(stage)))
        for stage in CANDIDATE_STAGES
        if stage in candidate.ranks or stage in candidate.scores
    )


def _candidate_stage_in_words(stage: str) -> str:
    return {"fused": _("Fused"), "rerank": _("Rerank")}.get(stage) or channel_in_words(stage)


def _score(score: float | None) -> str:
    return ABSENT if score is None else f"{score:.5f}"


def _gauge(step: Step) -> tuple[str, str] | None:
    """Score and threshold in per cent of 1, for a bar."""
    score, threshold = step.figures.get("score"), step.figures.get("threshold")
    if step.stage is not Stage.GATE or step.state is State.NOT_ASKED or score is None or not threshold:
        return None
    return f"{100 * min(max(score, 0.0), 1.0):.1f}", f"{100 * min(threshold, 1.0):.1f}"
