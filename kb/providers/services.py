"""Models of this installation as superusers write them, and what the environment's rows show."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, cast

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.text import slugify
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, User
from kb.base.errors import NotAllowed, Rejected
from kb.base.messages import shown
from kb.base.net.addresses import FetchError, parse_url, port_of
from kb.providers import embedding_models
from kb.providers.clients import is_private_address, message_of_fetch
from kb.providers.endpoints import LOCAL, Endpoint, endpoint_of, environment_endpoints
from kb.providers.models import ProviderModel
from kb.providers.recommended import Role
from retrieval.errors import Message
from retrieval.generation import shown_address
from retrieval.model_files import HUB_ID
from retrieval.rerankers.forms import FORMS

MOST_DIMENSIONS: Final = 4_000  # of an indexed vector
MOST_TEXTS: Final = 2_048  # of a request
MOST_TEMPERATURE: Final = 2
FIELDS_CHARACTERS: Final = 2_000
PROMPT_CHARACTERS: Final = 500
NAMED: Final = 5
# Of an endpoint, what a test is about, and the fields of a row whose model was not tested as it is.
TESTED: Final = ("model", "base_url", "api_key", "allows_private", "options")
UNTESTED: Final[Mapping[str, Any]] = {"tested_at": None, "test_ok": None, "test_latency_ms": None, "test_message": ""}
# Besides provider and model they make the space of an embedding model: another one needs a row, and so a slug, of its own.
SPACE_OPTIONS: Final = ("dimensions", "query_prompt", "document_prompt")

# Of features that choose models: the names of what uses a row.
USERS: Final[list[Callable[[ProviderModel], Iterable[str]]]] = []

Valid = Callable[[Any], bool]


def _number(kind: type | tuple[type, ...], least: float, most: float) -> Valid:
    return lambda value: (
        isinstance(value, kind) and not isinstance(value, bool) and least <= cast("float", value) <= most
    )


def _text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= PROMPT_CHARACTERS


def _is_temperature(value: Any) -> bool:
    return value is None or _number((int, float), 0, MOST_TEMPERATURE)(value)


def _are_fields(value: Any) -> bool:
    return isinstance(value, dict) and len(str(value)) <= FIELDS_CHARACTERS and not {"messages", "model"} & value.keys()


_SECONDS: Final = _number((int, float), 0.1, 300)
# Of the options of a row, which a role has and what they may be.
OPTIONS: Final[Mapping[str, Mapping[str, Valid]]] = {
    Role.EMBEDDING: {
        "batch_size": _number(int, 1, MOST_TEXTS),
        "dimensions": _number(int, 1, MOST_DIMENSIONS),
        "query_prompt": _text,
        "document_prompt": _text,
        "timeout_s": _SECONDS,
    },
    Role.RERANK: {"form": lambda value: value in FORMS, "timeout_s": _SECONDS},
    Role.CHAT: {
        "temperature": _is_temperature,  # None: the model's own
        "fields": _are_fields,  # of every request's body, such as {"enable_thinking": False}
        "vision": lambda value: isinstance(value, bool),
    },
}


def provider_model_check(row: ProviderModel, api_key: str) -> None:
    """What a row of people must be; raises Rejected, whose code begins with the name of a field."""
    if row.role not in OPTIONS:
        raise Rejected("role_invalid", _("Choose what the model is for: embedding, reranking or chat."))
    row.name, row.model = row.name.strip(), row.model.strip()
    if not row.name or not row.model:
        raise Rejected(
            "model_invalid" if row.name else "name_invalid", _("Name the model, and give it a name of yours.")
        )
    others = ProviderModel.objects.filter(role=row.role, name=row.name, variable="").exclude(pk=row.pk)
    if others.exists():
        message = _("There is a model named “%(name)s” for this already: choose another name.")
        raise Rejected("name_taken", message, name=row.name)
    for name, value in row.options.items():
        valid = OPTIONS[row.role].get(name)
        if valid is None or not valid(value):
            raise Rejected("options_invalid", _("“%(name)s” is no such setting of this model."), name=name)
    if row.provider == LOCAL:
        _check_local(row, api_key)
    else:
        _check_address(row, api_key)


def _check_local(row: ProviderModel, api_key: str) -> None:
    row.base_url = ""
    if row.role == Role.CHAT:
        raise Rejected(
            "role_invalid", _("Chat models run on a server, such as Ollama: choose one and give its address.")
        )
    if not HUB_ID.fullmatch(row.model):
        raise Rejected("model_invalid", _("Give the id of a model on the hub, such as BAAI/bge-m3."))
    if api_key:
        raise Rejected("api_key_invalid", _("Weights on this server need no key: leave it out."))


def _check_address(row: ProviderModel, api_key: str) -> None:
    row.base_url = row.base_url.strip().rstrip("/")
    if api_key and not (api_key.isascii() and api_key.isprintable()):
        raise Rejected("api_key_invalid", _("The key holds characters that no key has: copy it again."))
    try:
        url = parse_url(row.base_url)
        is_private = is_private_address(url)
    except FetchError as error:
        raise Rejected("base_url_refused", shown(message_of_fetch(error)).replace("%", "%%")) from error
    if is_private and not row.allows_private:
        message = _("%(host)s has a private address: confirm that the model’s server is there.")
        raise Rejected("allows_private_needed", message, host=url.host)
    if url.scheme == "http" and api_key and not is_private:
        message = _("Over http:// anyone on the way can read the key. Give the https:// address of the server.")
        raise Rejected("base_url_plain", message)


def provider_model_create(  # noqa: PLR0913 - each is a detail of the model
    *,
    user: User,
    role: str,
    name: str,
    provider: str,
    model: str,
    base_url: str = "",
    api_key: str = "",
    options: Mapping[str, Any] | None = None,
    allows_private: bool = False,
) -> ProviderModel:
    """Adds a model, which becomes the default of its role where nothing usable is.

    Raises NotAllowed to all but superusers, and Rejected as `provider_model_check`.
    """
    _require_superuser(user)
    row = ProviderModel(
        role=role,
        name=name,
        slug=_new_slug(model),
        provider=provider,
        base_url=base_url,
        model=model,
        options=dict(options or {}),
        allows_private=allows_private,
        created_by=user,
    )
    provider_model_check(row, api_key.strip())
    row.secrets = {"api_key": api_key.strip()} if api_key.strip() else {}  # encrypted as it is saved
    row.is_default = not embedding_models.has_default(Role(role))
    with _names_once():
        row.save()
    row.refresh_from_db(fields=["secrets"])
    return row


def provider_model_update(row: ProviderModel, *, user: User, api_key: str | None = None, **changes: Any) -> None:
    """Changes a model; a key of None stays, a blank one goes. Raises as `provider_model_create`.

    What vectors depend on does not change, and a key goes only to the server that it was given for.
    """
    _require_superuser(user)
    with transaction.atomic():
        row.refresh_from_db(from_queryset=ProviderModel.objects.select_for_update(no_key=True))
        _require_editable(row)
        before = endpoint_of(row)
        for name, value in changes.items():
            setattr(row, name, value)
        key = before.api_key if api_key is None else api_key.strip()
        _check_space(row, before)
        provider_model_check(row, key)
        if api_key is None and key and _server(row.base_url) != _server(before.base_url):
            message = _(
                "The stored key was given for another server: enter the key again, or leave the address as it was."
            )
            raise Rejected("api_key_needed", message)
        if not row.is_enabled:
            _require_unused(row, _("It cannot be switched off"))
        if api_key is not None:
            row.secrets = {"api_key": key} if key else {}  # encrypted as it is saved
        after = replace(endpoint_of(row), api_key=key)
        if any(getattr(after, name) != getattr(before, name) for name in TESTED):
            for name, value in UNTESTED.items():  # how it answers now is not known
                setattr(row, name, value)
        with _names_once():
            row.save()
    row.refresh_from_db(fields=["secrets"])


def provider_model_delete(row: ProviderModel, *, user: User) -> None:
    """Deletes a model that no knowledge base uses; raises NotAllowed and Rejected, which names those that do."""
    _require_superuser(user)
    with transaction.atomic():
        row.refresh_from_db(from_queryset=ProviderModel.objects.select_for_update())
        _require_editable(row)
        _require_unused(row, _("It cannot be deleted"))
        row.delete()


def provider_model_set_default(row: ProviderModel, *, user: User) -> None:
    """Makes a model that of its role: one of the environment's serves where no row of people is the default."""
    _require_superuser(user)
    with transaction.atomic():
        # All of the role: of two who choose at one moment the second one sees what the first has chosen
        of_role = list(ProviderModel.objects.select_for_update(no_key=True).filter(role=row.role).order_by("pk"))
        row.refresh_from_db()
        if not row.is_enabled:
            raise Rejected("is_enabled_invalid", _("Switch the model on before it becomes the default."))
        for other in of_role:
            if other.is_default and other.pk != row.pk:
                other.is_default = False
                other.save(update_fields=["is_default", "updated_at"])
        row.is_default = not row.variable
        row.save(update_fields=["is_default", "updated_at"])


