"""The one wiring point: settings and a knowledge base's profile become a configuration and a pipeline."""

import logging
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from typing import Any, Final

import numpy as np
from django.conf import settings
from django.db import DatabaseError, connection, connections
from django.utils.translation import get_language, gettext_noop, override
from numpy.typing import NDArray

from kb.access.models import KnowledgeBase, Principal
from kb.base.db.transactions import ConnectionReturningExecutor
from kb.content.models import Chunk
from kb.graph.readers import KnowledgeGraph
from kb.index.bm25 import BM25Store
from kb.index.filters import Filters, chunk_ids
from kb.index.fulltext import PgTextStore
from kb.index.mirrors.registry import KEYWORD_STORES, MirroredKeywordStore, MirroredVectorStore
from kb.index.pgvector import PgVectorStore
from kb.index.vector_index import knowledge_bases_by_use, read_in
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import environment_config
from kb.providers import embedding_models
from kb.providers.embedding_models import TOKENIZERS_HELD, _load_tokenizer, tokenizer
from kb.providers.services import environment_models_sync
from kb.providers.usage.counting import counted_for
from kb.search.selectors import Holdings, PassageReader, holdings, searchable
from kb.sources.connectors.listing import web_client
from kb.sources.connectors.live import LIVE_KINDS, LiveSearch
from kb.sources.connectors.registry import owner_of
from kb.sources.external.services import provider_of
from kb.sources.models import SearchProvider
from retrieval.analysis import Analyser
from retrieval.channels import (
    BM25Channel,
    FullTextChannel,
    LexicalChannel,
    QuestionChannel,
    QuestionKeywordChannel,
    StoredKeywordChannel,
    UnavailableChannel,
    VectorChannel,
)
from retrieval.config import RetrievalConfig
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.errors import (
    ChannelUnavailable,
    Degradation,
    DegradationCode,
    DependencyMissing,
    Message,
    RetrievalError,
    ScopeOutdated,
    message_of,
)
from retrieval.execution import CircuitBreaker, InlineExecutor, Share
from retrieval.external import ExternalChannel
from retrieval.pipeline import Pipeline
from retrieval.protocols import (
    Channel,
    ExternalProvider,
    Fallback,
    QueryVectors,
    Reranker,
    Scope,
    Tokenizer,
    VectorStore,
)
from retrieval.query_vectors import QueryEmbedder, ScopedQueryEmbedder
from retrieval.rerankers.chain import RerankChain
from retrieval.rerankers.overlap import OverlapReranker
from retrieval.tokenize import JiebaTokenizer
from retrieval.types import Analysis, Result

WEB, EXTERNAL = "web", "external"
THREADS: Final = 16
THREADS_A_SOURCE: Final = 4
BREAKERS: Final = 1_000
CHANNEL_THREADS = 8
CONFIGURATIONS_HELD = 256
INDEX_SECONDS = 60.0
FIRST_QUERY_LENGTH = 40
# With fewer chunks than this, keywords have found next to nothing.
LEXICAL_BELOW = 3

logger = logging.getLogger(__name__)

# A setting's name, type and value: 1 and True are the same to a dictionary, and not to a setting.
Layer = tuple[tuple[str, type, Any], ...]


@lru_cache(maxsize=1)
def _threads() -> Executor:
    """Apart from those that wait for the database: a slow source must not take these from other searches."""
    return Share(ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="external"), THREADS)


@lru_cache(maxsize=BREAKERS)
def _share(stage: str, pk: int) -> Executor:  # noqa: ARG001 - each source has its own
    """Threads for one source, so that a slow one does not take those of all others."""
    return Share(_threads(), THREADS_A_SOURCE)


@lru_cache(maxsize=BREAKERS)
def _breaker(stage: str, pk: int, described: str) -> CircuitBreaker:  # noqa: ARG001 - another description is another source
    return CircuitBreaker()


