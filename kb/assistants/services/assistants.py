"""Assistants: made by whoever may edit all of their knowledge bases, changed in versions, and published."""

import base64
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import idna
from django.contrib.auth.hashers import make_password
from django.core.exceptions import ValidationError
from django.core.validators import URLValidator
from django.db import transaction
from django.utils import timezone
from django.utils.text import slugify
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase, Principal
from kb.assistants.models import PICTURE_BYTES, Assistant, AssistantVersion, ShareLink
from kb.assistants.settings import AssistantSettings
from kb.base.errors import NotAllowed, Rejected
from kb.base.text import storable
from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import Limits, run_job
from kb.providers.models import ProviderModel
from kb.providers.recommended import Role
from kb.providers.services import USERS

MOST_BASES, MOST_ORIGINS = 20, 20
# A picture as it is uploaded, and the side that it is drawn with.
MOST_PICTURE_MB: Final = 8
PICTURE_SIDE: Final = 256
# Besides what `save` sets: what an update may name.
LIVE = frozenset(
    {
        "name", "slug", "picture", "access", "origins", "visitor_questions", "visitor_tokens", "address_questions",
        "address_tokens", "total_questions", "total_tokens", "retention_days", "keeps_text",
    }
)  # fmt: skip
_RESERVED = frozenset({"new"})


def assistants_asking(row: ProviderModel) -> list[str]:
    """The names of those whose visitors are answered by a chat model that was chosen for them."""
    chosen = (
        Assistant.objects.filter(published__settings__model=row.slug)
        if row.role == Role.CHAT
        else Assistant.objects.none()
    )
    return list(chosen.order_by("name").values_list("name", flat=True))


USERS.append(assistants_asking)


@transaction.atomic
def assistant_create(
    principal: Principal,
    *,
    knowledge_base_ids: Collection[int],
    settings: AssistantSettings | None = None,
    password: str = "",
    **fields: Any,
) -> Assistant:
    """A new assistant, with its first version as a draft; `fields` are those of `LIVE`, the name at least.

    Raises NotAllowed where the principal may not edit every knowledge base, and Rejected for what cannot be.
    """
    fields["slug"] = fields.get("slug") or free_slug(fields["name"])
    assistant = Assistant(**fields)
    _check(assistant)
    assistant.password = make_password(password) if password else ""
    assistant.save()
    _set_bases(principal, assistant, knowledge_base_ids)
    version_create(principal, assistant, settings or AssistantSettings())
    return assistant


@transaction.atomic
def assistant_update(
    principal: Principal,
    assistant: Assistant,
    *,
    knowledge_base_ids: Collection[int] | None = None,
    password: str | None = None,
    **fields: Any,
) -> None:
    """Changes what holds at once; a blank password asks for none any more, None leaves it as it is. Raises as the creation."""
    if unknown := fields.keys() - LIVE:
        raise TypeError(f"not a field that changes at once: {', '.join(sorted(unknown))}")
    for name, value in fields.items():
        setattr(assistant, name, value)
    _check(assistant)
    if password is not None:
        assistant.password = make_password(password) if password else ""
    # Nobody else's change is taken back: it may have been closed, or published again, since it was read.
    assistant.save(update_fields=[*fields, *(["password"] if password is not None else []), "updated_at"])
    if knowledge_base_ids is not None:
        _set_bases(principal, assistant, knowledge_base_ids)


def draft_of(assistant: Assistant) -> AssistantVersion:
    """The newest version: the draft, or the published one where nothing has changed since."""
    return assistant.versions.order_by("-number")[:1].get()


@transaction.atomic
def version_create(principal: Principal, assistant: Assistant, settings: AssistantSettings) -> AssistantVersion:
    """The next version; the newest one where that has these settings already."""
    Assistant.objects.select_for_update().get(pk=assistant.pk)
    newest = assistant.versions.order_by("-number").first()
    if newest is not None and newest.settings == settings.stored():
        return newest
    number = newest.number + 1 if newest is not None else 1
    return assistant.versions.create(number=number, settings=settings.stored(), created_by_id=principal.user.pk)


@transaction.atomic
def version_publish(principal: Principal, version: AssistantVersion) -> None:
    """Has visitors answered by a version, with the principal's present rights. Raises NotAllowed as the creation."""
    assistant = Assistant.objects.select_for_update().get(pk=version.assistant_id)
    _require_editable(principal, [kb.pk for kb in assistant.knowledge_bases.all()])
    if version.published_at is None:
        AssistantVersion.objects.filter(pk=version.pk).update(published_at=timezone.now())
    assistant.published, assistant.publisher_id = version, principal.user.pk
    assistant.save(update_fields=["published", "publisher", "updated_at"])


