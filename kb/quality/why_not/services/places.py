"""What became of a chunk at each stage of a search, and where it stands in each channel: as values and in sentences."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _, gettext_noop
from typing_extensions import Doc

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import NotVisible, Rejected
from kb.base.shapes import AS_TEXT
from kb.base.text import hash_content, storable
from kb.content.models import Chunk, Document
from kb.index.fulltext import PgTextStore
from kb.profiles.services import scorer_text


class Stage(StrEnum):
    """The stages in the order in which a chunk can be lost; `FOUND` comes after all of them."""

    KNOWLEDGE_BASE = "knowledge_base"
    DOCUMENT = "document"
    ENABLED = "enabled"
    POSTINGS = "postings"
    EMBEDDING = "embedding"
    FILTERS = "filters"
    CHANNELS = "channels"
    DEDUPE = "dedupe"
    FUSION = "fusion"
    RERANK = "rerank"
    GATE = "gate"
    PARENT = "parent"
    PER_SOURCE = "per_source"
    TOP_K = "top_k"
    FOUND = "found"


class State(StrEnum):
    """What became of the chunk at a stage; `WEAKENED`: it went on, with less than it could have."""

    PASSED = "passed"
    WEAKENED = "weakened"
    LOST = "lost"
    NOT_ASKED = "not_asked"


class Reason(StrEnum):
    NOT_SEARCHED = "not_searched"
    NOT_READY = "not_ready"
    FAILED = "failed"
    DISABLED = "disabled"
    NO_POSTINGS = "no_postings"
    NO_VECTOR = "no_vector"
    OTHER_MODEL = "other_model"
    FILTERED = "filtered"
    TOO_DEEP = "too_deep"
    MISSED_BY_INDEX = "missed_by_index"
    CHANNEL_FAILED = "channel_failed"
    NOTHING_IN_COMMON = "nothing_in_common"
    BLANK_QUERY = "blank_query"
    CHANGED_MEANWHILE = "changed_meanwhile"
    DOUBLE = "double"
    VECTOR_ONLY = "vector_only"
    BEYOND_CUT = "beyond_cut"
    RERANKER_OFF = "reranker_off"
    NO_RERANKER = "no_reranker"
    BELOW = "below"
    NEAR_MISS = "near_miss"
    GATE_OPEN = "gate_open"
    SAME_PARENT = "same_parent"
    NO_PARENT = "no_parent"
    CAP_FULL = "cap_full"
    NO_CAPS = "no_caps"
    TOO_MANY = "too_many"


# No enumerations: other answers have stages and states of their own, and two of one name would need names of their own.
STAGES = ", ".join(Stage)


@dataclass(frozen=True, slots=True)
class Step:
    stage: Annotated[Stage, Doc(f"In this order: {STAGES}."), AS_TEXT]
    state: Annotated[
        State,
        Doc(
            f"One of {', '.join(State)}. `weakened`: it went on, with less than it could have; `not_asked`: it was lost before."
        ),
        AS_TEXT,
    ]
    reason: Reason | None = None
    figures: Annotated[Mapping[str, Any], Doc("What the sentence is made of.")] = field(default_factory=dict)
    sentence: str = ""


class PlaceState(StrEnum):
    CANDIDATE = "candidate"
    DEEPER = "deeper"
    MISSED = "missed"
    ABSENT = "absent"
    FAILED = "failed"
    NOT_ASKED = "not_asked"


@dataclass(frozen=True, slots=True)
class Place:
    channel: str
    query: Annotated[int, Doc("0: the query itself; then its sub-queries.")]
    state: Annotated[PlaceState, Doc(f"One of {', '.join(PlaceState)}."), AS_TEXT]
    rank: Annotated[int | None, Doc("Exact, among all that the search may find, from 1.")] = None
    channel_rank: Annotated[int | None, Doc("As the channel gives it; an approximate index may miss the chunk.")] = None
    score: float | None = None
    total: int | None = None
    depth: Annotated[int, Doc("The first so many become candidates.")] = 0
    is_indexed: Annotated[bool, Doc("An approximate index answers the channel.")] = False
    error: Annotated[str, Doc("A code, where the channel has failed.")] = ""


@dataclass(frozen=True, slots=True)
class Term:
    """A query term and the chunk, as BM25 sees them."""

    term: str
    in_query: int
    is_other: Annotated[bool, Doc("It stands in another name of a concept, not in the query.")]
    idf: float
    in_chunks: int
    in_chunk: int
    contribution: float
    is_written: Annotated[bool, Doc("The chunk’s text holds it, cut into other terms.")]


@dataclass(frozen=True, slots=True)
class ChunkTerm:
    term: str
    count: int


@dataclass(frozen=True, slots=True)
class Terms:
    """BM25, term by term; those of the chunk in order of appearance."""

    query: tuple[Term, ...]
    missing: tuple[str, ...]
    chunk: tuple[ChunkTerm, ...]
    words: Annotated[tuple[str, ...], Doc("In the dictionary, they would be terms of query and chunk.")]


class RemedyCode(StrEnum):
    ENABLE = "enable"
    INDEX_CHUNK = "index_chunk"
    RETRY_DOCUMENT = "retry_document"
    ADD_WORD = "add_word"
    ADD_QUESTION = "add_question"
    DRAFT = "draft"
    CHANGE_REQUEST = "change_request"
    SHOW_DOUBLE = "show_double"
    RUN_COMMAND = "run_command"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a remedy would change for the chunk, found by searching as if it had been applied; nothing was written."""

    becomes_result: bool
    stage: Annotated[Stage, Doc(f"Where the chunk would be lost then, or `found`: {STAGES}."), AS_TEXT]
    rank_before: Annotated[int | None, Doc("Its place among the candidates, from 1; null: it is none.")]
    rank_after: Annotated[
        int | None, Doc("Among the results where it becomes one, else among the candidates; null: it is none.")
    ]
    sentence: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """What would help; `about` distinguishes it from other remedies with the same code."""

    code: RemedyCode
    about: str = ""
    settings: Annotated[Mapping[str, Any], Doc("For a draft of the profile, or the next search’s `overrides`.")] = (
        field(default_factory=dict)
    )
    suggestions: tuple[str, ...] = ()
    chunk_id: int | None = None
    command: str = ""
    request: Annotated[Mapping[str, Any] | None, Doc("What to search for instead.")] = None
    effect: Annotated[
        Effect | None, Doc("null: it was not tried; its effect is not known. One without effect is not offered.")
    ] = None

    @property
    def id(self) -> str:
        return f"{self.code}:{self.about}" if self.about else str(self.code)