class _Provider:
    """Answers for a source in another thread, and tells of its faults in the language of the request.

    Where the source is not set up as it must be, the search says why.
    """

    def __init__(self, source: SearchProvider) -> None:
        self.kind, self.name = source.kind, source.name
        self._language = get_language() or "en"
        self._found: ExternalProvider | ChannelUnavailable
        try:
            self._found = provider_of(source)
        except ChannelUnavailable as error:
            self._found = error

    def search(self, analysis: Analysis, k: int, deadline: float) -> Any:
        if isinstance(self._found, ChannelUnavailable):
            raise self._found
        with override(self._language):
            return self._found.search(analysis, k, deadline)


def left_out(
    kb: KnowledgeBase, held: Holdings, config: RetrievalConfig, *, is_filtered: bool
) -> tuple[Degradation, ...]:
    """Why the knowledge base's sources are not asked although the request did not leave them out; none where they are."""
    if not config.external or not (held.live or held.external) or (config.use_rerank and not is_filtered):
        return ()
    template = gettext_noop(
        "The live and external sources of “{name}” are left out: without a reranker only the results of the vector "
        "channel are given. Switch the reranker on to ask them."
    )
    if is_filtered:
        template = gettext_noop(
            "The live and external sources of “{name}” are left out: what they find has no tags or metadata that the "
            "filters could look at. Search without filters to ask them."
        )
    return (Degradation(EXTERNAL, DegradationCode.EXTERNAL_LEFT_OUT, Message(template, name=kb.name)),)


def external_channels(
    kb: KnowledgeBase,
    held: Holdings,
    config: RetrievalConfig,
    tokenizer: Tokenizer | None,
    vectors: QueryVectors | None,
) -> Iterator[ExternalChannel]:
    """A channel for each source that is switched on; one that cannot be asked says why when it is searched."""
    for source in held.live:
        if source.kind in LIVE_KINDS and tokenizer is not None:
            yield ExternalChannel(
                WEB,
                kb.pk,
                LiveSearch(source, kb, web_client(owner_of(source)), tokenizer, vectors=vectors),
                weight=config.external_weight,
                most=config.external_top_k,
                timeout_ms=config.external_timeout_ms,
                executor=_share(WEB, source.pk),
                breaker=_breaker(WEB, source.pk, source.url),
            )
    for external in held.external:
        yield ExternalChannel(
            EXTERNAL,
            kb.pk,
            _Provider(external),
            weight=config.external_weight if external.weight is None else external.weight,
            most=config.external_top_k,
            timeout_ms=external.timeout_ms,
            executor=_share(EXTERNAL, external.pk),
            breaker=_breaker(EXTERNAL, external.pk, repr(sorted(external.settings.items()))),
        )


@lru_cache(maxsize=1)
def _channel_threads() -> ConnectionReturningExecutor:
    return ConnectionReturningExecutor(max_workers=CHANNEL_THREADS, thread_name_prefix="channel")


def _configured(profile: RetrievalProfile, asked: Mapping[str, Any]) -> RetrievalConfig:
    """The configuration of a request under a profile; to validate it again each time would cost as much as to fuse."""
    layers = [
        tuple((name, type(value), tuple(value) if isinstance(value, list) else value) for name, value in layer.items())
        for layer in (settings.RETRIEVAL, profile.settings, asked)
    ]
    try:
        return _layered(*layers)
    except TypeError:  # a value that cannot be a key is none that a setting may have: say which
        return environment_config().override(profile.settings).override(asked)


@lru_cache(maxsize=CONFIGURATIONS_HELD)
def _layered(environment: Layer, profile: Layer, asked: Layer) -> RetrievalConfig:
    values, of_profile, of_request = (
        {name: value for name, _type, value in layer} for layer in (environment, profile, asked)
    )
    return RetrievalConfig(**values).override(of_profile).override(of_request)


