"""System checks at start-up: what is installed and how it is set, without a look at the database."""

import os
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004 - Django's name for it

from retrieval.bm25 import require_dependencies
from retrieval.errors import DependencyMissing
from retrieval.model_files import libraries_available


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