def provider_model_tested(
    row: ProviderModel, *, ok: bool, latency_ms: int | None = None, message: str = "", dimension: int | None = None
) -> None:
    """Stores how a test ended; the message, which must not hold the key, is shown to superusers."""
    row.tested_at, row.test_ok, row.test_latency_ms = timezone.now(), ok, latency_ms
    row.test_message = message if isinstance(message, Message) else message[:1_000]
    row.dimension = dimension or row.dimension
    row.save(update_fields=["tested_at", "test_ok", "test_latency_ms", "test_message", "dimension"])


def environment_models_sync() -> None:
    """Makes the rows that show the models of environment variables what these say now, and deletes those of others."""
    endpoints = {each.slug: each for each in environment_endpoints()}
    with transaction.atomic():
        ProviderModel.objects.exclude(variable="").exclude(slug__in=endpoints).delete()
        for slug, endpoint in endpoints.items():
            said = {
                "role": endpoint.role.value,
                "name": endpoint.name,
                "provider": endpoint.provider,
                "base_url": shown_address(endpoint.base_url),
                "model": endpoint.model,
                "options": dict(endpoint.options),
                "variable": endpoint.variable,
            }
            row, is_new = ProviderModel.objects.get_or_create(slug=slug, defaults=said)
            if is_new or all(getattr(row, name) == value for name, value in said.items()):
                continue
            # Another model: nothing that was measured holds of it.
            ProviderModel.objects.filter(pk=row.pk).update(**said, **UNTESTED, dimension=None)


