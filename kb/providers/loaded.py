"""The process's models, by the settings: each is made once, loaded at its first use, and guarded against hanging."""

import time
from collections.abc import Iterable, Sequence
from functools import lru_cache

from django.conf import settings

from kb.base.cache.query_caches import query_embedder
from retrieval.config import RetrievalConfig
from retrieval.embedders.registry import EmbedderOptions, get_embedder
from retrieval.errors import ChannelUnavailable, RerankerUnavailable
from retrieval.generation import OpenAIGenerator
from retrieval.protocols import Embedder, Reranker, Rewriter
from retrieval.query_vectors import QueryEmbedder
from retrieval.rerankers.cosine import CosineReranker
from retrieval.rerankers.cross_encoder import CrossEncoderReranker
from retrieval.rerankers.http import HttpReranker
from retrieval.rerankers.registry import get_cross_encoder
from retrieval.rewrite import LlmRewriter

LOAD_SECONDS = 120.0
"""How long a first search without a latency budget of its own waits for a model that is not loaded yet."""


def embedder(model_id: str) -> Embedder:
    """The embedder of a model; the model itself is loaded at its first use, once a process."""
    options = EmbedderOptions(base_url=settings.EMBEDDING_BASE_URL, api_key=settings.EMBEDDING_API_KEY)
    return get_embedder(model_id, options)


def query_vectors(model_id: str) -> QueryEmbedder:
    """The cached, guarded vectors of queries in a model's space."""
    return query_embedder(embedder(model_id))


def rerankers(config: RetrievalConfig, overlap: Reranker) -> Sequence[Reranker]:
    """The links of the chain that are configured, in the order of the profile."""
    links = {
        "cross_encoder": get_cross_encoder(settings.RERANKER_MODEL) if settings.RERANKER_MODEL else None,
        "http": _http_reranker() if settings.RERANK_BASE_URL else None,
        "cosine": CosineReranker(),
        "overlap": overlap,
    }
    return [link for name in config.rerankers if (link := links[name]) is not None]


def generator() -> OpenAIGenerator | None:
    """The language model; None where none is configured."""
    if not settings.LLM_API_KEY and not settings.LLM_BASE_URL_IS_SET:
        return None
    return _generator(settings.LLM_BASE_URL, settings.LLM_API_KEY, settings.LLM_MODEL)


def rewriter() -> Rewriter | None:
    """What rewrites queries; None where no language model is configured."""
    model = generator()
    return None if model is None else _rewriter(model)


def load(vectors: Iterable[QueryEmbedder], links: Iterable[Reranker]) -> tuple[str, ...]:
    """Loads the local models that are not loaded yet; one that cannot be loaded says so when it is searched.

    Returns:
        The ids of those that could not be loaded.
    """
    failed = []
    if (model := generator()) is not None:
        model.load()
    deadline = time.monotonic() + LOAD_SECONDS
    for each in vectors:
        try:
            each.load(deadline)
        except ChannelUnavailable:
            failed.append(each.model_id)
    for link in links:
        if isinstance(link, CrossEncoderReranker):
            try:
                link.load(deadline)
            except RerankerUnavailable:
                failed.append(link.model_id)
    return tuple(failed)


@lru_cache(maxsize=4)
def _generator(base_url: str, api_key: str, model: str) -> OpenAIGenerator:
    return OpenAIGenerator(base_url=base_url, api_key=api_key, model=model)


@lru_cache(maxsize=4)
def _rewriter(model: OpenAIGenerator) -> LlmRewriter:
    return LlmRewriter(model, timeout_s=settings.LLM_REWRITE_SECONDS)


def _http_reranker() -> HttpReranker:
    return _http_reranker_at(
        settings.RERANK_BASE_URL, settings.RERANK_API_KEY, settings.RERANK_MODEL, settings.RERANK_FORM
    )


@lru_cache(maxsize=4)
def _http_reranker_at(base_url: str, api_key: str, model: str, form: str) -> HttpReranker:
    return HttpReranker(base_url, api_key=api_key, model=model, form=form)
