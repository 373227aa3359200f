"""The models of this process by its settings, which of them a caller may choose, and how far their loading is."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _, gettext_noop

from kb.base import cancellation
from kb.base.cache import query_embedder
from kb.base.errors import Rejected
from kb.base.messages import shown
from kb.providers.clients import http_client, openai_client
from kb.providers.endpoints import (
    Endpoint,
    chat_endpoint,
    defaults,
    embedding_endpoint,
    environment_endpoints,
    rows,
    vision_endpoint,
)
from kb.providers.models import TokenizerSettings
from kb.providers.recommended import MANY, MODELS, Role, Size, models_of
from retrieval.bm25 import BM25_UNAVAILABLE, require_dependencies
from retrieval.config import RetrievalConfig
from retrieval.dictionary import parse_dictionary, parse_stop_words
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.embedders.openai_http import (
    BATCH_SIZE,
    DOCUMENTS_TIMEOUT_S,
    OPENAI_PREFIX,
    EmbeddingRequest,
    OpenAIEmbedder,
)
from retrieval.embedders.registry import MODEL_PREFIX, get_embedder, normalize_model_id
from retrieval.errors import ChannelUnavailable, DependencyMissing, Message, RerankerUnavailable
from retrieval.generation import GREEDY, OpenAIGenerator
from retrieval.model_files import installed_path, libraries_available, local_path
from retrieval.protocols import Embedder, Reranker
from retrieval.query_vectors import QueryEmbedder
from retrieval.rerankers.chain import CosineReranker
from retrieval.rerankers.cross_encoder import (
    RERANK_TIMEOUT_S,
    CrossEncoderReranker,
    HttpReranker,
    get_cross_encoder,
)
from retrieval.rewrite import LlmRewriter
from retrieval.servers import Access
from retrieval.tokenize import Engine, JiebaTokenizer, TokenizerOptions

logger = logging.getLogger(__name__)

# How long a first search without a latency budget of its own waits for a model that is not loaded yet.
LOAD_SECONDS = 120.0
MODELS_HELD = 64


def embedder(model_id: str) -> Embedder:
    """The embedder of a model; the model itself is loaded at its first use, once a process.

    Of a row that is gone or cannot be used it is one whose every call raises ModelUnavailable with the remedy.
    """
    endpoint = embedding_endpoint(model_id)
    if endpoint is None:
        return OpenAIEmbedder(model_id, base_url="", access=Access(problem=GONE))
    return _served_embedder(_asked(endpoint)) if endpoint.is_served else get_embedder(endpoint.model)


def query_vectors(model_id: str) -> QueryEmbedder:
    """The cached, guarded vectors of queries in a model's space."""
    return query_embedder(embedder(model_id))


def is_served(model_id: str) -> bool:
    """Whether a server makes the vectors of a model."""
    return model_id.startswith((OPENAI_PREFIX, MODEL_PREFIX))


def rerankers(config: RetrievalConfig, overlap: Reranker) -> Sequence[Reranker]:
    """The links of the chain that are configured, in the order of the profile.

    A default row stands in the place of the first link of the profile that asks a model.
    """
    asked = {"http" if each.is_served else "cross_encoder": each for each in defaults(Role.RERANK)}
    if len(asked) == 1 and not next(iter(asked.values())).variable:
        place = next((name for name in config.rerankers if name in {"cross_encoder", "http"}), "")
        asked = dict.fromkeys([place], *asked.values())
    links: dict[str, Reranker] = {
        name: _reranker(_asked(each)) if each.is_served else get_cross_encoder(each.model)
        for name, each in asked.items()
    }
    links |= {"cosine": CosineReranker(), "overlap": overlap}
    return [links[name] for name in config.rerankers if name in links]


def generator(slug: str | None = None) -> OpenAIGenerator | None:
    """The chat model of a slug, or the default one; None where there is none."""
    endpoint = chat_endpoint(slug)
    return None if endpoint is None else _generator(_asked(endpoint))


def vision_model() -> OpenAIGenerator | None:
    """The model that describes pictures; None where there is none."""
    endpoint = vision_endpoint()
    return None if endpoint is None else _generator(_asked(endpoint))


def rewriter() -> LlmRewriter | None:
    """What rewrites queries; None where no chat model is configured."""
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


