"""Why a search has not found a chunk: the stages in their order, and the first that has lost it."""

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef
from django.utils.translation import gettext as _

from kb.access.models import Principal
from kb.base.errors import NotVisible
from kb.content.models import Chunk, Document
from kb.index.filters import Filters, chunk_ids
from kb.index.models import ChunkEmbedding, ChunkPostings
from kb.index.pgvector import exact_place
from kb.index.services.writing import searchable_text_of
from kb.quality.why_not.services.places import (
    ChunkTerm,
    Place,
    PlaceState,
    Reason,
    Stage,
    State,
    Step,
    Term,
    Terms,
    sentence,
)
from kb.search.services.search import SearchOutcome, SearchRequest, search
from retrieval.bm25 import OkapiIndex
from retrieval.dictionary import MAX_WORD_CHARACTERS, DictionaryWord
from retrieval.errors import ChannelUnavailable
from retrieval.external import ExternalChannel
from retrieval.postings import hash_terms
from retrieval.protocols import Channel, Scope, Tokenizer
from retrieval.recall import RANKS_A_CANDIDATE
from retrieval.selection import CAPS, ORDER, RELEVANCE, gated_stage, result_count, stands_for_parent
from retrieval.tokenize import SEGMENTABLE, JiebaTokenizer, normalize
from retrieval.types import Analysis, Candidate, CutBy

# How long a channel may take to answer once more; what it needs is in memory, or cheap, after the search.
SECONDS = 30.0
EVERY_CHUNK = 2**31 - 1
# So many chunks of full text and n-grams are ranked: each costs a row.
TEXT_MATCHES = 2_000
VECTOR_KINDS: Mapping[str, str] = {"vector": ChunkEmbedding.Kind.CONTENT, "question": ChunkEmbedding.Kind.QUESTION}
EXACT_KEYWORDS = frozenset({"bm25", "question_bm25"})
BY_THEMSELVES = frozenset({Stage.DOCUMENT, Stage.ENABLED, Stage.POSTINGS, Stage.EMBEDDING, Stage.FILTERS})


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
    changed = JiebaTokenizer(dataclasses.replace(options, dictionary=(*known, *map(DictionaryWord, words))))
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