def warm_up() -> None:
    """Loads the tokenizers and the models in use, so that no request waits for them; `warmth` says how far it is.

    Then, beside the first requests, the keyword indexes in use, and what of the database is read from a cold disk.
    """
    embedding_models.warmth = embedding_models.Warmth(is_loading=True)
    failed: tuple[str, ...] = ()
    try:
        for tokenizer_id in KnowledgeBase.objects.values_list("tokenizer_id", flat=True).distinct()[:TOKENIZERS_HELD]:
            if cutter := tokenizer(tokenizer_id):
                cutter("预热")
        models = KnowledgeBase.objects.values_list("embedding_model", flat=True).distinct()
        failed = embedding_models.load(
            map(embedding_models.query_vectors, models),
            embedding_models.rerankers(environment_config(), OverlapReranker({})),
        )
    finally:
        embedding_models.warmth = embedding_models.Warmth(failed=failed)
        connections.close_all()
    try:
        environment_models_sync()
        kb_ids = knowledge_bases_by_use()
        _load_keyword_indexes(kb_ids)
        _search_once(kb_ids)
        read_in()
    except DatabaseError as error:
        logger.warning("indexes are not read in, so the first searches take longer: %s", error)
    finally:
        connections.close_all()


def _load_keyword_indexes(kb_ids: Sequence[int]) -> None:
    """The stored ones of knowledge bases in this order, as far as the memory for them reaches."""
    left = settings.BM25_MEMORY_BYTES
    stored = KnowledgeBase.objects.filter(bm25_index__isnull=False).select_related("version_row").in_bulk()
    for kb_id in kb_ids:
        kb = stored.get(kb_id)
        if kb is None or tokenizer(kb.tokenizer_id) is None:
            continue
        try:
            requested = BM25Store().request(kb.pk, kb.version_row.version, kb.tokenizer_id)
            index = requested.wait(time.monotonic() + INDEX_SECONDS).index
        except (ChannelUnavailable, ScopeOutdated) as error:
            logger.warning("the keyword index of knowledge base %s is not loaded yet: %s", kb.pk, error)
            continue
        left -= index.nbytes
        if left < index.nbytes:  # one more might push out what is needed more
            return


def _search_once(kb_ids: Sequence[int]) -> None:
    """Searches the first of the knowledge bases that has a chunk, so that what a first search makes is there: connections, threads, tables."""
    for kb in KnowledgeBase.objects.filter(pk__in=kb_ids[:1]).select_related("owner"):
        chunk = Chunk.objects.filter(knowledge_base=kb, enabled=True).only("text").order_by("pk").first()
        if chunk is None or not chunk.text:
            return
        principal = Principal(kb.owner)
        try:
            bases = list(searchable(principal, [kb.pk]).values())
            wiring = build_pipeline(bases, principal, overrides={"external": False, "rewrite": "off"})
            wiring.pipeline.run(chunk.text[:FIRST_QUERY_LENGTH], wiring.config)
        except RetrievalError as error:
            logger.warning("the search that warms this process up failed: %s", error)


@dataclass(frozen=True, slots=True)
class Wiring:
    pipeline: Pipeline
    profile: RetrievalProfile
    config: RetrievalConfig
    vectors: tuple[QueryEmbedder, ...]
    links: tuple[Reranker, ...]

    @property
    def uses_external_sources(self) -> bool:
        """Whether results may change although no knowledge base does."""
        return any(isinstance(channel, ExternalChannel) for scope in self.pipeline.scopes for channel in scope.channels)

    def run(self, query: str, **options: Any) -> Result:
        """What the pipeline finds, with its configuration; what models are asked counts for its knowledge bases."""
        with counted_for(*(scope.kb_id for scope in self.pipeline.scopes)):
            return self.pipeline.run(query, self.config, **options)

    def load_models(self) -> None:
        """Loads the local models that are not loaded yet, for a caller that would rather wait than do without them."""
        embedding_models.load(self.vectors, self.links)


def vector_scope(kb_ids: Iterable[int]) -> str:
    """Under which the vectors of queries are cached.

    Whoever searches these knowledge bases may see what else was asked of them; of others, not even from a cache.
    """
    return ",".join(map(str, sorted(kb_ids))) + "\0"


