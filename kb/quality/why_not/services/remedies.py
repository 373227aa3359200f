"""What would help a chunk that a search has lost."""

import dataclasses
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from django.utils.translation import gettext as _
from typing_extensions import Doc

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import Rejected, not_editable
from kb.base.shapes import AS_TEXT
from kb.content.models import Chunk
from kb.index.filters import Filters
from kb.index.services.tokenizing import read_settings, tokenizer_change, tokenizer_settings
from kb.ingest.services.chunks import chunk_reindex, chunk_update
from kb.ingest.services.corrections import questions_add
from kb.ingest.services.documents import document_requeue
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import MAX_NAME_CHARACTERS, create_version, reference
from kb.quality.why_not.services.places import (
    STAGES,
    Place,
    PlaceState,
    Reason,
    Remedy,
    RemedyCode,
    Stage,
    State,
    Step,
    Terms,
    verdict_sentence,
)
from kb.quality.why_not.services.trials import Trials, changed_request, effect_of, overrides_under, profile_in_force
from kb.quality.why_not.services.walk import VECTOR_KINDS, WhyNot
from kb.search.services.search import SearchRequest, UsedProfile
from retrieval.config import RANGES, RetrievalConfig
from retrieval.errors import Degradation, DegradationCode
from retrieval.selection import CAPS, SETTING_OF_SCALE

MOST: Mapping[str, float] = {name: most for name, (_least, most) in RANGES}
# A threshold is lowered to a whole number of these.
SCORE_PARTS = 1_000
# Where a question of its own would bring a chunk forward.
ANSWERS_TO_A_QUESTION = frozenset({Stage.CHANNELS, Stage.FUSION, Stage.GATE, Stage.PER_SOURCE, Stage.TOP_K})


def remedies(why: WhyNot) -> tuple[Remedy, ...]:
    """What would help, each tried before: what makes the chunk a result first, then what brings it nearer.

    A remedy that changes nothing for the chunk is not among them; what could not be tried stands last, without effect.
    Nothing for a chunk that was found.
    """
    if why.verdict.stage is Stage.FOUND:
        return ()
    trials = Trials(why)
    proposed = (*_before_the_search(why, why.verdict), *_in_the_search(why, why.verdict), *_of_its_content(why))
    offered = (tried for remedy in proposed if (tried := _tried(trials, why, remedy)) is not None)
    return tuple(sorted(offered, key=_nearness))


def _tried(trials: Trials, why: WhyNot, remedy: Remedy) -> Remedy | None:
    """A remedy with its effect, or without one where it was not tried; None: it has none.

    Of several words the first that has one. A draft that leaves the chunk to the next cut is joined with what that
    needs, where both together make it a result: of its own it would be of little use.
    """
    if remedy.code is RemedyCode.ADD_WORD:
        each_word = (dataclasses.replace(remedy, suggestions=(word,)) for word in remedy.suggestions)
        return next((tried for word in each_word if (tried := _with_effect(why, word, trials.run(word)))), None)
    after = trials.run(remedy)
    if remedy.code is RemedyCode.DRAFT and after is not None and after.rank is None:
        for further in _in_the_search(after, after.verdict):
            about, settings = f"{remedy.about}+{further.about}", {**remedy.settings, **further.settings}
            both = Remedy(RemedyCode.DRAFT, about, settings=settings)
            found = trials.run(both) if further.code is RemedyCode.DRAFT else None
            if found is not None and found.rank is not None:
                return _with_effect(why, both, found)
    return _with_effect(why, remedy, after)


def _with_effect(why: WhyNot, remedy: Remedy, after: WhyNot | None) -> Remedy | None:
    if after is None:
        return remedy
    effect = effect_of(why, after)
    return None if effect is None else dataclasses.replace(remedy, effect=effect)


def _nearness(remedy: Remedy) -> tuple[int, int, int]:
    if remedy.effect is None:
        return (2, 0, 0)
    stage, rank = list(Stage).index(remedy.effect.stage), remedy.effect.rank_after or 0
    return (0 if remedy.effect.becomes_result else 1, -stage, rank)


