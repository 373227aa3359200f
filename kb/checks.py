"""System checks at start-up: what is installed and how it is set, without a look at the database."""

import logging
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import ERROR, CheckMessage, Error, Tags, Warning, register, run_checks  # noqa: A004 - Django's name
from django.core.exceptions import ImproperlyConfigured

from kb.access.services.rate_limits import VARIABLES as RATE_LIMIT_VARIABLES
from kb.access.services.rate_limits import rate_limit_check
from kb.base.errors import Rejected
from kb.base.loopback import names_loopback
from kb.base.telemetry.logs import FORMATS
from kb.index.mirrors.registry import DRIVERS
from kb.sources.external.providers.vertex import KIND as VERTEX
from kb.sources.external.services import NAME_PROJECTS, NO_PROJECTS
from retrieval.bm25 import require_dependencies
from retrieval.config import RetrievalConfig
from retrieval.errors import DependencyMissing, InvalidConfiguration
from retrieval.model_files import libraries_available
from retrieval.rerankers.http import FORMS

OWN = "zhiku"
"""The tag of what a server process looks at before it serves; `manage.py check` looks at all."""

logger = logging.getLogger(__name__)

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


@register(OWN)
def shared_secret_key(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """What shows that hosts share work: uploads in an object store."""
    if os.environ.get("SECRET_KEY") or not os.environ.get("S3_BUCKET"):
        return []
    message = (
        "Uploads are shared by several hosts (S3_BUCKET), and SECRET_KEY is not set: each host would make its own."
    )
    hint = "Set SECRET_KEY, the same for every process: sessions, API keys' audit and the caches are signed with it."
    return [Error(message, hint=hint, id="zhiku.E004")]


@register(OWN)
def object_storage(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    if not os.environ.get("S3_BUCKET") or find_spec("storages"):
        return []
    message = "S3_BUCKET is set, and django-storages is not installed."
    return [Error(message, hint="Run `pip install 'zhiku[s3]'`, or leave S3_BUCKET out.", id="zhiku.E005")]


@register(OWN)
def log_format(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    if settings.LOG_FORMAT in FORMATS:
        return []
    message = f"LOG_FORMAT is {settings.LOG_FORMAT!r}, and no log line has such a form."
    return [Error(message, hint=f"Set it to one of {', '.join(FORMATS)}, or leave it out.", id="zhiku.E006")]


@register(OWN)
def collected_static_files(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Without their list every page of the admin would be an error."""
    if settings.STATIC_ROOT is None or (Path(settings.STATIC_ROOT) / "staticfiles.json").exists():
        return []
    message = f"The static files are not in {settings.STATIC_ROOT}."
    return [Warning(message, hint="Run `manage.py collectstatic --no-input`.", id="zhiku.W004")]


def require_sound_settings() -> None:
    """For processes that no command of Django starts.

    Raises:
        ImproperlyConfigured: something is wrong that would show only while it serves; says what, and the remedy.
    """
    found = run_checks(tags=[OWN])
    for message in found:
        if message.level < ERROR:
            logger.warning("%s (%s) %s", message.msg, message.id, message.hint)
    if wrong := [message for message in found if message.level >= ERROR]:
        raise ImproperlyConfigured(" ".join(f"{each.msg} {each.hint} ({each.id})" for each in wrong))


@register(Tags.security, deploy=True)
def secret_key(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    if settings.LOCAL or os.environ.get("SECRET_KEY"):
        return []
    message = "The secret key comes from a file in the data directory."
    hint = "Set SECRET_KEY, the same for every web and worker process: sessions and the BM25 cache are signed with it."
    return [Warning(message, hint=hint, id="zhiku.W003")]


@register(OWN)
def embedded_servers(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    if settings.LOCAL or not settings.EMBEDDED:
        return []
    message = "The embedded PostgreSQL and Redis are for a local installation, and ZHIKU_LOCAL is off."
    return [Error(message, hint="Set DATABASE_URL and REDIS_URL to your servers.", id="zhiku.E001")]


@register(OWN)
def hosts_of_this_machine(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Neither pages of DEBUG nor an installation without TLS may be reached from elsewhere."""
    others = [host for host in settings.ALLOWED_HOSTS if not names_loopback(host)]
    if not others or not (settings.DEBUG or settings.LOCAL):
        return []
    why = (
        "DEBUG is on, and its pages show settings and source code"
        if settings.DEBUG
        else "this installation is local, which is for this machine only and without TLS"
    )
    message = f"ALLOWED_HOSTS names {', '.join(others)}, and {why}."
    hint = (
        "Leave DEBUG out, or name only localhost."
        if settings.DEBUG
        else "Name only localhost, or serve others: set DATABASE_URL, REDIS_URL and SECRET_KEY (docs/deploying.md)."
    )
    return [Error(message, hint=hint, id="zhiku.E007")]


@register(OWN)
def retrieval_settings(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Every setting by itself, and those that are right by themselves together; no search is to be the first to notice."""
    alone = [error for name, value in settings.RETRIEVAL.items() for error in _refused({name: value})]
    return alone or _refused(settings.RETRIEVAL)


@register(OWN)
def external_projects(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    if VERTEX not in settings.EXTERNAL_PROVIDERS or settings.VERTEX_PROJECTS:
        return []
    return [Warning(f"{NO_PROJECTS}.", hint=f"{NAME_PROJECTS.capitalize()}.", id="zhiku.W008")]


@register
def rate_limits(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    found: list[CheckMessage] = []
    for kind, text in settings.API_RATE_LIMITS.items():
        try:
            rate_limit_check(text)
        except Rejected as error:
            variable = RATE_LIMIT_VARIABLES[kind]
            hint = f"Set {variable} to such as 600/minute, or leave it empty for no limit."
            found.append(Error(f"{variable} cannot be used: {error}", hint=hint, id="zhiku.E010"))
    return found


def _refused(values: Mapping[str, Any]) -> list[CheckMessage]:
    try:
        RetrievalConfig().override(values)
    except InvalidConfiguration as error:
        variable = VARIABLES.get(error.field, error.field.upper())
        hint = f"Correct {variable} in the environment, or leave it out."
        return [Error(f"{variable} cannot be used: {error}.", hint=hint, id="zhiku.E002")]
    return []


@register(OWN)
def rerank_server(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    if settings.RERANK_FORM in FORMS:
        return []
    message = f"RERANK_FORM is {settings.RERANK_FORM!r}, and no rerank server is asked in such a form."
    return [Error(message, hint=f"Set it to one of {', '.join(FORMS)}, or leave it out.", id="zhiku.E003")]


@register(OWN)
def stores_of_one_process(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """A path opens Milvus Lite or an embedded ChromaDB, and a deployment has several processes."""
    addresses = {driver.address: getattr(settings, driver.address) for driver in DRIVERS.values()}
    return [
        Warning(
            f"{variable} is a path, which one process may open at a time: web and worker processes would "
            "shut each other out, or see different copies.",
            hint=f"Set {variable} to a server's address, such as http://HOST:PORT, or leave it out.",
            id="zhiku.W005",
        )
        for variable, address in addresses.items()
        if address and "://" not in address and not settings.LOCAL
    ]
