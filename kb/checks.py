"""System checks at start-up: what is installed and how it is set, without a look at the database."""

import logging
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import ERROR, CheckMessage, Error, Tags, Warning, register, run_checks  # noqa: A004 - Django's name
from django.core.exceptions import ImproperlyConfigured

from kb.access.services.rate_limits import VARIABLES as RATE_LIMIT_VARIABLES, rate_limit_check
from kb.base.errors import Rejected
from kb.base.loopback import names_loopback
from kb.base.telemetry.logs import FORMATS
from kb.index.mirrors.registry import DRIVERS
from kb.providers.endpoints import chosen_local
from kb.sources.external.providers.vertex import KIND as VERTEX
from kb.sources.external.services import NAME_PROJECTS, NO_PROJECTS
from retrieval.bm25 import require_dependencies
from retrieval.config import SETTINGS, RetrievalConfig
from retrieval.errors import DependencyMissing, InvalidConfiguration
from retrieval.model_files import libraries_available
from retrieval.rerankers.forms import FORMS

Messages = Iterator[CheckMessage]

# The tag of what a server process looks at before it serves; `manage.py check` looks at all.
OWN = "zhiku"

# Where anybody may make an account.
PUBLIC_ISSUERS = {"accounts.google.com", "gitlab.com", "appleid.apple.com", "www.linkedin.com"}

logger = logging.getLogger(__name__)


@register
def keyword_packages(**_: Any) -> Messages:
    try:
        require_dependencies()
    except DependencyMissing as error:
        hint = "Run `pip install rank-bm25 jieba pystemmer`."
        yield Warning(f"Keyword search is off, searches use vectors only: {error}", hint=hint, id="zhiku.W001")


@register
def model_libraries(**_: Any) -> Messages:
    if chosen_local() and not libraries_available():
        names = ", ".join(f"{each.variable}={each.model}" for each in chosen_local())
        yield Warning(
            f"{names} cannot run here: sentence-transformers or torch is not installed.",
            hint="Run `pip install 'zhiku[models]'`, or use a model of a server or the hashing embedder.",
            id="zhiku.W002",
        )


@register(OWN)
def object_storage(**_: Any) -> Messages:
    """Uploads in an object store show that several hosts share the work."""
    if not os.environ.get("S3_BUCKET"):
        return
    if not os.environ.get("SECRET_KEY"):
        yield Error(
            "Uploads are shared by several hosts (S3_BUCKET), and SECRET_KEY is not set: each host would make its own.",
            hint="Set SECRET_KEY, the same for every process: sessions, API keys' audit and the caches are signed with it.",
            id="zhiku.E004",
        )
    if not find_spec("storages"):
        hint = "Run `pip install 'zhiku[s3]'`, or leave S3_BUCKET out."
        yield Error("S3_BUCKET is set, and django-storages is not installed.", hint=hint, id="zhiku.E005")


@register(OWN)
def known_forms(**_: Any) -> Messages:
    for variable, known, unknown, check in (
        ("LOG_FORMAT", FORMATS, "no log line has such a form", "zhiku.E006"),
        ("RERANK_FORM", FORMS, "no rerank server is asked in such a form", "zhiku.E003"),
    ):
        if (value := getattr(settings, variable)) not in known:
            hint = f"Set it to one of {', '.join(known)}, or leave it out."
            yield Error(f"{variable} is {value!r}, and {unknown}.", hint=hint, id=check)


@register(OWN)
def collected_static_files(**_: Any) -> Messages:
    """Without their list every page of the admin would be an error."""
    if settings.STATIC_ROOT is not None and not (Path(settings.STATIC_ROOT) / "staticfiles.json").exists():
        message = f"The static files are not in {settings.STATIC_ROOT}."
        yield Warning(message, hint="Run `manage.py collectstatic --no-input`.", id="zhiku.W004")


def require_sound_settings() -> None:
    """For processes that no command of Django starts; raises ImproperlyConfigured, which names fault and remedy."""
    found = run_checks(tags=[OWN])
    for message in found:
        if message.level < ERROR:
            logger.warning("%s (%s) %s", message.msg, message.id, message.hint)
    if wrong := [message for message in found if message.level >= ERROR]:
        raise ImproperlyConfigured(" ".join(f"{each.msg} {each.hint} ({each.id})" for each in wrong))


@register(Tags.security, deploy=True)
def secret_key(**_: Any) -> Messages:
    if not (settings.LOCAL or os.environ.get("SECRET_KEY")):
        yield Warning(
            "The secret key comes from a file in the data directory.",
            hint="Set SECRET_KEY, the same for every web and worker process: sessions and the BM25 cache are signed with it.",
            id="zhiku.W003",
        )