def _of_its_content(why: WhyNot) -> Iterator[Remedy]:
    verdict = why.verdict
    if any(step.state is State.WEAKENED and step.stage in (Stage.POSTINGS, Stage.EMBEDDING) for step in why.steps):
        yield Remedy(RemedyCode.INDEX_CHUNK)
    if verdict.stage not in ANSWERS_TO_A_QUESTION or verdict.reason is Reason.BLANK_QUERY:
        return
    if why.terms is not None and why.terms.words:
        yield Remedy(RemedyCode.ADD_WORD, suggestions=why.terms.words)
    if why.request.query not in why.chunk.questions:
        yield Remedy(RemedyCode.ADD_QUESTION, suggestions=(why.request.query,))


# -- Before the search ---------------------------------------------------------------------------------------------------
def _before_the_search(why: WhyNot, verdict: Step) -> Iterator[Remedy]:
    match verdict.stage:
        case Stage.KNOWLEDGE_BASE:
            yield _search_otherwise(
                "knowledge_base", [*why.request.knowledge_base_ids, why.chunk.knowledge_base_id], why.request.filters
            )
        case Stage.DOCUMENT if verdict.reason is Reason.FAILED:
            yield Remedy(RemedyCode.RETRY_DOCUMENT)
        case Stage.ENABLED:
            yield Remedy(RemedyCode.ENABLE)
        case Stage.POSTINGS:
            yield Remedy(RemedyCode.INDEX_CHUNK)
            yield _reindex(why, "--bm25")
        case Stage.EMBEDDING:
            yield Remedy(RemedyCode.INDEX_CHUNK)
            yield _reindex(why, "--embeddings")
        case Stage.FILTERS:
            filters = why.request.filters or Filters()
            # All that it fails: without one of them it would fail the others.
            for name in verdict.figures["failed"]:
                field, _dot, key = name.partition(".")
                left: Any = tuple(each for each in filters.metadata if each.names[0] != key) if key else None
                filters = dataclasses.replace(filters, **{field: left})
            about = "+".join(verdict.figures["failed"])
            yield _search_otherwise(about, why.request.knowledge_base_ids, None if filters.is_empty else filters)


def _reindex(why: WhyNot, kind: str) -> Remedy:
    return Remedy(
        RemedyCode.RUN_COMMAND, command=f"manage.py reindex --kb {shlex.quote(why.chunk.knowledge_base.name)} {kind}"
    )


def _search_otherwise(about: str, kb_ids: Sequence[int], filters: Filters | None) -> Remedy:
    return Remedy(
        RemedyCode.CHANGE_REQUEST,
        about,
        request={"knowledge_base_ids": list(kb_ids), "filters": filters and filters.as_dict()},
    )


# -- The search ----------------------------------------------------------------------------------------------------------
def _in_the_search(why: WhyNot, verdict: Step) -> Iterator[Remedy]:
    figures = verdict.figures
    match verdict.stage:
        case Stage.CHANNELS:
            yield from _of_channels(why, verdict)
        case Stage.DEDUPE | Stage.PARENT:
            yield Remedy(RemedyCode.SHOW_DOUBLE, chunk_id=figures["chunk_id"])
        case Stage.FUSION if verdict.reason is Reason.VECTOR_ONLY:
            yield Remedy(RemedyCode.DRAFT, "use_rerank", settings={"use_rerank": True})
        case Stage.FUSION:
            yield from _draft("rerank_candidates", _rounded_up(figures["rank"]))
        case Stage.GATE:
            if setting := _threshold_setting(why):
                yield from _draft(setting, max(math.floor(figures["score"] * SCORE_PARTS) / SCORE_PARTS, 0.0))
        case Stage.PER_SOURCE:
            yield from _draft(CAPS.get(figures["kind"], CAPS["book"]), figures["place"])
        case Stage.TOP_K:
            if counts := _counts(why.outcome.wiring.config, figures["place"]):
                yield Remedy(RemedyCode.DRAFT, "top_k", settings=counts)


def _draft(setting: str, value: float) -> Iterator[Remedy]:
    """A draft in which one setting is changed, if it can be as high."""
    if value <= MOST[setting]:
        yield Remedy(RemedyCode.DRAFT, setting, settings={setting: value})


