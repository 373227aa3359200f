"""What a remedy would change: the search runs again as if it had been applied, and nothing is written."""

import copy
import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from django.conf import settings
from django.utils.translation import gettext as _
from numpy.typing import NDArray

from kb.base.errors import NotVisible
from kb.content.models import Chunk
from kb.index.filters import Filters
from kb.index.fulltext import LEAST_SHARE, MAX_NGRAMS, PgTextStore
from kb.index.services.writing import searchable_text_of
from kb.profiles.models import RetrievalProfile
from kb.providers import embedding_models
from kb.quality.why_not.services.places import Effect, Remedy, RemedyCode, Stage, stage_text
from kb.quality.why_not.services.walk import WhyNot
from kb.search.services.search import SearchOutcome, SearchRequest, scope_of
from kb.search.wiring import Wiring, build_pipeline
from retrieval.analysis import Analyser
from retrieval.channels import (
    BM25Channel,
    LoadedIndex,
    QuestionChannel,
    QuestionKeywordChannel,
    StoredKeywordChannel,
    VectorChannel,
)
from retrieval.dictionary import DictionaryWord
from retrieval.errors import DegradationCode, RetrievalError
from retrieval.postings import count_postings, ngrams
from retrieval.protocols import Channel, PassageStore, Scope
from retrieval.query_vectors import MOST_CHARACTERS
from retrieval.rerankers.chain import RerankChain
from retrieval.rerankers.overlap import OverlapReranker
from retrieval.tokenize import JiebaTokenizer
from retrieval.types import Analysis, Passage, Ranking, Rewritten

MOST_TRIALS = 6
# All trials together take no longer; a reranker on CPU needs one or two seconds for each.
TRIAL_SECONDS = 6.0
# A trial that had too little time for something says nothing about its remedy.
TIMEOUTS = frozenset(
    {DegradationCode.CHANNEL_TIMEOUT, DegradationCode.EMBEDDER_TIMEOUT, DegradationCode.RERANKER_TIMEOUT}
)
# A word that more chunks hold is not tried: all of them are tokenised for it.
MOST_TOKENIZED = 500
# An explicit `top_k` of a request sets all three.
OF_COUNTS = frozenset({"top_k", "rerank_top_k", "general_final_count"})

Row = tuple[int, bytes, bytes, int]


def profile_in_force(why: WhyNot) -> RetrievalProfile:
    """The profile that ruled where the chunk was lost: the channels search by that of its knowledge base."""
    if why.verdict.stage is not Stage.CHANNELS or why.request.profile:
        return why.outcome.wiring.profile
    return next(kb.profile for kb in why.outcome.knowledge_bases if kb.pk == why.chunk.knowledge_base_id)


def overrides_under(why: WhyNot, remedy: Remedy) -> dict[str, Any]:
    """The request's own settings without those that the remedy's draft sets."""
    given_up = remedy.settings.keys() | (OF_COUNTS if remedy.settings.keys() & OF_COUNTS else frozenset())
    return {name: value for name, value in why.request.overrides.items() if name not in given_up}


def changed_request(why: WhyNot, remedy: Remedy) -> SearchRequest:
    asked: Any = remedy.request
    filters = None if asked["filters"] is None else Filters.parse(asked["filters"])
    return dataclasses.replace(why.request, knowledge_base_ids=asked["knowledge_base_ids"], filters=filters)


@dataclass(frozen=True, slots=True)
class _Rewriter:
    """Has rewritten the query before, and asks no chat model again."""

    known: Analysis

    def rewrite(self, *_args: Any) -> Rewritten:
        return Rewritten(self.known.text, tuple(each.text for each in self.known.sub_queries))


@dataclass(frozen=True, slots=True)
class _Analysed(Analyser):
    """Has analysed the query before: a chat model may rewrite it otherwise the next time."""

    known: Analysis = field(default_factory=partial(Analysis, ""))

    def analyse(self, *_args: Any, **_kwargs: Any) -> Any:
        return self.known, (), False