def build_pipeline(
    knowledge_bases: Sequence[KnowledgeBase],
    principal: Principal,
    *,
    profile: RetrievalProfile | None = None,
    common: RetrievalProfile | None = None,
    overrides: Mapping[str, Any] | None = None,
    filters: Filters | None = None,
) -> Wiring:
    """Wires a pipeline over knowledge bases that `searchable` has read, for passages that a principal may see.

    A `profile` serves all of them; without one each searches by its own, and `common` (None: see `common_profile`)
    rules the stages after the fusion. Raises InvalidConfiguration where an override is unknown or out of range.
    """
    asked = explicit_count(overrides or {})
    common = profile or common or common_profile(knowledge_bases)
    config = _configured(common, asked)
    vectors = {kb.embedding_model: embedding_models.query_vectors(kb.embedding_model) for kb in knowledge_bases}
    asked_of = vector_scope(kb.pk for kb in knowledge_bases)
    scopes = tuple(
        _scope(
            kb,
            ScopedQueryEmbedder(vectors[kb.embedding_model], asked_of),
            config if profile or kb.profile == common else _configured(kb.profile, asked),
            None if filters is None else chunk_ids(kb.pk, principal, filters),
        )
        for kb in knowledge_bases
    )
    tokenizers = {scope.kb_id: scope.tokenizer for scope in scopes if scope.tokenizer}
    links = embedding_models.rerankers(config, OverlapReranker(tokenizers))
    with_concepts = tuple(kb.pk for kb in knowledge_bases if holdings(kb).concepts)
    with_facts = tuple(kb.pk for kb in knowledge_bases if holdings(kb).facts)
    pipeline = Pipeline(
        scopes=scopes,
        analyser=Analyser(
            tokenizers=tokenizers,
            concepts=KnowledgeGraph(principal) if with_concepts else None,
            concept_kb_ids=with_concepts,
            rewriter=embedding_models.rewriter(),
        ),
        passages=PassageReader(principal),
        chain=RerankChain(links),
        executor=InlineExecutor() if connection.in_atomic_block else _channel_threads(),
        facts=KnowledgeGraph(principal) if with_facts else None,
        fact_kb_ids=with_facts,
    )
    return Wiring(pipeline, common, config, tuple(vectors.values()), tuple(links))