def effect_text(remedy: Remedy) -> str:
    """What a remedy would change, or that it is not known; blank for a link, which changes nothing."""
    if remedy.effect is not None:
        return remedy.effect.sentence
    untried = _("Not tried beforehand: ask again when it is done to see what it has changed.")
    return "" if remedy.code is RemedyCode.SHOW_DOUBLE else untried


# By stage and state, then by reason where a stage has several.
SENTENCES: Mapping[tuple[Stage, State | Reason], str] = {
    (Stage.KNOWLEDGE_BASE, State.PASSED): gettext_noop("Its knowledge base “%(name)s” was searched."),
    (Stage.KNOWLEDGE_BASE, Reason.NOT_SEARCHED): gettext_noop("Its knowledge base “%(name)s” was not searched."),
    (Stage.DOCUMENT, State.PASSED): gettext_noop("Its document “%(title)s” is ready."),
    (Stage.DOCUMENT, State.WEAKENED): gettext_noop(
        "Its document “%(title)s” is not ready; what was indexed of it before is still searched."
    ),
    (Stage.DOCUMENT, Reason.NOT_READY): gettext_noop(
        "Its document “%(title)s” is not processed yet, so the chunk is in no index."
    ),
    (Stage.DOCUMENT, Reason.FAILED): gettext_noop(
        "Its document “%(title)s” could not be processed, so the chunk is in no index."
    ),
    (Stage.ENABLED, State.PASSED): gettext_noop("It is switched on."),
    (Stage.ENABLED, Reason.DISABLED): gettext_noop("It is switched off, so no search finds it."),
    (Stage.POSTINGS, State.PASSED): gettext_noop("Its terms are in the keyword index."),
    (Stage.POSTINGS, Reason.NO_POSTINGS): gettext_noop(
        "It has no terms of the tokenizer in use, so keywords cannot find it."
    ),
    (Stage.EMBEDDING, State.PASSED): gettext_noop("It has a vector of the model %(model)s."),
    (Stage.EMBEDDING, Reason.NO_VECTOR): gettext_noop("It has no vector, so the vector channel cannot find it."),
    (Stage.EMBEDDING, Reason.OTHER_MODEL): gettext_noop(
        "It has a vector of the model %(others)s only, and the search compares those of %(model)s."
    ),
    (Stage.FILTERS, State.PASSED): gettext_noop("It passes the filters."),
    (Stage.FILTERS, State.NOT_ASKED): gettext_noop("No filter was given."),
    (Stage.FILTERS, Reason.FILTERED): gettext_noop("It does not pass the filters: %(failed)s."),
    (Stage.CHANNELS, State.PASSED): gettext_noop("It was found: %(ranks)s."),
    (Stage.CHANNELS, Reason.TOO_DEEP): gettext_noop("It stands too far down in every channel: %(places)s."),
    (Stage.CHANNELS, Reason.MISSED_BY_INDEX): gettext_noop(
        "The vector search has missed it: by its exact similarity it stands among the candidates (%(places)s)."
    ),
    (Stage.CHANNELS, Reason.CHANNEL_FAILED): gettext_noop(
        "The channel that could have found it did not answer: %(failed)s."
    ),
    (Stage.CHANNELS, Reason.NOTHING_IN_COMMON): gettext_noop(
        "No channel knows of anything that it has in common with the query."
    ),
    (Stage.CHANNELS, Reason.BLANK_QUERY): gettext_noop("The query holds nothing to search for."),
    (Stage.CHANNELS, Reason.CHANGED_MEANWHILE): gettext_noop(
        "What is searched has changed in this very moment: run it again."
    ),
    (Stage.DEDUPE, State.PASSED): gettext_noop("No other chunk of the same content stands for it."),
    (Stage.DEDUPE, Reason.DOUBLE): gettext_noop("Chunk %(chunk_id)s has the same content and stands for it: %(fate)s."),
    (Stage.FUSION, State.PASSED): gettext_noop("Fused rank %(rank)s of %(candidates)s candidates%(depth)s."),
    (Stage.FUSION, Reason.BEYOND_CUT): gettext_noop("Its fused rank is %(rank)s, and the first %(depth)s go on."),
    (Stage.FUSION, Reason.VECTOR_ONLY): gettext_noop(
        "Without a reranker only what the vectors find counts, and they have not found it."
    ),
    (Stage.RERANK, State.PASSED): gettext_noop(
        "The reranker %(reranker)s gives it the relevance %(score)s; ordered by %(order)s, it has rank %(rank)s of %(candidates)s."
    ),
    (Stage.RERANK, Reason.RERANKER_OFF): gettext_noop("The reranker is off."),
    (Stage.RERANK, Reason.NO_RERANKER): gettext_noop("No reranker could answer, so an earlier order counts."),
    (Stage.GATE, State.PASSED): gettext_noop(
        "Its relevance %(score)s reaches the threshold %(threshold)s on the scale %(scale)s."
    ),
    (Stage.GATE, Reason.GATE_OPEN): gettext_noop("No threshold applies on the scale %(scale)s."),
    (Stage.GATE, Reason.BELOW): gettext_noop(
        "Its relevance %(score)s is below the threshold %(threshold)s on the scale %(scale)s."
    ),
    (Stage.GATE, Reason.NEAR_MISS): gettext_noop(
        "Its relevance %(score)s is below the threshold %(threshold)s on the scale %(scale)s, which nobody has chosen for these "
        "documents: it is given apart from the results, as a near miss."
    ),
    (Stage.PARENT, State.PASSED): gettext_noop("No other chunk of the same longer passage stands for it."),
    (Stage.PARENT, Reason.NO_PARENT): gettext_noop("It was not cut from a longer passage."),
    (Stage.PARENT, Reason.SAME_PARENT): gettext_noop(
        "Chunk %(chunk_id)s is a result and gives the longer passage that both were cut from, this one’s text included."
    ),
    (Stage.PER_SOURCE, State.PASSED): gettext_noop("It is number %(place)s of the %(cap)s of its kind, “%(kind)s”."),
    (Stage.PER_SOURCE, Reason.NO_CAPS): gettext_noop("Kinds of source have no caps."),
    (Stage.PER_SOURCE, Reason.CAP_FULL): gettext_noop(
        "The results of its kind, “%(kind)s”, are capped at %(cap)s, and it would be number %(place)s."
    ),
    (Stage.TOP_K, State.PASSED): gettext_noop("It has place %(place)s of %(count)s."),
    (Stage.TOP_K, Reason.TOO_MANY): gettext_noop("It would be result %(place)s, and the search gives %(count)s."),
    (Stage.FOUND, State.PASSED): gettext_noop("It is result %(rank)s."),
}