@dataclass(frozen=True, slots=True)
class _Also:
    """A channel that finds a chunk too, with the best of what it knows of it and what would be, by text of a query."""

    channel: Channel
    chunk_id: int
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.channel.name

    @property
    def kb_id(self) -> int:
        return self.channel.kb_id

    @property
    def in_memory(self) -> bool:
        return self.channel.in_memory

    def search(self, analysis: Analysis, k: int, deadline: float) -> Ranking:
        ranking = self.channel.search(analysis, k, deadline)
        own = self.scores.get(analysis.text, np.nan)
        if ranking.score is not None:  # exact ones know chunks that are switched off too
            own = float(np.fmax(own, ranking.score(np.array([self.chunk_id]))[0]))
        if np.isnan(own):
            return ranking
        others = ranking.chunk_ids != self.chunk_id
        chunk_ids = np.append(ranking.chunk_ids[others], self.chunk_id)
        scores = np.append(ranking.scores[others], own)
        best = np.lexsort((chunk_ids, -scores))[:k]

        def exact(wanted: NDArray[np.int64]) -> NDArray[np.float64]:
            known = np.full(wanted.size, np.nan) if ranking.score is None else ranking.score(wanted)
            return np.where(wanted == self.chunk_id, own, known)

        score = None if ranking.score is None else exact
        return dataclasses.replace(ranking, chunk_ids=chunk_ids[best], scores=scores[best], score=score)


@dataclass(frozen=True, slots=True)
class _PassagesAlso:
    """Passages, and that of a chunk which may be switched off."""

    store: PassageStore
    passage: Passage

    def fetch(self, chunk_ids: Sequence[int]) -> Mapping[int, Passage]:
        own = {self.passage.chunk_id: self.passage} if self.passage.chunk_id in chunk_ids else {}
        return {**self.store.fetch(chunk_ids), **own}

    def neighbours(self, passages: Sequence[Passage], count: int) -> Mapping[int, tuple[Passage, ...]]:
        return self.store.neighbours(passages, count)

    def parents(self, passages: Sequence[Passage]) -> Mapping[int, Passage]:
        return self.store.parents(passages)