def knowledge_bases_using(row: ProviderModel) -> QuerySet[KnowledgeBase]:
    """Those whose vectors, or vectors under way or kept for a way back, are an embedding model's."""
    if row.role != Role.EMBEDDING:
        return KnowledgeBase.objects.none()
    model_id = endpoint_of(row).id
    return KnowledgeBase.objects.filter(
        Q(embedding_model=model_id) | Q(target_embedding_model=model_id) | Q(previous_embedding_model=model_id)
    )


def _require_superuser(user: User) -> None:
    if not user.is_superuser:
        raise NotAllowed(_("Only superusers may set up models."))


def _require_editable(row: ProviderModel) -> None:
    if row.variable:
        message = _("This model is set by the environment variable %(variable)s: change it there and restart.")
        raise Rejected("variable_set", message, variable=row.variable)


def _require_unused(row: ProviderModel, refusal: str) -> None:
    names = list(knowledge_bases_using(row).order_by("name").values_list("name", flat=True)[: NAMED + 1])
    if not names:
        return
    listed = ", ".join(names[:NAMED]) + (" …" if len(names) > NAMED else "")
    message = _("%(refusal)s: it is used by %(names)s. Choose another embedding model for them first.")
    raise Rejected("in_use", message, refusal=refusal, names=listed)


def _check_space(row: ProviderModel, before: Endpoint) -> None:
    options = [before.options.get(name) != row.options.get(name) for name in SPACE_OPTIONS]
    is_other = row.role != before.role or (
        row.role == Role.EMBEDDING and (any(options) or (row.provider, row.model) != (before.provider, before.model))
    )
    if is_other:
        message = _("Vectors depend on provider, model, dimensions and prompts: add a model of its own for others.")
        raise Rejected("model_fixed", message)


def _server(base_url: str) -> tuple[str, str, int]:
    url = parse_url(base_url)
    return url.scheme, url.host, port_of(url)


def _new_slug(model: str) -> str:
    """Readable, and never one that another installation or a deleted row had, since vectors carry it."""
    return f"{slugify(model.rpartition('/')[2])[:60] or 'model'}-{secrets.token_hex(4)}"


@contextmanager
def _names_once() -> Iterator[None]:
    """Two may have taken one name, or the place of the default, at one moment."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as error:
        raise Rejected("name_taken", _("Somebody changed the models at the same moment: try again.")) from error
