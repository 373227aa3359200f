"""System checks at start-up: what is installed and how it is set, without a look at the database."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004 - Django's name for it

from retrieval.bm25 import require_dependencies
from retrieval.config import RetrievalConfig
from retrieval.errors import DependencyMissing, InvalidConfiguration
from retrieval.model_files import libraries_available
from retrieval.rerankers.http import FORMS

# Of the settings whose variable has another name than they have.
VARIABLES = {
    "fusion": "HYBRID_FUSION",
    "vector_weight": "RRF_VECTOR_WEIGHT",
    "keyword_weight": "RRF_KEYWORD_WEIGHT",
    "general_final_count": "GENERAL_RETRIEVAL_FINAL_COUNT",
}


@register
def keyword_packages(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    try:
        require_dependencies()
    except DependencyMissing as error:
        hint = "Run `pip install rank-bm25 jieba pystemmer`."
        return [Warning(f"Keyword search is off, searches use vectors only: {error}", hint=hint, id="zhiku.W001")]
    return []


@register
def model_libraries(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    if libraries_available():
        return []
    message = "No embedding model can run here: sentence-transformers or torch is not installed."
    hint = "Run `pip install 'zhiku[models]'`, or use an embedding server or the hashing embedder."
    return [Warning(message, hint=hint, id="zhiku.W002")]


@register(Tags.security, deploy=True)
def secret_key(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    if settings.DEBUG or os.environ.get("SECRET_KEY"):
        return []
    message = "The secret key comes from a file in the data directory while DEBUG is off."
    hint = "Set SECRET_KEY, the same for every web and worker process: sessions and the BM25 cache are signed with it."
    return [Warning(message, hint=hint, id="zhiku.W003")]


@register
def embedded_servers(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    if settings.DEBUG or not settings.EMBEDDED:
        return []
    message = "The embedded PostgreSQL and Redis are for a first look and for development, and DEBUG is off."
    return [Error(message, hint="Set DATABASE_URL and REDIS_URL to your servers.", id="zhiku.E001")]


@register
def retrieval_settings(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Every setting by itself, and those that are right by themselves together; no search is to be the first to notice."""
    alone = [error for name, value in settings.RETRIEVAL.items() for error in _refused({name: value})]
    return alone or _refused(settings.RETRIEVAL)


def _refused(values: Mapping[str, Any]) -> list[CheckMessage]:
    try:
        RetrievalConfig().override(values)
    except InvalidConfiguration as error:
        variable = VARIABLES.get(error.field, error.field.upper())
        hint = f"Correct {variable} in the environment, or leave it out."
        return [Error(f"{variable} cannot be used: {error}.", hint=hint, id="zhiku.E002")]
    return []


@register
def rerank_server(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    if settings.RERANK_FORM in FORMS:
        return []
    message = f"RERANK_FORM is {settings.RERANK_FORM!r}, and no rerank server is asked in such a form."
    return [Error(message, hint=f"Set it to one of {', '.join(FORMS)}, or leave it out.", id="zhiku.E003")]
