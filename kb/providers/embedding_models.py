"""The models of this process by its settings, which of them a caller may choose, and how far their loading is."""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from django.conf import settings
from django.utils.translation import gettext as _

from kb.base.cache import query_embedder
from kb.base.errors import Rejected
from kb.providers.models import TokenizerSettings
from kb.providers.recommended import MANY, MODELS, Role, Size, models_of
from retrieval.bm25 import BM25_UNAVAILABLE, require_dependencies
from retrieval.config import RetrievalConfig
from retrieval.dictionary import parse_dictionary, parse_stop_words
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.embedders.openai_http import OPENAI_PREFIX
from retrieval.embedders.registry import get_embedder, normalize_model_id
from retrieval.errors import ChannelUnavailable, DependencyMissing, RerankerUnavailable
from retrieval.generation import OpenAIGenerator
from retrieval.model_files import installed_path, libraries_available, local_path
from retrieval.protocols import Embedder, Reranker
from retrieval.query_vectors import QueryEmbedder
from retrieval.rerankers.chain import CosineReranker
from retrieval.rerankers.cross_encoder import CrossEncoderReranker, HttpReranker, get_cross_encoder
from retrieval.rewrite import LlmRewriter
from retrieval.tokenize import Engine, JiebaTokenizer, TokenizerOptions

logger = logging.getLogger(__name__)

# How long a first search without a latency budget of its own waits for a model that is not loaded yet.
LOAD_SECONDS = 120.0


def embedder(model_id: str) -> Embedder:
    """The embedder of a model; the model itself is loaded at its first use, once a process."""
    return get_embedder(model_id, settings.EMBEDDING_BASE_URL, settings.EMBEDDING_API_KEY)


def query_vectors(model_id: str) -> QueryEmbedder:
    """The cached, guarded vectors of queries in a model's space."""
    return query_embedder(embedder(model_id))


def rerankers(config: RetrievalConfig, overlap: Reranker) -> Sequence[Reranker]:
    """The links of the chain that are configured, in the order of the profile."""
    links = {
        "cross_encoder": get_cross_encoder(settings.RERANKER_MODEL) if settings.RERANKER_MODEL else None,
        "http": _rerank_server(
            settings.RERANK_BASE_URL, settings.RERANK_API_KEY, settings.RERANK_MODEL, form=settings.RERANK_FORM
        )
        if settings.RERANK_BASE_URL
        else None,
        "cosine": CosineReranker(),
        "overlap": overlap,
    }
    return [link for name in config.rerankers if (link := links[name]) is not None]


def generator() -> OpenAIGenerator | None:
    """The language model; None where none is configured."""
    if not settings.LLM_API_KEY and not settings.LLM_BASE_URL_IS_SET:
        return None
    return _generator(base_url=settings.LLM_BASE_URL, api_key=settings.LLM_API_KEY, model=settings.LLM_MODEL)


def vision_model() -> OpenAIGenerator | None:
    """The model that describes pictures, on the language model's server; None where none is named."""
    if not settings.VISION_MODEL:
        return None
    return _generator(base_url=settings.LLM_BASE_URL, api_key=settings.LLM_API_KEY, model=settings.VISION_MODEL)


def rewriter() -> LlmRewriter | None:
    """What rewrites queries; None where no language model is configured."""
    model = generator()
    return None if model is None else _rewriter(model, timeout_s=settings.LLM_REWRITE_SECONDS)


def load(vectors: Iterable[QueryEmbedder], links: Iterable[Reranker]) -> tuple[str, ...]:
    """Loads the local models that are not loaded yet, and returns the ids of those that cannot be: a search says so."""
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


# One a process for each set of settings.
_generator = lru_cache(maxsize=4)(OpenAIGenerator)
_rewriter = lru_cache(maxsize=4)(LlmRewriter)
_rerank_server = lru_cache(maxsize=4)(HttpReranker)


def recommended_embedding_models(language: str, size: Size | None = None) -> list[str]:
    """What to download for a knowledge base that has no model yet, the best first.

    EMBEDDING_MODEL, unless it is hashing or a recommended model of one language: then those of this language, of the
    size of that one where none is asked for.
    """
    configured: str = settings.EMBEDDING_MODEL
    known = next((each for each in MODELS if each.model_id == configured), None)
    if configured != HASHING_MODEL_ID and (known is None or MANY in known.languages):
        return [configured]
    size = size or (known.size if known else Size.LARGE)
    fitting = [each.model_id for each in models_of(Role.EMBEDDING, language, size) if _is_allowed(each.model_id)]
    return fitting or [configured]


def default_embedding_model() -> str:
    """The configured model where it can run here, else the hashing embedder, chosen knowingly."""
    configured: str = settings.EMBEDDING_MODEL
    if configured == HASHING_MODEL_ID or configured.startswith(OPENAI_PREFIX):
        return configured
    return configured if libraries_available() and local_path(configured) is not None else HASHING_MODEL_ID