class Trials:
    """Runs a search again as if remedies had been applied, for as many of them as there is time.

    It could apply them in a transaction that is rolled back. But then whoever may only read would take a knowledge
    base's lock, with a reranker running while it is held. So a draft is a profile that is not saved, and what would be
    written of chunks is put before the stores, in memory. A search that asks sources elsewhere is not run again: every
    trial would be sent to them.
    """

    def __init__(self, why: WhyNot) -> None:
        self._why = why
        self._left = MOST_TRIALS
        self._end = time.monotonic() + TRIAL_SECONDS

    def run(self, remedy: Remedy) -> WhyNot | None:
        """The chunk's way through the search after a remedy, without its places; None where it is not tried.

        What takes more than this chunk, a worker or a server, is never tried.
        """
        if not self._left or time.monotonic() > self._end:
            return None
        trial = {
            RemedyCode.DRAFT: self._under_draft,
            RemedyCode.CHANGE_REQUEST: self._searched_otherwise,
            RemedyCode.ADD_QUESTION: self._with_question,
            RemedyCode.ADD_WORD: self._with_word,
            RemedyCode.ENABLE: self._indexed,
            RemedyCode.INDEX_CHUNK: self._indexed,
        }.get(remedy.code)
        if trial is None:
            return None
        self._left -= 1
        try:
            return trial(remedy)
        except (RetrievalError, NotVisible):
            return None

    def _under_draft(self, remedy: Remedy) -> WhyNot | None:
        base = profile_in_force(self._why)
        draft = RetrievalProfile(name=base.name, version=0, settings={**base.settings, **remedy.settings})
        request = dataclasses.replace(self._why.outcome.request, overrides=overrides_under(self._why, remedy))
        wiring = build_pipeline(
            self._why.outcome.knowledge_bases,
            self._why.principal,
            profile=draft,
            overrides=request.overrides,
            filters=request.filters,
        )
        return self._searched(wiring, request)

    def _searched_otherwise(self, remedy: Remedy) -> WhyNot | None:
        changed = changed_request(self._why, remedy)
        request = dataclasses.replace(changed, query=self._why.outcome.request.query)
        scope = scope_of(self._why.principal, request)
        wiring = build_pipeline(
            scope.knowledge_bases,
            self._why.principal,
            profile=None if request.own_profiles else scope.named,
            common=scope.ruling,
            overrides=request.overrides,
            filters=request.filters,
        )
        bases = scope.knowledge_bases if request.knowledge_base_ids != self._why.request.knowledge_base_ids else None
        return self._searched(wiring, request, bases=bases)

    def _with_question(self, remedy: Remedy) -> WhyNot | None:
        """The chunk has one question more: in its passage, and in both channels of questions, which may be the first."""
        scope, vector = self._why.scope, self._vector_channel()
        if scope is None or scope.tokenizer is None or vector is None:
            return None
        chunk = copy.copy(self._why.chunk)
        chunk.questions = [*chunk.questions, remedy.suggestions[0]]
        channels = list(scope.channels)
        if scope.config.question_weight and not any(each.name == QuestionChannel.name for each in channels):
            # As the wiring makes them for a knowledge base whose chunks have questions.
            given = {each.name: getattr(vector, each.name) for each in dataclasses.fields(vector) if each.init}
            channels.append(QuestionChannel(**given | {"keyword_share": 0.0, "notes": ()}))
            if keywords := next((each for each in channels if isinstance(each, BM25Channel)), None):
                channels.append(QuestionKeywordChannel(keywords.kb_id, keywords.wait_for_index, only=keywords.only))
        scores = self._cosines(vector, remedy.suggestions[0])
        also = [_Also(each, chunk.pk, scores) if each.name == QuestionChannel.name else each for each in channels]
        changed = _with_index(dataclasses.replace(scope, channels=tuple(also)), (), (), [chunk])
        return self._searched(self._rewired(changed, _passage_of(chunk)), chunk=chunk)

    def _indexed(self, remedy: Remedy) -> WhyNot | None:
        """The chunk is switched on as it is, or its terms and vectors are made again."""
        why, scope, vector = self._why, self._why.scope, self._vector_channel()
        text = searchable_text_of(why.chunk)
        # Which filters a chunk passes that is switched off is not known.
        is_hidden = not why.chunk.enabled and why.request.filters is not None
        if scope is None or scope.tokenizer is None or vector is None or is_hidden or len(text) > MOST_CHARACTERS:
            return None
        chunk = copy.copy(why.chunk)
        chunk.enabled = True
        cosines: Mapping[str, float] = {}
        if remedy.code is RemedyCode.INDEX_CHUNK:
            chunk.tokenized_by, chunk.embedded_by = [why.kb.tokenizer_id], [why.kb.embedding_model]
            cosines = self._cosines(vector, text)
            if vector.keyword_share and chunk.keywords:
                of_keywords, share = self._cosines(vector, " ".join(chunk.keywords)), vector.keyword_share
                cosines = {query: (1 - share) * each + share * of_keywords[query] for query, each in cosines.items()}
        rows: list[Row] = []
        shares: Mapping[str, float] = {}
        if why.kb.tokenizer_id in chunk.tokenized_by:
            rows, shares = [_row(chunk.pk, scope.tokenizer(text))], self._shares(text)
        known = {"vector": cosines, "lexical": shares}

        def also(channel: Channel) -> Channel:
            is_of_words = channel.name in (BM25Channel.name, QuestionKeywordChannel.name, "fts")
            return channel if is_of_words else _Also(channel, chunk.pk, known.get(channel.name, {}))

        if not self._has_own_index(scope):
            return None
        changed = _with_index(scope, rows, [scope.tokenizer.simplify(text)], [chunk]) if rows else scope
        fallbacks = (dataclasses.replace(each, channel=also(each.channel)) for each in changed.fallbacks)
        changed = dataclasses.replace(changed, channels=tuple(map(also, changed.channels)), fallbacks=tuple(fallbacks))
        return self._searched(self._rewired(changed, _passage_of(chunk)), chunk=chunk)

    def _with_word(self, remedy: Remedy) -> WhyNot | None:
        """The chunks that hold the word are tokenised with it, and so is the query; to others the word is nothing."""
        why, scope, [word, *_others] = self._why, self._why.scope, remedy.suggestions
        is_rewritten = any("rewritten" in span.detail for span in why.outcome.result.spans)
        if (
            scope is None
            or not isinstance(scope.tokenizer, JiebaTokenizer)
            or is_rewritten
            or why.kb.target_tokenizer_id
        ):
            return None
        chunk_ids, shares = PgTextStore().search_ngrams(scope.kb_id, why.kb.tokenizer_id, word, MOST_TOKENIZED + 1)
        if chunk_ids.size > MOST_TOKENIZED:
            return None
        options = scope.tokenizer.options
        cutter = JiebaTokenizer(dataclasses.replace(options, dictionary=(*options.dictionary, DictionaryWord(word))))
        holding = Chunk.objects.filter(pk__in=chunk_ids[shares >= 1.0].tolist()).select_related("document")
        rows = [_row(chunk.pk, cutter(searchable_text_of(chunk))) for chunk in holding]
        if not self._has_own_index(scope):
            return None
        asked = [chunk for chunk in holding if chunk.questions]
        wiring = self._rewired(_with_index(dataclasses.replace(scope, tokenizer=cutter), rows, (), asked))
        tokenizers = {each.kb_id: each.tokenizer for each in wiring.pipeline.scopes if each.tokenizer}
        links = embedding_models.rerankers(wiring.config, OverlapReranker(tokenizers))
        analyser = dataclasses.replace(wiring.pipeline.analyser, tokenizers=tokenizers)
        pipeline = dataclasses.replace(wiring.pipeline, analyser=analyser, chain=RerankChain(links))
        return self._searched(dataclasses.replace(wiring, pipeline=pipeline), bases=why.outcome.knowledge_bases)

    # -- What the trials have in common ----------------------------------------------------------------------------------
    def _searched(
        self,
        wiring: Wiring,
        request: SearchRequest | None = None,
        *,
        chunk: Chunk | None = None,
        bases: tuple[Any, ...] | None = None,
    ) -> WhyNot | None:
        """Without knowledge bases it searches those of the search before, for the query as it was analysed there.

        For others the query is analysed again, as it was rewritten there. None where too little time was left.
        """
        left = self._end - time.monotonic()
        if wiring.uses_external_sources or left <= 0:
            return None
        before, asked = self._why.outcome, request or self._why.outcome.request
        known = before.result.analysis
        rewriter: Any = _Rewriter(known)
        analyser = dataclasses.replace(wiring.pipeline.analyser, rewriter=rewriter)
        pipeline = dataclasses.replace(
            wiring.pipeline, facts=None, analyser=analyser if bases else _Analysed({}, known=known)
        )
        result = pipeline.run(
            asked.query,
            wiring.config,
            history=asked.history,
            explain=True,
            latency_budget=min(left, (asked.latency_budget_ms or settings.LATENCY_BUDGET_MS) / 1_000),
        )
        late, were_late = ({each.code for each in found.degraded} & TIMEOUTS for found in (result, before.result))
        if late - were_late:
            return None
        outcome = SearchOutcome(asked, result, wiring, bases or before.knowledge_bases, before.trace_id)
        return WhyNot(self._why.principal, asked, chunk or self._why.chunk, outcome, asks_channels=False)

    def _rewired(self, scope: Scope, passage: Passage | None = None) -> Wiring:
        wiring = self._why.outcome.wiring
        pipeline = wiring.pipeline
        scopes = tuple(scope if each.kb_id == scope.kb_id else each for each in pipeline.scopes)
        passages = pipeline.passages if passage is None else _PassagesAlso(pipeline.passages, passage)
        return dataclasses.replace(wiring, pipeline=dataclasses.replace(pipeline, scopes=scopes, passages=passages))

    def _has_own_index(self, scope: Scope) -> bool:
        """Whether its keyword index is no server's, and has answered."""
        has_failed = any("error" in span.detail for span in self._why.outcome.result.spans)
        return not has_failed and not any(isinstance(each, StoredKeywordChannel) for each in scope.channels)

    def _vector_channel(self) -> VectorChannel | None:
        channels: Iterable[Channel] = self._why.scope.channels if self._why.scope else ()
        return next((each for each in channels if isinstance(each, VectorChannel) and each.name == "vector"), None)

    def _cosines(self, channel: VectorChannel, text: str) -> dict[str, float]:
        """Of a text that is no chunk, by text of a query; raises ChannelUnavailable."""
        queries = [each.text for each in self._why.outcome.result.analysis.queries]
        return {query: float(channel.vectors.similarities(query, [text], self._end)[0]) for query in queries}

    def _shares(self, text: str) -> dict[str, float]:
        """What `search_ngrams` would find of a text, by text of a query."""
        held, shares = set(ngrams(text)), {}
        for query in self._why.outcome.result.analysis.queries:
            wanted = ngrams(query.text)[:MAX_NGRAMS]
            share = sum(gram in held for gram in wanted) / max(len(wanted), 1)
            if share >= LEAST_SHARE:
                shares[query.text] = share
        return shares