def _of_channels(why: WhyNot, verdict: Step) -> Iterator[Remedy]:
    """So many candidates that the chunk becomes one of them, where a channel has it further down."""
    errors = {place.error for place in why.places}
    if verdict.reason is Reason.CHANNEL_FAILED and DegradationCode.BM25_POSTINGS_OUTDATED in errors:
        yield _reindex(why, "--bm25")
    depths: dict[str, int] = {}
    for place in why.places:
        setting = "vector_top_k" if place.channel in VECTOR_KINDS else "bm25_top_k"
        wanted = {
            # An approximate index that is read four times as deep looks further around.
            PlaceState.MISSED: min(4 * place.depth, int(MOST[setting])),
            PlaceState.DEEPER: _rounded_up(place.rank or 0),
        }.get(place.state)
        if wanted is not None:
            depths[setting] = min(wanted, depths.get(setting, wanted))
    for setting, depth in sorted(depths.items(), key=lambda item: item[1]):
        yield from _draft(setting, depth)


def _threshold_setting(why: WhyNot) -> str | None:
    """The setting that the cut of a search came from; None on a scale that has none."""
    replaced = any(each.code is DegradationCode.THRESHOLD_NOT_APPLIED for each in why.outcome.result.degraded)
    if why.outcome.wiring.config.score_threshold is not None and not replaced:
        return "score_threshold"
    return SETTING_OF_SCALE.get(why.outcome.result.score_scale)


def _counts(config: RetrievalConfig, place: int) -> dict[str, int]:
    """The counts that are below a place; empty where no setting can be as high."""
    if place > MOST["rerank_top_k"]:
        return {}
    limits: dict[str, int | None] = {"rerank_top_k": config.rerank_top_k}
    if config.general_retrieval:
        limits["general_final_count"] = config.general_final_count
        if config.rerank_top_k is None:
            limits["top_k" if place <= MOST["top_k"] else "rerank_top_k"] = config.top_k
    return {setting: place for setting, limit in limits.items() if limit is not None and limit < place}


def _rounded_up(rank: int) -> int:
    return 5 * math.ceil(rank / 5)


def apply_remedy(
    principal: Principal, why: WhyNot, remedy: Remedy, text: str = "", *, shared: bool = False
) -> SearchRequest:
    """Does what a remedy of `why` says, and returns the search that shows the effect.

    A draft is one of the knowledge base's own unless the `shared` profile in force is to have it. A word for the dictionary and a document take effect when a worker is done; the rest at once. The text is the word
    or the question; blank: the first suggestion. Raises NotAllowed; Rejected where the text cannot be used, a model is
    out of reach, or there is nothing to do here; Superseded where the knowledge base moved to another model, and
    nothing was changed.
    """
    if remedy.code is RemedyCode.DRAFT:
        return _with_draft(principal, why, remedy, shared=shared)
    if remedy.code is RemedyCode.CHANGE_REQUEST:
        return changed_request(why, remedy)
    chunk = why.chunk
    _require_editable(principal, chunk)
    said = " ".join(text.split()) or next(iter(remedy.suggestions), "")
    match remedy.code:
        case RemedyCode.ENABLE:
            chunk_update(chunk, text=chunk.text, enabled=True)
        case RemedyCode.INDEX_CHUNK:
            chunk_reindex(chunk)
        case RemedyCode.RETRY_DOCUMENT:
            document_requeue(chunk.document, keep_chunks=True)
        case RemedyCode.ADD_QUESTION:
            questions_add(principal, chunk_id=chunk.pk, questions=[said])
        case RemedyCode.ADD_WORD:
            _add_word(chunk.knowledge_base, said)
        case _:
            raise Rejected("no_such_remedy", _("There is nothing to do here: follow its link, or run its command."))
    return why.request


def _require_editable(principal: Principal, chunk: Chunk) -> None:
    if not Chunk.objects.editable_by(principal).filter(pk=chunk.pk).exists():
        raise not_editable()


def _add_word(kb: KnowledgeBase, word: str) -> None:
    """Adds a word to the dictionary that the knowledge base has, or is moving to."""
    if not word:
        raise Rejected("blank_word", _("Write the word that is to be kept whole."))
    row = tokenizer_settings(kb)
    dictionary = "\n".join(part for part in (row.dictionary.rstrip(), word) if part)
    settings = read_settings(engine=row.engine, dictionary=dictionary, stop_words=row.stop_words, simplify=row.simplify)
    if not tokenizer_change(kb, settings):
        raise Rejected("word_known", _("“%(word)s” is in the dictionary already: nothing was changed."), word=word)


