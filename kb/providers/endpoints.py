"""Models as the pipeline asks them: rows of people and those that environment variables make, in one shape.

A process reads the rows at most once in `ROWS_SECONDS`, so that a change reaches all of them without a restart.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, Final

from django.conf import settings
from django.db import DatabaseError

from kb.base.encryption import SecretsUnreadable, decrypted
from kb.providers.models import ProviderModel
from kb.providers.recommended import Role
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.embedders.openai_http import OPENAI_PREFIX
from retrieval.embedders.registry import MODEL_PREFIX

logger = logging.getLogger(__name__)

LOCAL: Final = "local"
SERVED: Final = "openai"
ROWS_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model and how it is asked.

    Attributes:
        provider: LOCAL for weights on this server, which have no address.
        options: as ProviderModel has them.
        slug: of the row.
        variable: the environment variable that makes it; blank: people made it.
        is_readable: False where the key was encrypted with another SECRET_KEY and must be entered again.
    """

    role: Role
    provider: str
    model: str
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    dimension: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    slug: str = ""
    name: str = ""
    variable: str = ""
    allows_private: bool = False
    is_enabled: bool = True
    is_default: bool = False
    is_readable: bool = True

    @property
    def id(self) -> str:
        """What knowledge bases, vectors and counts name it by: the weights' id, or "model:" and the row's slug.

        The environment's models keep the ids that they had before there were rows.
        """
        if self.provider != LOCAL and not self.variable:
            return f"{MODEL_PREFIX}{self.slug}"
        return f"{OPENAI_PREFIX}{self.model}" if self.role == Role.EMBEDDING and self.is_served else self.model

    @property
    def is_served(self) -> bool:
        return self.provider != LOCAL


def endpoint_of(row: ProviderModel) -> Endpoint:
    """The endpoint of a row, saved or not; without its key where that is not readable.

    One of a row that the environment makes is the environment's.
    """
    if row.variable:
        found = next((each for each in environment_endpoints() if each.variable == row.variable), None)
        if found is not None:
            return found
    try:
        secrets = row.secrets if isinstance(row.secrets, Mapping) else decrypted(row.secrets)
        is_readable = True
    except SecretsUnreadable:
        secrets, is_readable = {}, False
    return Endpoint(
        role=Role(row.role),
        provider=row.provider,
        model=row.model,
        base_url=row.base_url,
        api_key=secrets.get("api_key", ""),
        dimension=row.dimension,
        options=row.options,
        slug=row.slug,
        name=row.name,
        variable=row.variable,
        allows_private=row.allows_private,
        is_enabled=row.is_enabled,
        is_default=row.is_default,
        is_readable=is_readable,
    )


def environment_endpoints() -> tuple[Endpoint, ...]:
    """The models that environment variables name, those of a role in the order in which they are asked."""
    found = []
    if settings.EMBEDDING_MODEL != HASHING_MODEL_ID:
        found.append(environment_embedding(settings.EMBEDDING_MODEL))
    if settings.RERANKER_MODEL:
        found.append(_of("RERANKER_MODEL", Role.RERANK, LOCAL, settings.RERANKER_MODEL))
    if settings.RERANK_BASE_URL:
        found.append(
            _of(
                "RERANK_BASE_URL",
                Role.RERANK,
                SERVED,
                settings.RERANK_MODEL,
                base_url=settings.RERANK_BASE_URL,
                api_key=settings.RERANK_API_KEY,
                options={"form": settings.RERANK_FORM},
            )
        )
    server = {"base_url": settings.LLM_BASE_URL, "api_key": settings.LLM_API_KEY}
    if settings.LLM_API_KEY or settings.LLM_BASE_URL_IS_SET:
        found.append(_of("LLM_MODEL", Role.CHAT, SERVED, settings.LLM_MODEL, **server))
    if settings.VISION_MODEL:
        vision = {"vision": True}
        found.append(_of("VISION_MODEL", Role.CHAT, SERVED, settings.VISION_MODEL, **server, options=vision))
    return tuple(found)


def environment_embedding(model_id: str) -> Endpoint:
    """The endpoint of an embedding model that no row stands for: local weights, or one of EMBEDDING_BASE_URL."""
    if not model_id.startswith(OPENAI_PREFIX):
        return _of("EMBEDDING_MODEL", Role.EMBEDDING, LOCAL, model_id)
    return _of(
        "EMBEDDING_MODEL",
        Role.EMBEDDING,
        SERVED,
        model_id.removeprefix(OPENAI_PREFIX),
        base_url=settings.EMBEDDING_BASE_URL,
        api_key=settings.EMBEDDING_API_KEY,
    )