GONE = Message(
    gettext_noop(
        "the model of these vectors is not among the models of this installation: choose another one in the settings of the "
        "knowledge base"
    )
)


def problem_of(endpoint: Endpoint) -> Message | None:
    """Why a model cannot be asked, with the remedy; None: nothing is known against it. No server is asked."""
    if not endpoint.is_readable:
        template = gettext_noop(
            "the key of the model “{name}” was encrypted with another SECRET_KEY: enter it again under System, Models"
        )
        return Message(template, name=endpoint.name)
    if not endpoint.is_enabled:
        return Message(
            gettext_noop("the model “{name}” is switched off: switch it on under System, Models"), name=endpoint.name
        )
    return None


def _asked(endpoint: Endpoint) -> Endpoint:
    """Without what does not change how it is asked, so that its client, with its connections and breaker, stays."""
    return replace(endpoint, is_default=False, dimension=None)


def _access(endpoint: Endpoint, connect: Callable[[Endpoint], Any]) -> Access:
    """What a model's client needs to know beside its address; the environment's ones name their variables."""
    template = gettext_noop("check address, key and name of the model “{name}” under System, Models")
    return Access(
        connect=partial(connect, endpoint),
        remedy=None if endpoint.variable else Message(template, name=endpoint.name),
        problem=problem_of(endpoint),
        model_id="" if endpoint.variable else endpoint.id,
        needs_key=bool(endpoint.variable),
    )


# One a process for each model, as it is asked.
@lru_cache(maxsize=MODELS_HELD)
def _served_embedder(endpoint: Endpoint) -> OpenAIEmbedder:
    options = endpoint.options
    has_prompts = bool({"query_prompt", "document_prompt"} & options.keys())
    prompts = (options.get("query_prompt", ""), options.get("document_prompt", "")) if has_prompts else None
    timeout_s = options.get("timeout_s", DOCUMENTS_TIMEOUT_S)
    return OpenAIEmbedder(
        endpoint.id,
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        batch_size=options.get("batch_size", BATCH_SIZE),
        request=EmbeddingRequest(endpoint.model, options.get("dimensions"), prompts, timeout_s),
        access=_access(endpoint, http_client),
        sleep=cancellation.sleep,
    )


@lru_cache(maxsize=MODELS_HELD)
def _reranker(endpoint: Endpoint) -> HttpReranker:
    return HttpReranker(
        endpoint.base_url,
        endpoint.api_key,
        endpoint.model,
        form=endpoint.options.get("form", "jina"),
        timeout_s=endpoint.options.get("timeout_s", RERANK_TIMEOUT_S),
        access=_access(endpoint, http_client),
    )


@lru_cache(maxsize=MODELS_HELD)
def _generator(endpoint: Endpoint) -> OpenAIGenerator:
    options = endpoint.options
    fields = {**GREEDY, **options.get("fields", {})}
    if "temperature" in options:
        fields["temperature"] = options["temperature"]
    return OpenAIGenerator(
        endpoint.base_url,
        endpoint.api_key,
        endpoint.model,
        fields={name: value for name, value in fields.items() if value is not None},
        access=_access(endpoint, openai_client),
        sleep=cancellation.sleep,
    )


_rewriter = lru_cache(maxsize=MODELS_HELD)(LlmRewriter)


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
    """The default row, else the environment's model, where it can be used here; else the hashing embedder."""
    row = rows().defaults.get(Role.EMBEDDING)
    if row is not None and not _problem(row.id):
        return row.id
    configured: str = settings.EMBEDDING_MODEL
    if configured == HASHING_MODEL_ID or configured.startswith(OPENAI_PREFIX):
        return configured
    return configured if libraries_available() and local_path(configured) is not None else HASHING_MODEL_ID


def has_default(role: Role) -> bool:
    """Whether a model that can be asked serves a role where none is named."""
    if role == Role.EMBEDDING:
        return default_embedding_model() != HASHING_MODEL_ID
    return any(problem_of(each) is None and (each.is_served or installed_path(each.model)) for each in defaults(role))


@dataclass(frozen=True, slots=True)
class Choice:
    """A model as whoever chooses one sees it: no address, no key.

    Attributes:
        id: what is stored; of embedding models what vectors carry.
        slug: of a row; blank where the environment or the weights on this server make it a choice.
        reason: why it cannot be used, and what to do; blank: it can.
    """

    role: Role
    id: str
    name: str
    slug: str
    is_default: bool
    usable: bool
    reason: str