def sentence(step: Step, places: Sequence[Place]) -> str:
    """What a stage did with a chunk that has these places, in the reader's language."""
    for key in (step.reason if step.state is not State.WEAKENED else None, step.state, step.reason):
        if key is not None and (message := SENTENCES.get((step.stage, key))):
            return _(message) % _figures(step, places)
    return _("It was lost before.")


def verdict_sentence(verdict: Step) -> str:
    if verdict.stage is Stage.FOUND:
        return _("The search finds this chunk: %(sentence)s") % {"sentence": verdict.sentence}
    named = {"stage": stage_text(verdict.stage), "sentence": verdict.sentence}
    return _("Lost at the stage “%(stage)s”. %(sentence)s") % named


def _figures(step: Step, places: Sequence[Place]) -> dict[str, Any]:
    figures = {name: _as_text(value) for name, value in step.figures.items()}
    if step.stage is Stage.CHANNELS:
        figures |= {
            "ranks": _listed(
                _("%(channel)s rank %(rank)s") % {"channel": channel_text(each.channel), "rank": each.channel_rank}
                for each in places
                if each.state is PlaceState.CANDIDATE
            )
            or _("a chunk of the same content"),
            "places": _listed(
                _("%(channel)s rank %(rank)s of %(total)s (%(depth)s become candidates)")
                % {"channel": channel_text(each.channel), "rank": each.rank, "total": each.total, "depth": each.depth}
                for each in places
                if each.rank is not None
            ),
            "failed": _listed(channel_text(place.channel) for place in places if place.error),
        }
    if "threshold" in step.figures:
        figures["threshold"] = f"{step.figures['threshold']:g}"
        figures["scale"] = scorer_text(step.figures["scale"])
    if "reranker" in step.figures:
        figures["reranker"] = scorer_text(step.figures["reranker"])
    if "kind" in step.figures:
        figures["kind"] = str(dict(Document.SourceType.choices).get(step.figures["kind"], step.figures["kind"]))
    if step.stage is Stage.FILTERS:
        figures["failed"] = _listed(filter_text(name) for name in step.figures.get("failed", ()))
    if step.stage is Stage.FUSION and step.state is State.PASSED:
        depth = step.figures["depth"]
        figures["depth"] = _("; the first %(depth)s go on") % {"depth": depth} if depth else ""
    if step.reason is Reason.DOUBLE:
        rank, cut_by = step.figures["rank"], step.figures["cut_by"]
        stage = stage_text(Stage.FUSION if cut_by == "vector_only" else Stage(cut_by)) if cut_by else ""
        cut = _("it was dropped at the stage “%(stage)s”") % {"stage": stage}
        figures["fate"] = _("it is result %(rank)s") % {"rank": rank} if rank else cut
    return figures