def _with_index(scope: Scope, rows: Sequence[Row], texts: Sequence[str], asked: Sequence[Chunk]) -> Scope:
    """With other postings of chunks, further texts whose characters count, and other questions of chunks."""
    cutter: Any = scope.tokenizer
    questions = [(chunk.pk, [count_postings(cutter(each)).packed for each in chunk.questions]) for chunk in asked]

    made: list[LoadedIndex] = []  # one index for all channels that search it

    def changed(channel: BM25Channel | QuestionKeywordChannel, deadline: float) -> LoadedIndex:
        if not made:
            loaded = channel.wait_for_index(deadline)
            index = loaded.index.with_rows(rows) if rows else loaded.index
            characters = loaded.characters.with_texts(texts) if texts and loaded.characters else loaded.characters
            asked_for = loaded.questions.with_rows(questions) if questions and loaded.questions else loaded.questions
            made.append(dataclasses.replace(loaded, index=index, characters=characters, questions=asked_for))
        return made[0]

    channels = (
        dataclasses.replace(each, wait_for_index=partial(changed, each))
        if isinstance(each, (BM25Channel, QuestionKeywordChannel))
        else each
        for each in scope.channels
    )
    return dataclasses.replace(scope, channels=tuple(channels))


def _row(chunk_id: int, terms: Sequence[str]) -> Row:
    postings = count_postings(terms)
    return chunk_id, postings.terms_bytes, postings.frequencies_bytes, postings.length