def embedding_choices(used: Iterable[str] = ()) -> list[Choice]:
    """What a form offers: the default, the rows, those that are `used`, named by the operator or here, and hashing."""
    default = default_embedding_model()
    named = [each for each in settings.EMBEDDING_MODELS_ALLOWED if "*" not in each]
    here = [each.model_id for each in MODELS if each.role == Role.EMBEDDING and installed_path(each.model_id)]
    of_rows = list(rows().by_id)
    offered = dict.fromkeys([default, *of_rows, *used, *named, *here, settings.EMBEDDING_MODEL, HASHING_MODEL_ID])
    return [
        Choice(
            Role.EMBEDDING,
            model,
            label_of(model),
            slug=row.slug if (row := rows().by_id.get(model)) else "",
            is_default=model == default,
            usable=not reason,
            reason=reason,
        )
        for model in offered
        if _is_allowed(model)
        for reason in [_problem(model)]
    ]


def model_choices(role: Role) -> list[Choice]:
    """The models of a role that may be chosen by name, those that cannot be used too."""
    if role == Role.EMBEDDING:
        return embedding_choices()
    serving = {each.slug for each in defaults(role)}
    made = [each for each in (*rows().endpoints, *environment_endpoints()) if each.role == role]
    return [
        Choice(role, each.id, each.name, each.slug, each.slug in serving, usable=not reason, reason=reason)
        for each in made
        for reason in [shown(problem_of(each) or "")]
    ]


def label_of(model_id: str) -> str:
    """What people call an embedding model: the name of its row, else its id; hashing has a name of its own."""
    if model_id == HASHING_MODEL_ID:
        return _("By words (no model needed)")
    row = rows().by_id.get(model_id)
    return model_id if row is None else row.name


def require_embedding_model(model_id: str) -> str:
    """The one spelling of a model that a caller over the network may choose, and that can run here.

    A row is named by its id or its slug; these, EMBEDDING_MODEL and hashing always may be. Beyond them
    EMBEDDING_MODELS_ALLOWED says which; where it is empty, those that are installed under an id and those of
    EMBEDDING_BASE_URL. A path is taken from these settings only, and nothing is downloaded. One that may not be chosen, or
    cannot run here, is Rejected; the message says who can do what.
    """
    name = model_id.strip()
    row = rows().by_slug.get(name.removeprefix(MODEL_PREFIX))
    if row is not None and row.role == Role.EMBEDDING:
        name = row.id
    elif name != settings.EMBEDDING_MODEL:
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
        raise Rejected("unknown_model", problem.replace("%", "%%"))
    return name


def _is_allowed(name: str) -> bool:
    if name in {HASHING_MODEL_ID, settings.EMBEDDING_MODEL} or name in rows().by_id or name.startswith(MODEL_PREFIX):
        return True
    patterns: list[str] = settings.EMBEDDING_MODELS_ALLOWED
    return not patterns or any(fnmatchcase(name, each) or name == _normalized(each) for each in patterns)


def _problem(name: str) -> str:
    """Why an allowed model cannot run here, and the remedy; blank: it can."""
    row = rows().by_id.get(name)
    known = (GONE if name.startswith(MODEL_PREFIX) else None) if row is None else problem_of(row)
    if known is not None:
        return shown(known)
    if name.startswith(OPENAI_PREFIX) and not settings.EMBEDDING_BASE_URL:
        return _("Models behind an OpenAI-compatible server need its address: set EMBEDDING_BASE_URL and restart.")
    return "" if name == HASHING_MODEL_ID or is_served(name) else _local_problem(name)


def _local_problem(name: str) -> str:
    if not libraries_available():
        return _(
            "Local models need packages that are not installed: run “pip install 'zhiku[models]'”, or use hashing."
        )
    find = local_path if name == settings.EMBEDDING_MODEL or _is_path(name) else installed_path
    if find(name) is not None:
        return ""
    message = _(
        "The weights of “%(model)s” are not on this server: a superuser downloads them under System → Models, or with "
        "“manage.py download_model %(model)s”."
    )
    return message % {"model": name}


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