def own_draft_name(why: WhyNot) -> str:
    """The name of a profile of the chunk's knowledge base's own, for drafts over a shared one."""
    return f"{profile_in_force(why).name}-kb{why.chunk.knowledge_base_id}"[-MAX_NAME_CHARACTERS:]


def changed_with(why: WhyNot) -> list[str]:
    """The other knowledge bases that search by the shared profile in force, as far as who asked may see them."""
    profile = profile_in_force(why)
    rows = KnowledgeBase.objects.visible_to(why.principal).exclude(pk__in=why.request.knowledge_base_ids)
    named = rows.filter(profile__name=profile.name, profile__knowledge_base=None).order_by("name")
    return list(named.values_list("name", flat=True))


def may_share(principal: Principal, why: WhyNot) -> bool:
    """Whether a draft could be the next version of a shared profile, which the search ran under."""
    profile = profile_in_force(why)
    return profile.knowledge_base_id is None and bool(principal.user.is_superuser)


def _with_draft(principal: Principal, why: WhyNot, remedy: Remedy, *, shared: bool) -> SearchRequest:
    """Saves the change as a draft, and searches by it; it serves all knowledge bases of the search.

    The draft is the next version of the profile in force where that is the knowledge base's own or is to be changed for
    all, and is the caller's to change; else a version of one of the knowledge base's own. One with the same settings, from
    an earlier try, serves again.
    """
    profile, kb = profile_in_force(why), why.chunk.knowledge_base
    name, place = profile.name, profile.knowledge_base
    drafts = RetrievalProfile.objects.editable_by(principal)
    is_meant = shared or profile.knowledge_base_id is not None
    if not is_meant or not drafts.filter(pk=profile.pk).exists():
        _require_editable(principal, why.chunk)
        name, place = own_draft_name(why), kb
    settings = {**profile.settings, **remedy.settings}
    same = drafts.filter(name=name, knowledge_base=place, settings=settings, published_at=None)
    message = _("So that “%(query)s” finds chunk %(id)s.") % {"query": why.request.query, "id": why.chunk.pk}
    draft = same.order_by("-version").first() or create_version(
        principal, name, settings, description=message, knowledge_base=place, begun_with=profile
    )
    return dataclasses.replace(
        why.request,
        profile=reference(draft),
        profile_version=draft.version,
        own_profiles={},
        overrides=overrides_under(why, remedy),
    )


@dataclass(frozen=True, slots=True)
class WhyNotChunk:
    chunk_id: int
    document_id: int
    knowledge_base_id: int
    title: str
    source: str
    page: int | None
    text: str
    enabled: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    stage: Annotated[Stage, Doc(f"The first stage that lost the chunk, or `found`, where none has: {STAGES}."), AS_TEXT]
    reason: Reason | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyNotAnswer:
    """The response of POST /api/v1/why-not/."""

    query: str
    chunk: WhyNotChunk
    found: bool
    rank: int | None
    verdict: Verdict
    stages: tuple[Step, ...]
    places: tuple[Place, ...]
    terms: Terms | None
    remedies: tuple[Remedy, ...]
    profile: UsedProfile
    degraded: tuple[Degradation, ...]


def answer_of(why: WhyNot) -> WhyNotAnswer:
    result, verdict, chunk = why.outcome.result, why.verdict, why.chunk
    return WhyNotAnswer(
        query=result.query,
        chunk=WhyNotChunk(
            chunk_id=chunk.pk,
            document_id=chunk.document_id,
            knowledge_base_id=chunk.knowledge_base_id,
            title=chunk.document.title,
            source=chunk.document.source,
            page=chunk.page,
            text=chunk.text,
            enabled=chunk.enabled,
        ),
        found=why.rank is not None,
        rank=why.rank,
        verdict=Verdict(verdict.stage, verdict.reason, verdict_sentence(why.verdict)),
        stages=why.steps,
        places=why.places,
        terms=why.terms,
        remedies=remedies(why),
        profile=UsedProfile.of(why.outcome.wiring.profile),
        degraded=result.degraded,
    )