def _as_text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 1 else f"{value:g}"
    return _listed(map(str, value)) if isinstance(value, list) else str(value)


def _listed(parts: Any) -> str:
    return _(", ").join(dict.fromkeys(parts))


def stage_text(stage: Stage) -> str:
    return {
        Stage.KNOWLEDGE_BASE: _("Knowledge base"),
        Stage.DOCUMENT: _("Document"),
        Stage.ENABLED: _("Switched on"),
        Stage.POSTINGS: _("Keyword index"),
        Stage.EMBEDDING: _("Vector"),
        Stage.FILTERS: _("Filters"),
        Stage.CHANNELS: _("Channels"),
        Stage.DEDUPE: _("Deduplication"),
        Stage.FUSION: _("Fusion"),
        Stage.RERANK: _("Rerank"),
        Stage.GATE: _("Relevance threshold"),
        Stage.PARENT: _("Passage"),
        Stage.PER_SOURCE: _("Kind of source"),
        Stage.TOP_K: _("Top K"),
        Stage.FOUND: _("Results"),
    }[stage]


def channel_text(channel: str) -> str:
    return {
        "vector": _("Vector"),
        "bm25": _("BM25"),
        "question": _("Question"),
        "question_bm25": _("Question BM25"),
        "fts": _("Full text"),
        "lexical": _("N-grams"),
    }.get(channel, channel)