def assistant_close(assistant: Assistant) -> None:
    """Takes an assistant back: nobody is answered until a version is published again."""
    Assistant.objects.filter(pk=assistant.pk).update(published=None, publisher=None)


def assistant_delete(assistant: Assistant) -> None:
    """For good, with its versions, links, visitors and their conversations."""
    Assistant.objects.filter(pk=assistant.pk).delete()


def picture_made_of(data: bytes) -> bytes:
    """A PNG as an assistant holds it, made in the sandbox of a picture in one of the usual formats; raises Rejected."""
    limits = Limits(seconds=20.0, output_bytes=1024**2, input_bytes=MOST_PICTURE_MB * 1024**2)
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        try:
            made = run_job("icon", Path(file.name), limits=limits, side=PICTURE_SIDE, most_bytes=PICTURE_BYTES)
        except ParseError as error:
            message = _("This picture cannot be read: choose a PNG, JPEG or WebP file of at most %(most)d MB.")
            raise Rejected("picture", message, most=MOST_PICTURE_MB) from error
    return base64.b64decode(str(made))


def link_create(principal: Principal, assistant: Assistant, *, name: str = "", expires_at: Any = None) -> ShareLink:
    return assistant.links.create(name=name, expires_at=expires_at, created_by_id=principal.user.pk)


def link_revoke(link: ShareLink) -> None:
    ShareLink.objects.filter(pk=link.pk, revoked_at=None).update(revoked_at=timezone.now())


def free_slug(name: str) -> str:
    """An address that is free, made of a name where that has Latin letters or digits."""
    base = slugify(name)[:50].strip("-") or "chat"
    taken = set(Assistant.objects.filter(slug__startswith=base).values_list("slug", flat=True)) | _RESERVED
    return next(
        each for each in (base, *(f"{base}-{number}" for number in range(2, len(taken) + 3))) if each not in taken
    )


def _set_bases(principal: Principal, assistant: Assistant, kb_ids: Collection[int]) -> None:
    _require_editable(principal, kb_ids)
    assistant.knowledge_bases.set(kb_ids)


def _require_editable(principal: Principal, kb_ids: Collection[int]) -> None:
    """The rights to every knowledge base, of which there is at least one."""
    if not 0 < len(set(kb_ids)) <= MOST_BASES:
        raise Rejected(
            "knowledge_bases", _("Choose at least one knowledge base, and at most %(most)d."), most=MOST_BASES
        )
    editable = KnowledgeBase.objects.editable_by(principal).filter(pk__in=kb_ids).count()
    if editable < len(set(kb_ids)):
        raise NotAllowed(_("An assistant is made by those who may edit every one of its knowledge bases."))


def _check(assistant: Assistant) -> None:
    assistant.name = storable(assistant.name).strip()
    assistant.origins = list(dict.fromkeys(map(checked_origin, assistant.origins)))
    if len(assistant.origins) > MOST_ORIGINS:
        raise Rejected("origins", _("Name at most %(most)d websites."), most=MOST_ORIGINS)
    try:
        assistant.clean_fields(exclude={"published", "publisher", "picture", "password"})
    except ValidationError as error:
        name, messages = next(iter(error.message_dict.items()))
        label = Assistant._meta.get_field(name).verbose_name  # type: ignore[union-attr]
        raise Rejected(name, _("%(field)s: %(problem)s"), field=label, problem=messages[0]) from error
    if Assistant.objects.filter(slug=assistant.slug).exclude(pk=assistant.pk).exists() or assistant.slug in _RESERVED:
        raise Rejected("slug", _("The address “%(slug)s” is taken: choose another."), slug=assistant.slug)


def checked_origin(text: str) -> str:
    """The origin of a page that may embed an assistant, as a browser writes it; raises Rejected for what is none."""
    given = text.strip().rstrip("/").lower()
    try:
        if not given.isascii():  # a header holds nothing else, and browsers compare with this form
            scheme, _separator, rest = given.partition("://")
            host, colon, port = rest.partition(":")
            given = f"{scheme}://{idna.encode(host, uts46=True).decode()}{colon}{port}"
        URLValidator(schemes=["http", "https"])(given)
    except (ValidationError, idna.IDNAError):
        given = ""
    if (
        not given.isascii()
        or not given
        or given.count("/") != 2
        or "@" in given
        or any(each in given for each in "?#*;, '\"")
    ):
        message = _("“%(text)s” is no website: write its address without a path, such as https://www.example.com.")
        raise Rejected("origins", message, text=text.strip()[:100])
    return given
