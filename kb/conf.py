"""The one wiring point: settings and a knowledge base's profile become a configuration and a pipeline."""

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db import connection, connections
from django.utils.translation import gettext as _

from kb.models import KnowledgeBase, Principal, RetrievalProfile
from kb.stores.bm25 import BM25Store
from kb.stores.passages import PassageReader
from kb.stores.pgvector import PgVectorStore
from kb.stores.threads import ConnectionReturningExecutor
from kb.stores.tokenizers import tokenizer_options
from retrieval.bm25 import BM25_UNAVAILABLE, require_dependencies
from retrieval.channels import BM25Channel, UnavailableChannel, VectorChannel
from retrieval.config import RetrievalConfig
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.embedders.registry import EmbedderOptions, get_embedder
from retrieval.errors import DependencyMissing, RetrievalError
from retrieval.execution import InlineExecutor
from retrieval.pipeline import Pipeline, Scope
from retrieval.protocols import Channel, Embedder
from retrieval.rerank import OverlapReranker
from retrieval.tokenize import JiebaTokenizer
from retrieval.trace import Degradation, DegradationCode

logger = logging.getLogger(__name__)

CHANNEL_THREADS = 8
TOKENIZERS_HELD = 8


@lru_cache(maxsize=1)
def _channel_threads() -> ConnectionReturningExecutor:
    return ConnectionReturningExecutor(max_workers=CHANNEL_THREADS, thread_name_prefix="channel")


@lru_cache(maxsize=TOKENIZERS_HELD)
def _load_tokenizer(tokenizer_id: str) -> JiebaTokenizer | DependencyMissing:
    try:
        require_dependencies()
        cutter = JiebaTokenizer(tokenizer_options(tokenizer_id))
        logger.debug("tokenizer %s serves %s", cutter.id, tokenizer_id or "new knowledge bases")
    except DependencyMissing as error:
        logger.warning("%s %s", BM25_UNAVAILABLE, error)
        return error
    return cutter


def load_tokenizer(tokenizer_id: str) -> JiebaTokenizer:
    """As `tokenizer`.

    Raises:
        DependencyMissing: a package that it needs is not installed.
    """
    loaded = _load_tokenizer(tokenizer_id)
    if isinstance(loaded, DependencyMissing):
        raise loaded
    return loaded


def tokenizer(tokenizer_id: str = "") -> JiebaTokenizer | None:
    """The tokenizer with the options of an id, under the rules of this version: its own id may be a newer one.

    Args:
        tokenizer_id: of a knowledge base; blank: that of new ones, with the default options.

    Returns:
        None, and one warning, where packages that it needs are missing.
    """
    loaded = _load_tokenizer(tokenizer_id)
    return None if isinstance(loaded, DependencyMissing) else loaded


def embedder(model_id: str) -> Embedder:
    """The embedder of a model; the model itself is loaded at its first use, once a process."""
    options = EmbedderOptions(base_url=settings.EMBEDDING_BASE_URL, api_key=settings.EMBEDDING_API_KEY)
    return get_embedder(model_id, options)


def environment_config() -> RetrievalConfig:
    return RetrievalConfig(**settings.RETRIEVAL)


def warm_up() -> None:
    """Loads the tokenizer and the models in use, so that no request waits for them."""
    try:
        for tokenizer_id in KnowledgeBase.objects.values_list("tokenizer_id", flat=True).distinct()[:TOKENIZERS_HELD]:
            if cutter := tokenizer(tokenizer_id):
                cutter("预热")
        for model_id in KnowledgeBase.objects.values_list("embedding_model", flat=True).distinct():
            try:
                embedder(model_id).embed_query("预热")
            except RetrievalError as error:
                logger.warning("%s", error)
    finally:
        connections.close_all()


@dataclass(frozen=True, slots=True)
class Wiring:
    """A pipeline with the profile and the resolved configuration it runs under."""

    pipeline: Pipeline
    profile: RetrievalProfile
    config: RetrievalConfig


def build_pipeline(
    knowledge_bases: Sequence[KnowledgeBase],
    principal: Principal,
    *,
    profile: RetrievalProfile | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Wiring:
    """Wires a pipeline.

    Args:
        knowledge_bases: in the caller's order, read through `visible_to`, with `profile` and `version_row`.
        principal: whose passages may be read.
        profile: serves all of them; None: each searches by its own.
        overrides: settings of this request, over any profile.

    Raises:
        InvalidConfiguration: an override is unknown or out of range.
    """
    overrides = overrides or {}
    environment = environment_config()
    common = profile or _common_profile(knowledge_bases)
    scopes = tuple(
        Scope(
            kb_id=kb.pk,
            space=kb.embedding_model,
            tokenizer=tokenizer(kb.tokenizer_id),
            channels=_channels(kb),
            config=environment.override((profile or kb.profile).settings).override(overrides),
        )
        for kb in knowledge_bases
    )
    tokenizers = {scope.kb_id: scope.tokenizer for scope in scopes if scope.tokenizer}
    pipeline = Pipeline(
        scopes=scopes,
        passages=PassageReader(principal),
        reranker=OverlapReranker(tokenizers) if tokenizers else None,
        executor=InlineExecutor() if connection.in_atomic_block else _channel_threads(),
    )
    return Wiring(pipeline, common, environment.override(common.settings).override(overrides))


def _common_profile(knowledge_bases: Sequence[KnowledgeBase]) -> RetrievalProfile:
    """The profile that all share; where they differ, the default one rules the stages after the fusion."""
    profiles = {kb.profile_id: kb.profile for kb in knowledge_bases}
    if len(profiles) == 1:
        return next(iter(profiles.values()))
    return RetrievalProfile.objects.filter(name="default").latest("version")


def _channels(kb: KnowledgeBase) -> tuple[Channel, ...]:
    notes = []
    if kb.embedding_model == HASHING_MODEL_ID:
        notes.append(
            Degradation(
                "vector",
                DegradationCode.HASHING_EMBEDDER,
                _(
                    "Knowledge base “%(name)s” uses the hashing embedder, which compares words, not meaning: choose an "
                    "embedding model and run `manage.py reindex --kb %(quoted)s --embeddings --model ID`."
                )
                % {"name": kb.name, "quoted": shlex.quote(kb.name)},
            )
        )
    return VectorChannel(kb.pk, embedder(kb.embedding_model), PgVectorStore(), notes), _keyword_channel(kb)


def _keyword_channel(kb: KnowledgeBase) -> Channel:
    cutter = _load_tokenizer(kb.tokenizer_id)
    if isinstance(cutter, DependencyMissing):
        message = _("The keyword search’s packages are not installed: %(reason)s") % {"reason": cutter}
        return UnavailableChannel("bm25", kb.pk, DegradationCode.BM25_DEPENDENCIES_MISSING, message)
    if kb.tokenizer_id != cutter.id or kb.lacks_postings:
        return UnavailableChannel(
            "bm25",
            kb.pk,
            DegradationCode.BM25_POSTINGS_OUTDATED,
            _(
                "Chunks of “%(name)s” were not tokenised, or by another version: run `manage.py reindex --kb %(quoted)s --bm25`."
            )
            % {"name": kb.name, "quoted": shlex.quote(kb.name)},
        )
    index = BM25Store().request(kb.pk, kb.version_row.version, cutter.id)
    detail = {"tokenizer": cutter.id}
    if kb.target_tokenizer_id:
        detail["target_tokenizer"] = kb.target_tokenizer_id
    return BM25Channel(kb.pk, index.wait, detail)
