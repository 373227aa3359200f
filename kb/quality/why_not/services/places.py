"""The answer to why a search has not found a chunk, and where the chunk stands in each channel, however deep."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any

import numpy as np
from django.db.models import QuerySet
from django.utils.translation import gettext as _
from numpy.typing import NDArray
from typing_extensions import Doc

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import NotVisible, Rejected
from kb.base.shapes import AS_TEXT
from kb.base.text import storable
from kb.content.models import Chunk, Document
from kb.index.fulltext import PgTextStore
from kb.index.models import ChunkEmbedding
from kb.index.pgvector import exact_place
from kb.index.services.writing import searchable_text_of
from kb.ingest.chunkers.drafts import hash_content
from kb.search.services.search import SearchOutcome, SearchRequest
from retrieval.bm25 import OkapiIndex
from retrieval.dictionary import MAX_WORD_CHARACTERS, DictionaryWord
from retrieval.errors import ChannelUnavailable
from retrieval.external import ExternalChannel
from retrieval.postings import hash_terms
from retrieval.protocols import Channel, Tokenizer
from retrieval.recall import RANKS_A_CANDIDATE
from retrieval.scope import Scope
from retrieval.segmenters import SEGMENTABLE
from retrieval.tokenize import JiebaTokenizer, normalize
from retrieval.types import Analysis


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
    """Why a stage has lost the chunk, or what is worth saying of one that it passed."""

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
    GATE_OPEN = "gate_open"
    SAME_PARENT = "same_parent"
    NO_PARENT = "no_parent"
    CAP_FULL = "cap_full"
    NO_CAPS = "no_caps"
    TOO_MANY = "too_many"


# No enumerations: other answers have stages and states of their own, and two of one name would need names of their own.
STAGES = ", ".join(Stage)
STATES = ", ".join(State)


@dataclass(frozen=True, slots=True)
class Step:
    """One stage, and what it did with the chunk."""

    stage: Annotated[Stage, Doc(f"In this order: {STAGES}."), AS_TEXT]
    state: Annotated[
        State,
        Doc(f"One of {STATES}. `weakened`: it went on, with less than it could have; `not_asked`: it was lost before."),
        AS_TEXT,
    ]
    reason: Reason | None = None
    figures: Annotated[Mapping[str, Any], Doc("What the sentence is made of.")] = field(default_factory=dict)
    sentence: str = ""


class PlaceState(StrEnum):
    """How a channel has the chunk."""

    CANDIDATE = "candidate"
    DEEPER = "deeper"
    MISSED = "missed"
    ABSENT = "absent"
    FAILED = "failed"
    NOT_ASKED = "not_asked"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chunk stands in one channel for one query."""

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
    """A term of the chunk, and how often it holds it."""

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
class Remedy:
    """What would help.

    Attributes:
        about: distinguishes it from other remedies with the same code.
    """

    code: RemedyCode
    about: str = ""
    settings: Annotated[Mapping[str, Any], Doc("For a draft of the profile, or the next search’s `overrides`.")] = (
        field(default_factory=dict)
    )
    suggestions: tuple[str, ...] = ()
    chunk_id: int | None = None
    command: str = ""
    request: Annotated[Mapping[str, Any] | None, Doc("What to search for instead.")] = None

    @property
    def id(self) -> str:
        return f"{self.code}:{self.about}" if self.about else str(self.code)


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Why a search has not found a chunk, or at which place it has.

    Attributes:
        chunk: read with its document and knowledge base.
        steps: every stage, in order.
        places: by channel and query.
        terms: None where there is no keyword index to ask.
        chunk_count: how many chunks that index holds.
    """

    request: SearchRequest
    chunk: Chunk
    outcome: SearchOutcome
    steps: tuple[Step, ...]
    places: tuple[Place, ...]
    terms: Terms | None
    chunk_count: int

    @property
    def verdict(self) -> Step:
        """The first stage that has lost the chunk, or the last step of all, which says where it was found."""
        return next((step for step in self.steps if step.state is State.LOST), self.steps[-1])

    @property
    def rank(self) -> int | None:
        """Among the results, from 1; None where it is none of them."""
        verdict = self.verdict
        return verdict.figures["rank"] if verdict.stage is Stage.FOUND else None

    def step(self, stage: Stage) -> Step:
        return next(step for step in self.steps if step.stage == stage)


SECONDS = 30.0
"""How long a channel may take to answer once more; what it needs is in memory, or cheap, after the search."""

EVERY_CHUNK = 2**31 - 1
TEXT_MATCHES = 2_000
"""So many chunks of full text and n-grams are ranked: each costs a row."""

VECTOR_KINDS: Mapping[str, str] = {
    "vector": ChunkEmbedding.Kind.CONTENT,
    "question": ChunkEmbedding.Kind.QUESTION,
}


@dataclass(frozen=True, slots=True)
class Places:
    """By channel and query; `index` is the keyword index that was searched, if one was."""

    places: tuple[Place, ...]
    index: OkapiIndex | None = None


CAPS = {"book": "max_books", "video": "max_videos", "qa": "max_qa", "web": "max_web"}
"""The setting that caps the results of each kind of source."""


def find_places(outcome: SearchOutcome, scope: Scope, chunk_id: int, only: NDArray[np.int64] | None) -> Places:
    """Asks the channels of a search that was run for one chunk.

    Args:
        outcome: of the search.
        scope: the knowledge base of the chunk, as it was searched.
        chunk_id: one that the search may find.
        only: ids of the chunks that pass the filters, ascending; None: all.
    """
    asked = _Asked(outcome, scope, chunk_id, only)
    channels = (*scope.channels, *(fallback.channel for fallback in scope.fallbacks))
    channels = tuple(each for each in channels if not isinstance(each, ExternalChannel))  # these find no chunks
    places = [asked.place(channel, query) for channel in channels for query in asked.queries_of(channel)]
    return Places(tuple(places), asked.index)


class _Asked:
    """The channels of one knowledge base, after they were searched."""

    def __init__(self, outcome: SearchOutcome, scope: Scope, chunk_id: int, only: NDArray[np.int64] | None) -> None:
        self._scope = scope
        self._chunk_id = chunk_id
        self._only = only
        self._analysis = outcome.result.analysis
        self._vectors = {vectors.model_id: vectors for vectors in outcome.wiring.vectors}
        self._spans = {
            (span.stage, span.detail.get("query", 0)): span.detail
            for span in outcome.result.spans
            if span.detail.get("kb_id") == scope.kb_id
        }
        self._dropped = next((each for each in outcome.result.dropped if each.chunk_id == chunk_id), None)
        # The provenance of a double is in the candidate that stands for it.
        self._provenance = [
            found
            for candidate in outcome.result.candidates
            for found in candidate.provenance
            if found.chunk_id == chunk_id
        ]
        self.index: OkapiIndex | None = None

    def queries_of(self, channel: Channel) -> Iterable[int]:
        """The queries that a channel was searched for; one that was not searched at all is reported once."""
        asked = [query for query in range(len(self._analysis.queries)) if (channel.name, query) in self._spans]
        return asked or (0,)

    def place(self, channel: Channel, number: int) -> Place:
        config = self._scope.config
        depth = config.vector_candidates if channel.name in VECTOR_KINDS else config.bm25_candidates
        place = Place(channel.name, number, PlaceState.NOT_ASKED, depth=depth)
        detail = self._spans.get((channel.name, number))
        if detail is None:
            return place
        if "error" in detail:
            return replace(place, state=PlaceState.FAILED, error=str(detail["error"]))
        query = self._analysis.queries[number]
        try:
            if channel.name in VECTOR_KINDS:
                vector, _source = self._vectors[self._scope.space].embed(query.text, time.monotonic() + SECONDS)
                exact = exact_place(
                    self._scope.kb_id,
                    self._scope.space,
                    vector,
                    self._chunk_id,
                    kind=VECTOR_KINDS[place.channel],
                    keyword_share=detail.get("keyword_share", 0.0),
                    only=self._only,
                )
                return _judged(
                    replace(
                        place,
                        rank=exact.rank,
                        channel_rank=self._returned_rank(place, exact.rank),
                        score=exact.similarity,
                        total=exact.total,
                        is_indexed=exact.is_indexed,
                    )
                )
            return self._among_texts(channel, query, place)
        except ChannelUnavailable as error:
            return replace(place, state=PlaceState.FAILED, error=error.code.value)

    def _returned_rank(self, place: Place, exact: int | None) -> int | None:
        """The rank that the channel gave the chunk in this search; None where it did not return it.

        A candidate's ranks are exact as far as the channel's own candidates go; what stands behind them has moved up by
        as many as were left out.
        """
        if self._dropped is not None and self._dropped.stage == "channels":
            only_query = len(self._analysis.queries) == 1
            return self._dropped.ranks.get(place.channel) if only_query else None
        given = next(
            (found.rank for found in self._provenance if (found.channel, found.query) == (place.channel, place.query)),
            None,
        )
        return given if given is None or given <= place.depth else max(given, exact or given)

    def _among_texts(self, channel: Channel, query: Analysis, place: Place) -> Place:
        most = EVERY_CHUNK if channel.name == "bm25" else TEXT_MATCHES
        found = channel.search(query, most, time.monotonic() + SECONDS)
        if isinstance(found.lexicon, OkapiIndex):
            self.index = found.lexicon
        places = np.flatnonzero(found.chunk_ids == self._chunk_id)
        rank = int(places[0]) + 1 if places.size else None
        is_read = rank is not None and rank <= RANKS_A_CANDIDATE * place.depth
        score = None if rank is None else float(found.scores[rank - 1])
        total = found.chunk_ids.size
        return _judged(replace(place, rank=rank, channel_rank=rank if is_read else None, score=score, total=total))


def _judged(place: Place) -> Place:
    if place.channel_rank is not None and place.channel_rank <= place.depth:
        state = PlaceState.CANDIDATE
    elif place.rank is None:
        state = PlaceState.ABSENT
    else:
        state = PlaceState.MISSED if place.rank <= place.depth else PlaceState.DEEPER
    return replace(place, state=state)


MOST_FOUND = 20
MOST_CHARACTERS = 20_000
LOOKED_FOR = 60
"""So many characters of a text are looked for as they stand: more would fail at the first difference."""

MOST_DOCUMENTS = 5


@dataclass(frozen=True, slots=True)
class FoundChunks:
    """Chunks that hold a text, the likeliest first.

    Attributes:
        chunks: each with its document and knowledge base.
        is_alike: none holds the text as it stands; these share most character n-grams with it.
        has_more: there are others.
        unready: where there are none, documents that are not ready, and may be meant to hold it.
    """

    chunks: tuple[Chunk, ...] = ()
    is_alike: bool = False
    has_more: bool = False
    unready: tuple[Document, ...] = ()


def find_chunks(principal: Principal, kb_ids: Sequence[int], text: str) -> FoundChunks:
    """Looks for chunks by a piece of their text, or by all of it; also for those that no search finds.

    Args:
        principal: who looks.
        kb_ids: where to look.
        text: any part of the chunk; white space and case do not count.
    """
    words = storable(text)[:MOST_CHARACTERS].split()
    bases = KnowledgeBase.objects.visible_to(principal).filter(pk__in=kb_ids)
    if not words:
        return FoundChunks()
    own = Chunk.objects.filter(knowledge_base__in=bases).select_related("document", "knowledge_base")
    by_content = own.filter(content_hash=hash_content(" ".join(words)))
    # Else those with the beginning of the text in them, its longest word written as it is, which is looked for first.
    beginning = " ".join(words)[:LOOKED_FOR].split()
    pattern = r"\s+".join(map(_escaped, beginning))
    holding = own.filter(text__contains=max(beginning, key=len)).filter(text__iregex=pattern).order_by("pk")
    found = list(by_content[: MOST_FOUND + 1]) or list(holding[: MOST_FOUND + 1])
    if found:
        return FoundChunks(tuple(found[:MOST_FOUND]), has_more=len(found) > MOST_FOUND)
    alike = _alike(own, list(bases), " ".join(words))
    if alike.chunks:
        return alike
    unready = Document.objects.filter(knowledge_base__in=bases).exclude(status=Document.Status.READY)
    return FoundChunks(unready=tuple(unready.order_by("-pk")[:MOST_DOCUMENTS]))


def _escaped(word: str) -> str:
    """A word as a regular expression of PostgreSQL's."""
    return "".join(f"\\{each}" if not each.isalnum() and each.isascii() else each for each in word)


