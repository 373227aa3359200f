"""The answer to why a search has not found a chunk, and where the chunk stands in each channel, however deep."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import takewhile
from typing import Annotated, Any

import numpy as np
from django.db.models import QuerySet
from django.utils.translation import gettext as _
from typing_extensions import Doc

from kb.access.models import KnowledgeBase, Principal
from kb.base.errors import NotVisible, Rejected
from kb.base.shapes import AS_TEXT
from kb.base.text import storable
from kb.content.models import Chunk, Document
from kb.index.fulltext import PgTextStore
from kb.index.services.writing import searchable_text_of
from kb.ingest.chunkers.matching import hash_content
from retrieval.bm25 import OkapiIndex
from retrieval.dictionary import MAX_WORD_CHARACTERS, DictionaryWord
from retrieval.postings import hash_terms
from retrieval.protocols import Tokenizer
from retrieval.tokenize import SEGMENTABLE, JiebaTokenizer, normalize
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

    @property
    def id(self) -> str:
        return f"{self.code}:{self.about}" if self.about else str(self.code)


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
    """Looks for chunks by any part of their text, whatever its white space and case; also for those that no search finds."""
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
    """The id of the one chunk that holds a text.

    Raises:
        NotVisible: none does.
        Rejected: several do.
    """
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


MOST_TERMS = 64
MOST_WORDS = 5
LEAST_CHARACTERS = 2
# A dictionary of more words takes too long to load for a try, which then goes without it.
MOST_KNOWN_WORDS = 2_000
# Words in common are looked for from each place of the query, so in the beginning of a long one only.
MOST_QUERY_CHARACTERS = 300


def terms_of(index: OkapiIndex, cutter: Tokenizer, analysis: Analysis, chunk: Chunk) -> Terms:
    """BM25 of a chunk for the query itself, without its sub-queries, by the index that was searched."""
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
            in_chunks=int(index.search(hash_terms([term]), max(index.chunk_count, 1))[0].size),
            in_chunk=held,
            contribution=contribution,
            is_written=not held and _is_word(term) and term in written,
        )
        for term, idf, held, contribution in columns
    )
    shared = in_chunk.keys() & own.keys()
    common = _common_words(_folded(analysis.text, cutter)[:MOST_QUERY_CHARACTERS], written)
    words = [row.term for row in rows if row.is_written]
    words += [word for word in common if not shared.issuperset(cutter(word))]
    return Terms(
        query=rows,
        missing=tuple(row.term for row in rows if not row.in_chunk and not row.is_other),
        chunk=tuple(ChunkTerm(term, count) for term, count in in_chunk.items()),
        words=_joining(list(dict.fromkeys(words))[:MOST_WORDS], cutter, analysis.text, text),
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


def _folded(text: str, cutter: Tokenizer) -> str:
    return cutter.simplify(normalize(text)).casefold()


def _common_words(query: str, text: str) -> Iterator[str]:
    """The longest pieces of Chinese that stand in both, from left to right in the query."""

    def is_common(piece: str) -> bool:
        return SEGMENTABLE.fullmatch(piece) is not None and piece in text

    place = 0
    while place < len(query):
        most = min(place + MAX_WORD_CHARACTERS, len(query))
        pieces = (query[place:end] for end in range(place + 1, most + 1))
        longest = max(map(len, takewhile(is_common, pieces)), default=0)
        if longest >= LEAST_CHARACTERS:
            yield query[place : place + longest]
        place += max(longest, 1)