def explicit_count(overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """A count that a request asks for wins over the final counts of environment and profile, also where kinds are capped."""
    if overrides.get("top_k") is None:
        return {name: value for name, value in overrides.items() if name != "top_k"}
    count = overrides["top_k"]
    return {"top_k": count, "rerank_top_k": count, "general_final_count": count, **overrides}


def common_profile(knowledge_bases: Sequence[KnowledgeBase]) -> RetrievalProfile:
    """The profile that all share; where they differ, the default one rules the stages after the fusion."""
    profiles = {kb.profile_id: kb.profile for kb in knowledge_bases}
    if len(profiles) == 1:
        return next(iter(profiles.values()))
    return RetrievalProfile.objects.live("default")


def _scope(
    kb: KnowledgeBase, vectors: ScopedQueryEmbedder, config: RetrievalConfig, only: NDArray[np.int64] | None
) -> Scope:
    held = holdings(kb)
    loaded = _load_tokenizer(kb.tokenizer_id)
    cutter = None if isinstance(loaded, DependencyMissing) else loaded
    # PostgreSQL holds the vectors in any case
    in_postgres = kb.store == KnowledgeBase.Store.POSTGRES
    store: VectorStore = PgVectorStore() if in_postgres else MirroredVectorStore(kb.store)
    fallback = None if in_postgres else PgVectorStore()
    with_questions = held.questions and bool(config.question_weight)
    channels: list[Channel] = [
        VectorChannel(
            kb.pk,
            vectors,
            store,
            fallback=fallback,
            dimension=kb.dimension,
            keyword_share=config.keyword_vector_share if held.keyword_vectors else 0.0,
            only=only,
            notes=(_hashing_note(kb),) if kb.embedding_model == HASHING_MODEL_ID else (),
        ),
        *_keyword_channels(kb, loaded, only, with_questions=with_questions),
    ]
    if with_questions:
        channels.append(QuestionChannel(kb.pk, vectors, store, fallback=fallback, dimension=kb.dimension, only=only))
    notes = left_out(kb, held, config, is_filtered=only is not None)
    # A server would have to embed texts from elsewhere while somebody waits.
    texts = None if embedding_models.is_served(kb.embedding_model) else vectors
    asked = () if notes or not config.external else external_channels(kb, held, config, cutter, texts)
    return Scope(
        kb_id=kb.pk,
        space=kb.embedding_model,
        tokenizer=cutter,
        channels=(*channels, *asked),
        config=config,
        fallbacks=_fallbacks(kb, config, only, has_tokenizer=cutter is not None),
        text_vectors=texts,
        notes=notes,
    )


def _fallbacks(
    kb: KnowledgeBase, config: RetrievalConfig, only: NDArray[np.int64] | None, *, has_tokenizer: bool
) -> tuple[Fallback, ...]:
    """Full text for a keyword index that cannot answer; n-grams where keywords find nothing or the embedder is out."""
    store = PgTextStore()
    fulltext = Fallback(FullTextChannel(kb.pk, kb.tokenizer_id, store, only=only), failed=frozenset({"bm25"}))
    lexical = Fallback(
        LexicalChannel(kb.pk, kb.tokenizer_id, store, only=only),
        failed=frozenset({"vector"}),
        short=frozenset({"bm25", "fts"}),
        below=LEXICAL_BELOW,
    )
    return tuple(compress((fulltext, lexical), (config.enable_fts and has_tokenizer, config.lexical_fallback)))


def _hashing_note(kb: KnowledgeBase) -> Degradation:
    template = gettext_noop(
        "Knowledge base “{name}” has no embedding model, so its vectors compare words, not meaning: choose a "
        "model in its settings, or run `manage.py reindex --kb {quoted} --embeddings --model ID`."
    )
    message = Message(template, name=kb.name, quoted=shlex.quote(kb.name))
    return Degradation("vector", DegradationCode.HASHING_EMBEDDER, message)


def _keyword_channels(
    kb: KnowledgeBase,
    cutter: JiebaTokenizer | DependencyMissing,
    only: NDArray[np.int64] | None,
    *,
    with_questions: bool,
) -> list[Channel]:
    if isinstance(cutter, DependencyMissing):
        template = gettext_noop("The keyword search’s packages are not installed: {reason}")
        message = Message(template, reason=message_of(cutter))
        return [UnavailableChannel("bm25", kb.pk, DegradationCode.BM25_DEPENDENCIES_MISSING, message)]
    if kb.tokenizer_id != cutter.id or kb.lacks_postings:
        template = gettext_noop(
            "Chunks of “{name}” were not tokenised, or by another version: run `manage.py reindex --kb {quoted} --bm25`."
        )
        message = Message(template, name=kb.name, quoted=shlex.quote(kb.name))
        return [UnavailableChannel("bm25", kb.pk, DegradationCode.BM25_POSTINGS_OUTDATED, message)]
    index = BM25Store().request(kb.pk, kb.version_row.version, cutter.id)
    detail: dict[str, Any] = {"tokenizer": cutter.id}
    if only is not None:
        detail["allowed_chunks"] = only.size
    if kb.target_tokenizer_id:
        detail["target_tokenizer"] = kb.target_tokenizer_id
    own = BM25Channel(kb.pk, index.wait, only=only, detail=detail)
    of_questions: list[Channel] = [QuestionKeywordChannel(kb.pk, index.wait, only=only)] if with_questions else []
    if kb.store not in KEYWORD_STORES:
        return [own, *of_questions]
    return [StoredKeywordChannel(MirroredKeywordStore(kb.store, kb.language), own, only=only), *of_questions]