def offered_embedding_models(used: Iterable[str] = ()) -> list[str]:
    """What a form suggests: the default, those that are `used`, that the operator names or that are here, and hashing."""
    named = [each for each in settings.EMBEDDING_MODELS_ALLOWED if "*" not in each]
    here = [each.model_id for each in MODELS if each.role == Role.EMBEDDING and installed_path(each.model_id)]
    offered = dict.fromkeys([default_embedding_model(), *used, *named, *here, HASHING_MODEL_ID])
    return [model for model in offered if _is_allowed(model)]


def require_embedding_model(model_id: str) -> str:
    """The one spelling of a model that a caller over the network may choose, and that can run here.

    EMBEDDING_MODEL and hashing always may be. Beyond them EMBEDDING_MODELS_ALLOWED says which; where it is empty, those
    that are installed under an id and those of EMBEDDING_BASE_URL. A path is taken from these settings only, and nothing
    is downloaded. One that may not be chosen, or cannot run here, is Rejected; the message says who can do what.
    """
    name = model_id.strip()
    if name != settings.EMBEDDING_MODEL:
        if _is_path(name) and name not in settings.EMBEDDING_MODELS_ALLOWED:
            message = _(
                "Name an embedding model by its id: paths stand in EMBEDDING_MODEL and EMBEDDING_MODELS_ALLOWED only."
            )
            raise Rejected("unknown_model", message)
        name = _normalized(model_id)
    if not _is_allowed(name):
        message = _(
            "“%(model)s” is not among the models that may be used here: choose a suggested one, or let whoever runs the "
            "server add it to EMBEDDING_MODELS_ALLOWED."
        )
        raise Rejected("unknown_model", message, model=name)
    if problem := _problem(name):
        raise Rejected("unknown_model", problem, model=name)
    return name


def _is_allowed(name: str) -> bool:
    if name in {HASHING_MODEL_ID, settings.EMBEDDING_MODEL}:
        return True
    patterns: list[str] = settings.EMBEDDING_MODELS_ALLOWED
    return not patterns or any(fnmatchcase(name, each) or name == _normalized(each) for each in patterns)


def _problem(name: str) -> str:
    """Why an allowed model cannot run here, and the remedy; blank: it can."""
    if name == HASHING_MODEL_ID:
        return ""
    if name.startswith(OPENAI_PREFIX):
        if settings.EMBEDDING_BASE_URL:
            return ""
        return _("Models behind an OpenAI-compatible server need its address: set EMBEDDING_BASE_URL and restart.")
    if not libraries_available():
        return _(
            "Local models need packages that are not installed: run “pip install 'zhiku[models]'”, or use hashing."
        )
    find = local_path if name == settings.EMBEDDING_MODEL or _is_path(name) else installed_path
    if find(name) is None:
        return _(
            "The weights of “%(model)s” are not on this server: run “manage.py download_model %(model)s” there and save "
            "again, or use one of the suggested models."
        )
    return ""


def _is_path(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or ".." in name


def _normalized(model_id: str) -> str:
    try:
        return normalize_model_id(model_id)
    except ValueError as error:
        raise Rejected("unknown_model", str(error)) from error


@dataclass(frozen=True, slots=True)
class Warmth:
    """Where the loading stands; without those models that have `failed`, by their ids, searches go on, and say so."""

    is_loading: bool = False
    failed: tuple[str, ...] = ()


# Of this process, as the models are; who loads them sets it.
warmth = Warmth()

TOKENIZERS_HELD = 8


def tokenizer_options(tokenizer_id: str) -> TokenizerOptions:
    """The options that made an id; the default ones for an id that no settings are stored for."""
    row = TokenizerSettings.objects.filter(tokenizer_id=tokenizer_id).first()  # all of one id mean the same
    return TokenizerOptions() if row is None else options_of(row)


def options_of(row: TokenizerSettings) -> TokenizerOptions:
    """The options that settings, as people wrote them, stand for; DictionaryError where a line cannot be used."""
    return TokenizerOptions(
        engine=Engine(row.engine),
        dictionary=parse_dictionary(row.dictionary),
        stop_words=parse_stop_words(row.stop_words),
        simplify=row.simplify,
    )


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
    """As `tokenizer`, but DependencyMissing where a package that it needs is not installed."""
    loaded = _load_tokenizer(tokenizer_id)
    if isinstance(loaded, DependencyMissing):
        raise loaded
    return loaded


def tokenizer(tokenizer_id: str = "") -> JiebaTokenizer | None:
    """The tokenizer with the options of an id, under the rules of this version: its own id may be a newer one.

    A blank id means that of new knowledge bases, with the default options. None, and one warning, without its packages.
    """
    loaded = _load_tokenizer(tokenizer_id)
    return None if isinstance(loaded, DependencyMissing) else loaded