def _of(variable: str, role: Role, provider: str, model: str, **rest: Any) -> Endpoint:
    slug = f"env-{variable.lower().replace('_', '-')}"
    return Endpoint(role, provider, model, **rest, slug=slug, name=model or variable, variable=variable)


@dataclass(frozen=True)
class Rows:
    """The rows that people made, as they were read last."""

    endpoints: tuple[Endpoint, ...] = ()

    @cached_property
    def by_id(self) -> Mapping[str, Endpoint]:
        return {each.id: each for each in self.endpoints if each.role == Role.EMBEDDING}

    @cached_property
    def by_slug(self) -> Mapping[str, Endpoint]:
        return {each.slug: each for each in self.endpoints}

    @cached_property
    def defaults(self) -> Mapping[Role, Endpoint]:
        return {each.role: each for each in self.endpoints if each.is_default and each.is_enabled}

    @cached_property
    def fingerprint(self) -> str:
        """Other after every change of what the rows say, their keys apart."""
        return hashlib.sha256(repr(self.endpoints).encode()).hexdigest()


class _Held:
    """What this process has read, and when."""

    def __init__(self, read_at: float = -inf) -> None:
        self._rows = Rows()
        self._read_at = read_at
        self._lock = threading.Lock()

    def rows(self) -> Rows:
        with self._lock:
            if time.monotonic() - self._read_at > ROWS_SECONDS:
                try:
                    read = ProviderModel.objects.filter(variable="").order_by("pk")
                    found = tuple(endpoint_of(row) for row in read)
                    if found != self._rows.endpoints:
                        self._rows = Rows(found)
                except DatabaseError as error:
                    logger.warning("the models' rows could not be read, those of before stay: %s", error)
                self._read_at = time.monotonic()
            return self._rows

    def forget(self) -> None:
        with self._lock:
            self._read_at = -inf


_held = _Held()


def rows() -> Rows:
    """The rows that people made, at most ROWS_SECONDS old; those of this process's own writes at once."""
    return _held.rows()


def forget() -> None:
    """Has the rows read again at the next use."""
    _held.forget()


def models_fingerprint() -> str:
    """Other after every change of what models are asked, and how."""
    of_environment = repr((environment_endpoints(), settings.EMBEDDING_BASE_URL))
    return rows().fingerprint + hashlib.sha256(of_environment.encode()).hexdigest()


def defaults(role: Role) -> tuple[Endpoint, ...]:
    """What serves where no model is named: the default row, else the environment's models, in their order."""
    row = rows().defaults.get(role)
    if row is not None:
        return (row,)
    return tuple(each for each in environment_endpoints() if each.role == role and not each.options.get("vision"))


def chosen_local() -> tuple[Endpoint, ...]:
    """The models that the environment has run on this server; a name that is only the setting's default is not meant."""
    return tuple(
        each for each in environment_endpoints() if not each.is_served and each.variable in settings.MODELS_CHOSEN
    )


def embedding_endpoint(model_id: str) -> Endpoint | None:
    """The row's endpoint of a vector space's id, else the environment's; None for an id of a row that is gone."""
    found = rows().by_id.get(model_id)
    if found is None and not model_id.startswith(MODEL_PREFIX):
        return environment_embedding(model_id)
    return found


def chat_endpoint(slug: str | None = None) -> Endpoint | None:
    """The chat model of a slug, else the default one; None where there is none."""
    if slug is not None:
        found = rows().by_slug.get(slug)
        if found is None:
            found = next((each for each in environment_endpoints() if each.slug == slug), None)
        return found if found is not None and found.role == Role.CHAT else None
    return next(iter(defaults(Role.CHAT)), None)


def vision_endpoint() -> Endpoint | None:
    """The chat model that describes pictures: VISION_MODEL, else the default or the first one that takes pictures."""
    if settings.VISION_MODEL:
        return next(each for each in environment_endpoints() if each.variable == "VISION_MODEL")
    seeing = [each for each in rows().endpoints if each.role == Role.CHAT and each.options.get("vision")]
    usable = [each for each in seeing if each.is_enabled and each.is_readable]
    return max(usable, key=lambda each: each.is_default, default=None)