@register(OWN)
def embedded_servers(**_: Any) -> Messages:
    if settings.EMBEDDED and not settings.LOCAL:
        message = "The embedded PostgreSQL and Redis are for a local installation, and ZHIKU_LOCAL is off."
        yield Error(message, hint="Set DATABASE_URL and REDIS_URL to your servers.", id="zhiku.E001")


@register(OWN)
def hosts_of_this_machine(**_: Any) -> Messages:
    """Neither pages of DEBUG nor an installation without TLS may be reached from elsewhere."""
    others = ", ".join(host for host in settings.ALLOWED_HOSTS if not names_loopback(host))
    if others and settings.DEBUG:
        yield Error(
            f"ALLOWED_HOSTS names {others}, and DEBUG is on, and its pages show settings and source code.",
            hint="Leave DEBUG out, or name only localhost.",
            id="zhiku.E007",
        )
    elif others and settings.LOCAL:
        yield Error(
            f"ALLOWED_HOSTS names {others}, and this installation is local, which is for this machine only and without TLS.",
            hint="Name only localhost, or serve others: set DATABASE_URL, REDIS_URL and SECRET_KEY (docs/deploying.md).",
            id="zhiku.E007",
        )


@register(OWN)
def retrieval_settings(**_: Any) -> Messages:
    """Every setting by itself, and those that are right by themselves together; no search is to be the first to notice."""
    alone = [error for name, value in settings.RETRIEVAL.items() for error in _refused({name: value})]
    yield from alone or _refused(settings.RETRIEVAL)


@register(OWN)
def external_projects(**_: Any) -> Messages:
    if VERTEX in settings.EXTERNAL_PROVIDERS and not settings.VERTEX_PROJECTS:
        yield Warning(f"{NO_PROJECTS}.", hint=f"{NAME_PROJECTS.capitalize()}.", id="zhiku.W008")


@register(OWN)
def signing_in(**_: Any) -> Messages:
    """Nobody is to be locked out, nor everybody let in, by a variable that was left out."""
    if settings.OIDC_ISSUER and not settings.OIDC_CLIENT_ID:
        hint = "Set OIDC_CLIENT_ID and OIDC_CLIENT_SECRET to what the provider gave this application."
        yield Error("OIDC_ISSUER is set, and OIDC_CLIENT_ID is not.", hint=hint, id="zhiku.E011")
    if "openid" not in settings.OIDC_SCOPES.split():
        message = f"OIDC_SCOPES is {settings.OIDC_SCOPES!r}, and a provider names nobody without the scope openid."
        yield Error(message, hint="Put openid first, such as “openid profile email groups”.", id="zhiku.E012")
    if not settings.PASSWORD_LOGIN and not settings.OIDC_ISSUER:
        message = "PASSWORD_LOGIN is off and OIDC_ISSUER is not set: nobody can log in."
        hint = "Set OIDC_ISSUER, or leave PASSWORD_LOGIN out; `manage.py login_link USER` lets one user in once."
        yield Warning(message, hint=hint, id="zhiku.W009")
    if urlsplit(settings.OIDC_ISSUER).hostname in PUBLIC_ISSUERS and not settings.OIDC_ALLOWED_GROUPS:
        message = f"Whoever has an account at {settings.OIDC_ISSUER} may sign in: OIDC_ALLOWED_GROUPS is empty."
        hint = "Set OIDC_ALLOWED_GROUPS, or let the provider's side of this application decide who may."
        yield Warning(message, hint=hint, id="zhiku.W010")


@register
def rate_limits(**_: Any) -> Messages:
    for kind, text in settings.API_RATE_LIMITS.items():
        try:
            rate_limit_check(text)
        except Rejected as error:
            variable = RATE_LIMIT_VARIABLES[kind]
            hint = f"Set {variable} to such as 600/minute, or leave it empty for no limit."
            yield Error(f"{variable} cannot be used: {error}", hint=hint, id="zhiku.E010")


def _refused(values: Mapping[str, Any]) -> Messages:
    try:
        RetrievalConfig().override(values)
    except InvalidConfiguration as error:
        variable = SETTINGS[error.field].env
        hint = f"Correct {variable} in the environment, or leave it out."
        yield Error(f"{variable} cannot be used: {error}.", hint=hint, id="zhiku.E002")


@register(OWN)
def stores_of_one_process(**_: Any) -> Messages:
    """A path opens Milvus Lite or an embedded ChromaDB, and a deployment has several processes."""
    for variable in dict.fromkeys(driver.address for driver in DRIVERS.values()):
        address = getattr(settings, variable)
        if address and "://" not in address and not settings.LOCAL:
            yield Warning(
                f"{variable} is a path, which one process may open at a time: web and worker processes would "
                "shut each other out, or see different copies.",
                hint=f"Set {variable} to a server's address, such as http://HOST:PORT, or leave it out.",
                id="zhiku.W005",
            )
