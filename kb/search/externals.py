"""The live and external sources of a knowledge base as channels of a search: the part of the wiring that leaves the server."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Final

from django.utils.translation import get_language, gettext_noop, override

from kb.access.models.knowledge import KnowledgeBase
from kb.base.net.settings import web_client
from kb.search.searchable import Holdings
from kb.sources.connectors.live import LIVE_KINDS
from kb.sources.connectors.live_search import LiveSearch
from kb.sources.external.providers.kinds import provider_of
from kb.sources.models import SearchProvider
from retrieval.config import RetrievalConfig
from retrieval.embedders.openai_http import OPENAI_PREFIX
from retrieval.errors import ChannelUnavailable
from retrieval.execution import CircuitBreaker
from retrieval.external import ExternalChannel
from retrieval.messages import Message
from retrieval.protocols import ExternalProvider, TextVectors, Tokenizer
from retrieval.trace import Degradation, DegradationCode
from retrieval.types import Analysis

WEB, EXTERNAL = "web", "external"
THREADS: Final = 16
BREAKERS: Final = 1_000


@lru_cache(maxsize=1)
def _threads() -> Executor:
    """Apart from those that wait for the database: a slow source must not take these from other searches."""
    return ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="external")


@lru_cache(maxsize=BREAKERS)
def _breaker(stage: str, pk: int, described: str) -> CircuitBreaker:  # noqa: ARG001 - another description is another source
    return CircuitBreaker()


class _InLanguage:
    """A provider that tells of its faults in the language of the request, though it runs in another thread."""

    def __init__(self, provider: ExternalProvider, language: str) -> None:
        self.kind, self.name = provider.kind, provider.name
        self._provider = provider
        self._language = language

    def search(self, analysis: Analysis, k: int, deadline: float) -> Any:
        with override(self._language):
            return self._provider.search(analysis, k, deadline)


class _CannotBeAsked:
    """Stands where a source is not set up as it must be, so that the search says why."""

    def __init__(self, source: SearchProvider, error: ChannelUnavailable) -> None:
        self.kind, self.name = source.kind, source.name
        self._error = error

    def search(self, analysis: Analysis, k: int, deadline: float) -> Any:  # noqa: ARG002 - the protocol's signature
        raise self._error


def text_vectors(kb: KnowledgeBase, vectors: TextVectors) -> TextVectors | None:
    """What gives texts from elsewhere vectors; None where a server would have to make them while somebody waits."""
    return None if kb.embedding_model.startswith(OPENAI_PREFIX) else vectors


def left_out(
    kb: KnowledgeBase, held: Holdings, config: RetrievalConfig, *, is_filtered: bool
) -> tuple[Degradation, ...]:
    """Why the knowledge base's sources are not asked although the request did not leave them out; none where they are."""
    if not config.external or not (held.live or held.external):
        return ()
    if is_filtered:
        template = gettext_noop(
            "The live and external sources of “{name}” are left out: what they find has no tags or metadata that the "
            "filters could look at. Search without filters to ask them."
        )
    elif not config.use_rerank:
        template = gettext_noop(
            "The live and external sources of “{name}” are left out: without a reranker only the results of the vector "
            "channel are given. Switch the reranker on to ask them."
        )
    else:
        return ()
    return (Degradation(EXTERNAL, DegradationCode.EXTERNAL_LEFT_OUT, Message(template, name=kb.name)),)


def external_channels(
    kb: KnowledgeBase,
    held: Holdings,
    config: RetrievalConfig,
    tokenizer: Tokenizer | None,
    vectors: TextVectors | None,
) -> Iterator[ExternalChannel]:
    """A channel for each source that is switched on; one that cannot be asked says why when it is searched."""
    language = get_language() or "en"
    for source in held.live:
        if source.kind in LIVE_KINDS and tokenizer is not None:
            live = LiveSearch(source, kb, web_client(), tokenizer, vectors=vectors, language=language)
            yield ExternalChannel(
                WEB,
                kb.pk,
                live,
                weight=config.external_weight,
                most=config.external_top_k,
                timeout_ms=config.external_timeout_ms,
                executor=_threads(),
                breaker=_breaker(WEB, source.pk, source.url),
            )
    for external in held.external:
        yield _external_channel(kb, external, config, language)


def _external_channel(
    kb: KnowledgeBase, source: SearchProvider, config: RetrievalConfig, language: str
) -> ExternalChannel:
    try:
        provider: ExternalProvider = _InLanguage(provider_of(source), language)
    except ChannelUnavailable as error:
        provider = _CannotBeAsked(source, error)
    return ExternalChannel(
        EXTERNAL,
        kb.pk,
        provider,
        weight=config.external_weight if source.weight is None else source.weight,
        most=config.external_top_k,
        timeout_ms=source.timeout_ms,
        executor=_threads(),
        breaker=_breaker(EXTERNAL, source.pk, repr(sorted(source.settings.items()))),
    )