def _alike(chunks: QuerySet[Chunk], bases: Sequence[KnowledgeBase], text: str) -> FoundChunks:
    """By the index of n-grams, which knows no case; those that hold the text but for its case are the ones meant."""
    store = PgTextStore()
    shares: dict[int, float] = {}
    for kb in bases:
        ids, scores = store.search_ngrams(kb.pk, kb.tokenizer_id, text, MOST_FOUND)
        shares |= dict(zip(ids.tolist(), scores.tolist(), strict=True))
    best = sorted(shares, key=lambda chunk_id: (-shares[chunk_id], chunk_id))[:MOST_FOUND]
    rows = chunks.in_bulk(best)
    alike = tuple(rows[chunk_id] for chunk_id in best if chunk_id in rows)
    wanted = text[:LOOKED_FOR].casefold().strip()
    holding = tuple(chunk for chunk in alike if wanted in " ".join(chunk.text.split()).casefold())
    return FoundChunks(holding or alike, is_alike=not holding)


def the_chunk(principal: Principal, kb_ids: Sequence[int], text: str) -> int:
    """The id of the one chunk that holds a text.

    Raises:
        NotVisible: none does.
        Rejected: several do.
    """
    found = find_chunks(principal, kb_ids, text)
    if not found.chunks:
        message = _("No chunk there holds this text: give less of it, or the chunk’s id.")
        hint = _("Its document may be “%(title)s”, which is not ready (%(status)s).")
        hints = [hint % {"title": each, "status": each.get_status_display()} for each in found.unready]
        raise NotVisible(" ".join([message, *hints]))
    if len(found.chunks) > 1:
        ids = ", ".join(str(chunk.pk) for chunk in found.chunks)
        message = (
            _("No chunk holds this text as it stands; alike are the chunks %(ids)s: give the id of one.")
            if found.is_alike
            else _("Several chunks hold this text: give more of it, or the id of one of %(ids)s.")
        )
        raise Rejected("ambiguous_text", message % {"ids": ids})
    return int(found.chunks[0].pk)