def filter_text(name: str) -> str:
    """A filter, by its name in `Filters`, one on metadata with its key."""
    field, _dot, key = name.partition(".")
    if key:
        return _("metadata “%(key)s”") % {"key": key}
    return {
        "document_ids": _("documents"),
        "folder_ids": _("folders"),
        "tags": _("tags"),
        "concepts": _("concepts"),
        "source_types": _("source type"),
        "created_after": _("created after"),
        "created_before": _("created before"),
    }.get(field, field)


MOST_FOUND = 20
MOST_CHARACTERS = 20_000
# So many characters of a text are looked for as they stand: more would fail at the first difference.
LOOKED_FOR = 60


@dataclass(frozen=True, slots=True)
class FoundChunks:
    """Chunks that hold a text, the likeliest first, each with its document and knowledge base.

    `is_alike`: none holds the text as it stands, and these share most character n-grams with it. Where there are none,
    `unready` are documents that are not ready, and may be meant to hold it.
    """

    chunks: tuple[Chunk, ...] = ()
    is_alike: bool = False
    has_more: bool = False
    unready: tuple[Document, ...] = ()


def find_chunks(principal: Principal, kb_ids: Sequence[int], text: str) -> FoundChunks:
    """Looks for chunks by any part of their text, whatever its white space and case; also for those no search finds."""
    words = storable(text)[:MOST_CHARACTERS].split()
    bases = KnowledgeBase.objects.visible_to(principal).filter(pk__in=kb_ids)
    if not words:
        return FoundChunks()
    text = " ".join(words)
    own = Chunk.objects.filter(knowledge_base__in=bases).select_related("document", "knowledge_base")
    # Else those with the beginning of the text in them, its longest word written as it is, which is looked for first.
    beginning = text[:LOOKED_FOR].split()
    pattern = r"\s+".join(map(re.escape, beginning))
    holding = own.filter(text__contains=max(beginning, key=len), text__iregex=pattern).order_by("pk")
    found = list(own.filter(content_hash=hash_content(text))[: MOST_FOUND + 1]) or list(holding[: MOST_FOUND + 1])
    if found:
        return FoundChunks(tuple(found[:MOST_FOUND]), has_more=len(found) > MOST_FOUND)
    alike = _alike(own, list(bases), text)
    if alike.chunks:
        return alike
    unready = Document.objects.filter(knowledge_base__in=bases).exclude(status=Document.Status.READY)
    return FoundChunks(unready=tuple(unready.order_by("-pk")[:5]))


def _alike(chunks: QuerySet[Chunk], bases: Sequence[KnowledgeBase], text: str) -> FoundChunks:
    """By the index of n-grams, which knows no case; those that hold the text but for its case are the ones meant."""
    shares: dict[int, float] = {}
    for kb in bases:
        ids, scores = PgTextStore().search_ngrams(kb.pk, kb.tokenizer_id, text, MOST_FOUND)
        shares |= dict(zip(ids.tolist(), scores.tolist(), strict=True))
    best = sorted(shares, key=lambda chunk_id: (-shares[chunk_id], chunk_id))[:MOST_FOUND]
    rows = chunks.in_bulk(best)
    alike = tuple(rows[chunk_id] for chunk_id in best if chunk_id in rows)
    wanted = text[:LOOKED_FOR].casefold().strip()
    holding = tuple(chunk for chunk in alike if wanted in " ".join(chunk.text.split()).casefold())
    return FoundChunks(holding or alike, is_alike=not holding)


def the_chunk(principal: Principal, kb_ids: Sequence[int], text: str) -> int:
    """The id of the one chunk that holds a text; raises NotVisible where none does, and Rejected where several do."""
    found = find_chunks(principal, kb_ids, text)
    if not found.chunks:
        message = _("No chunk there holds this text: give less of it, or the chunk’s id.")
        hint = _("Its document may be “%(title)s”, which is not ready (%(status)s).")
        hints = (hint % {"title": each, "status": each.get_status_display()} for each in found.unready)
        raise NotVisible(" ".join([message, *hints]))
    if len(found.chunks) > 1:
        message = (
            _("No chunk holds this text as it stands; alike are the chunks %(ids)s: give the id of one.")
            if found.is_alike
            else _("Several chunks hold this text: give more of it, or the id of one of %(ids)s.")
        )
        raise Rejected("ambiguous_text", message, ids=", ".join(str(chunk.pk) for chunk in found.chunks))
    return int(found.chunks[0].pk)