def _passage_of(chunk: Chunk) -> Passage:
    document = chunk.document
    return Passage(
        chunk.pk,
        chunk.document_id,
        chunk.knowledge_base_id,
        document.title,
        document.source,
        chunk.page,
        chunk.text,
        tuple(chunk.heading_path),
        {**document.metadata, "source_type": document.source_type, "tags": document.tags},
        document.source_type,
        chunk.position,
        chunk.parent_id,
        questions=tuple(chunk.questions),
        seconds=chunk.seconds,
    )


def effect_of(before: WhyNot, after: WhyNot) -> Effect | None:
    """What differs for the chunk; None where it is no nearer to the results: it must at least become a candidate."""
    stage = after.verdict.stage
    stages = list(Stage)
    reached = stages.index(stage) - stages.index(before.verdict.stage)
    is_nearer = reached > 0 or (reached == 0 and _is_nearer(before, after))
    if not is_nearer or stages.index(stage) <= stages.index(Stage.CHANNELS):
        return None
    if after.rank is not None:
        count = len(after.outcome.result.hits)
        text = _("It would be result %(rank)s of %(count)s.") % {"rank": after.rank, "count": count}
    else:
        text = _("It would still be lost at the stage “%(stage)s”: %(sentence)s")
        text %= {"stage": stage_text(stage), "sentence": after.verdict.sentence}
        places = {"before": before.place, "after": after.place}
        if before.place is None and after.place is not None:
            text = " ".join([_("It would become a candidate, at place %(after)s.") % places, text])
        elif before.place != after.place:
            climb = _("Its place among the candidates would go from %(before)s to %(after)s.") % places
            text = " ".join([climb, text])
    return Effect(after.rank is not None, stage, before.place, after.rank or after.place, text)


def _is_nearer(before: WhyNot, after: WhyNot) -> bool:
    """At the same stage: it is a near miss, stands before, or misses the threshold by less that a reader sees."""
    was_near, is_near = (bool(each.candidate and each.candidate.is_near_miss) for each in (before, after))
    if was_near != is_near:
        return is_near
    if before.place and after.place and after.place < before.place:
        return True
    missed = [each.verdict.figures for each in (before, after)]
    if after.verdict.stage is not Stage.GATE:
        return False
    was, now = (round(each["threshold"] - each["score"], 4) for each in missed)
    return bool(now < was)