MOST_TERMS = 64
MOST_WORDS = 5
LEAST_CHARACTERS = 2
MOST_KNOWN_WORDS = 2_000
"""A dictionary of more words takes too long to load for a try, which then goes without it."""

MOST_QUERY_CHARACTERS = 300
"""Words in common are looked for from each place of the query, so in the beginning of a long one only."""


def terms_of(index: OkapiIndex, cutter: Tokenizer, analysis: Analysis, chunk: Chunk) -> Terms:
    """BM25 of a chunk for the query itself, without its sub-queries.

    Args:
        index: the one that was searched.
        cutter: the knowledge base's tokenizer.
        analysis: of the query.
        chunk: read with its document.
    """
    text = searchable_text_of(chunk)
    in_chunk = Counter(cutter(text))
    own = Counter(analysis.tokens(chunk.knowledge_base_id))
    terms = list(dict.fromkeys(analysis.search_tokens(chunk.knowledge_base_id)))[:MOST_TERMS]
    hashes, ids = hash_terms(terms), np.array([chunk.pk], dtype=np.int64)
    counts = np.array([max(own[term], 1) for term in terms])
    columns = zip(
        terms,
        index.idf(hashes).tolist(),
        index.frequencies(hashes, ids)[0].tolist(),
        (index.contributions(hashes, ids)[0] * counts).tolist(),
        strict=True,
    )
    written = _folded(text, cutter)
    rows = tuple(
        Term(
            term=term,
            in_query=own[term],
            is_other=term not in own,
            idf=idf,
            in_chunks=_holders(index, term),
            in_chunk=held,
            contribution=contribution,
            is_written=not held and _is_word(term) and term in written,
        )
        for term, idf, held, contribution in columns
    )
    shared = in_chunk.keys() & own.keys()
    words = dict.fromkeys(
        [row.term for row in rows if row.is_written]
        + [
            word
            for word in _common_words(_folded(analysis.text, cutter), written)
            if not shared.issuperset(cutter(word))
        ]
    )
    joining = _joining(list(words)[:MOST_WORDS], cutter, analysis.text, text)
    return Terms(
        query=rows,
        missing=tuple(row.term for row in rows if not row.in_chunk and not row.is_other),
        chunk=tuple(ChunkTerm(term, count) for term, count in in_chunk.items()),
        words=joining,
    )