class WhyNot:
    """Why a search has not found a chunk, or at which place it has: the chunk’s way through the search.

    The steps are every stage, in order; the verdict is the first that has lost the chunk, or the last of all, which
    says where it was found. The rank is among the results, from 1, or None. Places are by channel and query. The terms
    are None where there is no keyword index to ask, which holds `chunk_count` chunks. Where the channels are not asked
    again there are no places and no terms, and a chunk that no channel has found has no figures of why.
    """

    def __init__(
        self,
        principal: Principal,
        request: SearchRequest,
        chunk: Any,
        outcome: SearchOutcome,
        *,
        asks_channels: bool = True,
    ) -> None:
        kb_id, filters = chunk.knowledge_base_id, request.filters
        self.principal = principal
        self.request = request
        self.chunk = chunk
        self.outcome = outcome
        self._result = outcome.result
        self._config = outcome.wiring.config
        self.scope = next((each for each in outcome.wiring.pipeline.scopes if each.kb_id == kb_id), None)
        scope = self.scope
        # As it was read for the search.
        self.kb = next((kb for kb in outcome.knowledge_bases if kb.pk == kb_id), chunk.knowledge_base)
        self._has_postings = self.kb.tokenizer_id in chunk.tokenized_by
        self._has_vector = self.kb.embedding_model in chunk.embedded_by
        may_be_found = scope is not None and chunk.enabled
        # The chunks of its knowledge base that pass the filters; None: all.
        self._only = chunk_ids(kb_id, principal, filters) if filters is not None and may_be_found else None
        self._passes_filters = self._only is None or bool(np.isin(chunk.pk, self._only))
        self._may_be_found = may_be_found and self._passes_filters
        self._candidates = {each.chunk_id: each for each in self._result.candidates}
        self.candidate = self._candidates.get(chunk.pk)
        self._dropped = next((each for each in self._result.dropped if each.chunk_id == chunk.pk), None)
        self._ranks = {hit.passage.chunk_id: rank for rank, hit in enumerate(self._result.hits, start=1)}
        self._index: OkapiIndex | None = None
        is_asked = asks_channels and self._may_be_found
        self.places = tuple(self._ask_channels(scope)) if scope and is_asked else ()
        self.steps = tuple(self._explained(is_searched=scope is not None))
        self.verdict = next((step for step in self.steps if step.state is State.LOST), self.steps[-1])
        self.rank: int | None = self.steps[-1].figures.get("rank")
        self.terms, self.chunk_count = None, 0
        if self._index is not None and scope and scope.tokenizer is not None:
            self.terms = terms_of(self._index, scope.tokenizer, self._result.analysis, chunk)
            self.chunk_count = self._index.chunk_count

    @property
    def place(self) -> int | None:
        """Its place among the candidates in their final order, from 1; None where it is none."""
        places = {each.chunk_id: place for place, each in enumerate(self._result.candidates, start=1)}
        return places.get(self.chunk.pk)

    def _explained(self, *, is_searched: bool) -> Iterator[Step]:
        """A stage after the one that lost the chunk has never seen it, unless it says something by itself."""
        is_lost = False
        for step in self._steps(is_searched=is_searched):
            shown = Step(step.stage, State.NOT_ASKED) if is_lost and step.stage not in BY_THEMSELVES else step
            yield dataclasses.replace(shown, sentence=sentence(shown, self.places))
            is_lost = is_lost or step.state is State.LOST

    def _steps(self, *, is_searched: bool) -> Iterator[Step]:
        figures = {"name": self.chunk.knowledge_base.name}
        if not is_searched:
            yield Step(Stage.KNOWLEDGE_BASE, State.LOST, Reason.NOT_SEARCHED, figures)
            yield from (Step(stage, State.NOT_ASKED) for stage in list(Stage)[1:])
            return
        yield Step(Stage.KNOWLEDGE_BASE, State.PASSED, figures=figures)
        yield self._document()
        is_lost = not self.chunk.enabled
        yield Step(Stage.ENABLED, State.LOST, Reason.DISABLED) if is_lost else Step(Stage.ENABLED, State.PASSED)
        yield self._held(Stage.POSTINGS, Reason.NO_POSTINGS, {"tokenizer": self.kb.tokenizer_id})
        model = self.kb.embedding_model
        others = sorted(each for each in self.chunk.embedded_by if each != model)
        reason = Reason.OTHER_MODEL if others else Reason.NO_VECTOR
        yield self._held(Stage.EMBEDDING, reason, {"model": model, "others": others})
        yield self._filters()
        yield self._channels()
        yield self._dedupe()
        yield self._fusion()
        yield self._rerank()
        yield self._gate()
        yield self._parent()
        yield self._per_source()
        # Those that their kind's cap took out have taken no place.
        place = sum(candidate.cut_by != CutBy.PER_SOURCE for candidate in self._selected_before) + 1
        yield self._cut_by(Stage.TOP_K, Reason.TOO_MANY, {"place": place, "count": result_count(self._config)})
        rank = self._ranks.get(self.chunk.pk)
        yield Step(Stage.FOUND, State.PASSED if rank else State.NOT_ASKED, figures={"rank": rank})

    # -- Before the search -----------------------------------------------------------------------------------------------
    def _document(self) -> Step:
        """A document that is not ready has lost a chunk only where the chunk is in no index: else searches find it."""
        document = self.chunk.document
        figures = {"document_id": document.pk, "title": str(document), "error_code": document.error_code}
        if document.status == Document.Status.READY:
            return Step(Stage.DOCUMENT, State.PASSED, figures=figures)
        state = State.WEAKENED if self._has_postings or self._has_vector else State.LOST
        reason = Reason.FAILED if document.status == Document.Status.FAILED else Reason.NOT_READY
        return Step(Stage.DOCUMENT, state, reason, figures)

    def _held(self, stage: Stage, reason: Reason, figures: Mapping[str, Any]) -> Step:
        """A chunk that lacks what one channel needs is lost there unless the other channel could have it, and has."""
        held = {Stage.POSTINGS: self._has_postings, Stage.EMBEDDING: self._has_vector}
        if held[stage]:
            return Step(stage, State.PASSED, figures=figures)
        may_go_on = any(held.values()) and (self._is_carried or not self._may_be_found)
        return Step(stage, State.WEAKENED if may_go_on else State.LOST, reason, figures)

    def _filters(self) -> Step:
        filters = self.request.filters
        if filters is None or filters.is_empty or not self.chunk.enabled:
            return Step(Stage.FILTERS, State.NOT_ASKED)
        if self._passes_filters:
            return Step(Stage.FILTERS, State.PASSED, figures={"filters": filters.as_dict()})
        return Step(Stage.FILTERS, State.LOST, Reason.FILTERED, {"failed": list(self._failed_filters(filters))})

    def _failed_filters(self, filters: Filters) -> Iterator[str]:
        """The names of the filters that its document does not pass, those on metadata with their key."""
        one = Filters(document_ids=(self.chunk.document_id,))

        def passes(**conditions: Any) -> bool:
            found = chunk_ids(self.chunk.knowledge_base_id, self.principal, dataclasses.replace(one, **conditions))
            return found is None or bool(np.isin(self.chunk.pk, found))

        for name in filters.as_dict():
            if name == "document_ids":
                if self.chunk.document_id not in (filters.document_ids or ()):
                    yield name
            elif name == "metadata":
                yield from (f"metadata.{each.names[0]}" for each in filters.metadata if not passes(metadata=(each,)))
            elif not passes(**{name: getattr(filters, name)}):
                yield name

    # -- The channels ----------------------------------------------------------------------------------------------------
    @property
    def _is_carried(self) -> bool:
        """Whether a channel has found it, or a chunk that stands for it."""
        return bool(self.candidate or (self._dropped and self._dropped.stage in ("dedupe", "vector_only")))

    def _channels(self) -> Step:
        if self._is_carried:
            found = {place.channel: place.rank for place in self.places if place.state is PlaceState.CANDIDATE}
            return Step(Stage.CHANNELS, State.PASSED, figures={"ranks": found})
        if not self._result.analysis.text:
            return Step(Stage.CHANNELS, State.LOST, Reason.BLANK_QUERY)
        reasons = {
            PlaceState.CANDIDATE: Reason.CHANGED_MEANWHILE,  # the channel has it now, and had it not for the search
            PlaceState.MISSED: Reason.MISSED_BY_INDEX,
            PlaceState.DEEPER: Reason.TOO_DEEP,
            PlaceState.FAILED: Reason.CHANNEL_FAILED,
        }
        states = {place.state for place in self.places}
        reason = next((reason for state, reason in reasons.items() if state in states), Reason.NOTHING_IN_COMMON)
        return Step(Stage.CHANNELS, State.LOST, reason)

    def _ask_channels(self, scope: Scope) -> Iterator[Place]:
        """For each query that a channel was searched for; once for a channel that was not searched at all."""
        spans = {
            (span.stage, span.detail.get("query", 0)): span.detail
            for span in self._result.spans
            if span.detail.get("kb_id") == scope.kb_id
        }
        queries = range(len(self._result.analysis.queries))
        for channel in (*scope.channels, *(fallback.channel for fallback in scope.fallbacks)):
            if not isinstance(channel, ExternalChannel):  # these find no chunks
                asked = [query for query in queries if (channel.name, query) in spans] or [0]
                yield from (self._ask(scope, channel, query, spans.get((channel.name, query))) for query in asked)

    def _ask(self, scope: Scope, channel: Channel, query: int, detail: Mapping[str, Any] | None) -> Place:
        is_vector = channel.name in VECTOR_KINDS
        depth = scope.config.vector_candidates if is_vector else scope.config.bm25_candidates
        place = Place(channel.name, query, PlaceState.NOT_ASKED, depth=depth)
        if detail is None:
            return place
        if "error" in detail:
            return dataclasses.replace(place, state=PlaceState.FAILED, error=str(detail["error"]))
        try:
            found = self._among_vectors(scope, place, detail) if is_vector else self._among_texts(channel, place)
        except ChannelUnavailable as error:
            return dataclasses.replace(place, state=PlaceState.FAILED, error=error.code.value)
        if found.channel_rank is not None and found.channel_rank <= depth:
            return dataclasses.replace(found, state=PlaceState.CANDIDATE)
        if found.rank is None:
            return dataclasses.replace(found, state=PlaceState.ABSENT)
        return dataclasses.replace(found, state=PlaceState.MISSED if found.rank <= depth else PlaceState.DEEPER)

    def _among_vectors(self, scope: Scope, place: Place, detail: Mapping[str, Any]) -> Place:
        model = next(each for each in self.outcome.wiring.vectors if each.model_id == scope.space)
        vector, _source = model.embed(self._result.analysis.queries[place.query].text, time.monotonic() + SECONDS)
        exact = exact_place(
            scope.kb_id,
            scope.space,
            vector,
            self.chunk.pk,
            kind=VECTOR_KINDS[place.channel],
            keyword_share=detail.get("keyword_share", 0.0),
            only=self._only,
        )
        return dataclasses.replace(
            place,
            rank=exact.rank,
            channel_rank=self._returned_rank(place, exact.rank),
            score=exact.similarity,
            total=exact.total,
            is_indexed=exact.is_indexed,
        )

    def _returned_rank(self, place: Place, exact: int | None) -> int | None:
        """The rank that the channel gave the chunk in this search; None where it did not return it.

        A candidate's ranks are exact as far as the channel's own candidates go; what stands behind them has moved up by
        as many as were left out.
        """
        if self._dropped is not None and self._dropped.stage == "channels":
            return self._dropped.ranks.get(place.channel) if len(self._result.analysis.queries) == 1 else None
        # The provenance of a double is in the candidate that stands for it.
        given = next(
            (
                found.rank
                for candidate in self._result.candidates
                for found in candidate.provenance
                if (found.chunk_id, found.channel, found.query) == (self.chunk.pk, place.channel, place.query)
            ),
            None,
        )
        return given if given is None or given <= place.depth else max(given, exact or given)

    def _among_texts(self, channel: Channel, place: Place) -> Place:
        most = EVERY_CHUNK if channel.name in EXACT_KEYWORDS else TEXT_MATCHES
        found = channel.search(self._result.analysis.queries[place.query], most, time.monotonic() + SECONDS)
        if isinstance(found.lexicon, OkapiIndex):
            self._index = found.lexicon
        total = found.chunk_ids.size
        places = np.flatnonzero(found.chunk_ids == self.chunk.pk)
        if not places.size:
            return dataclasses.replace(place, total=total)
        rank, score = int(places[0]) + 1, float(found.scores[places[0]])
        read = rank if rank <= RANKS_A_CANDIDATE * place.depth else None
        return dataclasses.replace(place, rank=rank, channel_rank=read, score=score, total=total)

    # -- After the channels ----------------------------------------------------------------------------------------------
    def _dedupe(self) -> Step:
        if self._dropped is None or self._dropped.stage != "dedupe" or self._dropped.represented_by is None:
            return Step(Stage.DEDUPE, State.PASSED)
        chunk_id = self._dropped.represented_by
        stands = self._candidates.get(chunk_id)
        cut_by = stands.cut_by if stands else "vector_only"
        figures = {"chunk_id": chunk_id, "rank": self._ranks.get(chunk_id), "cut_by": cut_by}
        return Step(Stage.DEDUPE, State.LOST, Reason.DOUBLE, figures)

    def _cut_by(self, stage: Stage, reason: Reason, figures: Mapping[str, Any], note: Reason | None = None) -> Step:
        """A stage that has cut the candidate, for the reason, or let it pass, which a note may go with."""
        if self.candidate is not None and self.candidate.cut_by == str(stage):
            return Step(stage, State.LOST, reason, figures)
        return Step(stage, State.PASSED, note, figures)

    def _fusion(self) -> Step:
        if self.candidate is None:
            return Step(Stage.FUSION, State.LOST, Reason.VECTOR_ONLY)
        figures = {
            "rank": self.candidate.ranks["fused"],
            "score": self.candidate.scores["fused"],
            "depth": max(self._config.rerank_candidates, self._config.top_k) if self._config.use_rerank else None,
            "candidates": len(self._result.candidates),
        }
        return self._cut_by(Stage.FUSION, Reason.BEYOND_CUT, figures)

    def _rerank(self) -> Step:
        if not self._config.use_rerank:
            return Step(Stage.RERANK, State.NOT_ASKED, Reason.RERANKER_OFF)
        if self.candidate is None or "rerank" not in self.candidate.scores:
            return Step(Stage.RERANK, State.WEAKENED, Reason.NO_RERANKER)
        detail = next(span.detail for span in self._result.spans if span.stage == "rerank")
        figures = {
            "reranker": detail["reranker"],
            "rank": self.candidate.ranks["rerank"],
            "score": self.candidate.scores[RELEVANCE],
            "order": self.candidate.scores[ORDER],
            "candidates": detail["scored"],
        }
        return Step(Stage.RERANK, State.PASSED, figures=figures)

    def _gate(self) -> Step:
        score = self.candidate.scores.get(gated_stage(self._result)) if self.candidate else None
        figures = {"score": score, "threshold": self._result.threshold, "scale": self._result.score_scale}
        reason = Reason.NEAR_MISS if self.candidate and self.candidate.is_near_miss else Reason.BELOW
        return self._cut_by(Stage.GATE, reason, figures, None if figures["threshold"] else Reason.GATE_OPEN)

    def _parent(self) -> Step:
        if self.chunk.parent_id is None:
            return Step(Stage.PARENT, State.NOT_ASKED, Reason.NO_PARENT)
        if self.candidate is None or self.candidate.cut_by != CutBy.PARENT:
            return Step(Stage.PARENT, State.PASSED)
        figures = {"chunk_id": stands_for_parent(self._result.candidates, self.candidate)}
        return Step(Stage.PARENT, State.LOST, Reason.SAME_PARENT, figures)

    def _per_source(self) -> Step:
        if self._config.general_retrieval:
            return Step(Stage.PER_SOURCE, State.NOT_ASKED, Reason.NO_CAPS)
        kind = self.chunk.document.source_type
        cap = CAPS.get(kind, CAPS["book"])  # other kinds count as books
        before = [c.passage.source_type if c.passage else "book" for c in self._selected_before]
        place = sum(CAPS.get(each, CAPS["book"]) == cap for each in before) + 1
        figures = {"kind": kind, "cap": getattr(self._config, cap), "place": place}
        return self._cut_by(Stage.PER_SOURCE, Reason.CAP_FULL, figures)

    @property
    def _selected_before(self) -> list[Candidate]:
        """The candidates that the gate let pass and that stand before it."""
        before = takewhile(lambda candidate: candidate.chunk_id != self.chunk.pk, self._result.candidates)
        return [candidate for candidate in before if candidate.cut_by not in (CutBy.FUSION, CutBy.GATE, CutBy.PARENT)]


def why_not_found(principal: Principal, request: SearchRequest, chunk_id: int) -> WhyNot:
    """Runs a search, explained and kept out of the log, and follows one chunk through it.

    What the trace of the search does not hold is computed exactly, however deep the chunk stands. Raises NotVisible
    where the chunk, a knowledge base or the profile does not exist for this principal, and what `search` raises.
    """
    postings = ChunkPostings.objects.filter(chunk=OuterRef("pk")).values("tokenizer_id")
    vectors = ChunkEmbedding.objects.filter(chunk=OuterRef("pk"), kind=ChunkEmbedding.Kind.CONTENT).values("model")
    chunk: Chunk | None = (
        Chunk.objects.visible_to(principal)
        .select_related("document", "knowledge_base")
        .annotate(tokenized_by=ArraySubquery(postings), embedded_by=ArraySubquery(vectors))
        .filter(pk=chunk_id)
        .first()
    )
    if chunk is None:
        raise NotVisible(_("There is no chunk with the id %(id)s: look for it by its text.") % {"id": chunk_id})
    return WhyNot(principal, request, chunk, search(principal, dataclasses.replace(request, explain=True, log=False)))