def _joining(words: Sequence[str], cutter: Tokenizer, query: str, text: str) -> tuple[str, ...]:
    """The words that query and chunk would both be cut into if the dictionary had them: some never prevail there."""
    if not words or not isinstance(cutter, JiebaTokenizer):
        return ()
    options = cutter.options
    known = options.dictionary if len(options.dictionary) <= MOST_KNOWN_WORDS else ()
    changed = JiebaTokenizer(replace(options, dictionary=(*known, *map(DictionaryWord, words))))
    both = set(changed(query)) & set(changed(text))
    return tuple(word for word in words if word in both)


def _is_word(term: str) -> bool:
    """Whether it depends on the dictionary that a term is found: other scripts are cut by rules."""
    return len(term) >= LEAST_CHARACTERS and SEGMENTABLE.fullmatch(term) is not None


def _holders(index: OkapiIndex, term: str) -> int:
    found, _scores = index.search(hash_terms([term]), max(index.chunk_count, 1))
    return int(found.size)


def _folded(text: str, cutter: Tokenizer) -> str:
    return cutter.simplify(normalize(text)).casefold()


def _common_words(query: str, text: str) -> Iterator[str]:
    """The longest pieces of Chinese that stand in both, from left to right in the query."""
    place = 0
    query = query[:MOST_QUERY_CHARACTERS]
    while place < len(query):
        length = 0
        while (
            length < MAX_WORD_CHARACTERS
            and place + length < len(query)
            and SEGMENTABLE.fullmatch(query[place : place + length + 1])
            and query[place : place + length + 1] in text
        ):
            length += 1
        if length >= LEAST_CHARACTERS:
            yield query[place : place + length]
        place += max(length, 1)
