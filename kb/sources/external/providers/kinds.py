"""The kinds of search services that a knowledge base may ask: another one is a module of its own and a line in KINDS."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from kb.access.models import User
from kb.base.errors import Rejected
from kb.sources.external.providers import vertex
from kb.sources.external.providers.fields import Field, unanswered
from kb.sources.models import SearchProvider
from retrieval.errors import message_of
from retrieval.protocols import ExternalProvider
from retrieval.trace import DegradationCode

_MOST_CHARACTERS: Final = 300


@dataclass(frozen=True, slots=True)
class ProviderKind:
    """A kind of search service.

    Attributes:
        label: what pages call it.
        fields: its settings, in the order of a form.
        check: raises Rejected where values that are each right do not go together, or an operator has not allowed them
            to the owner of the knowledge base.
        installed: whether its client library is there.
        extra: of the package, that brings it.
        make: the provider of a source with checked settings.
    """

    label: str | Promise
    fields: tuple[Field, ...]
    check: Callable[[Mapping[str, Any], Callable[[], str]], None]
    installed: Callable[[], bool]
    extra: str
    make: Callable[[str, Mapping[str, Any]], ExternalProvider]


KINDS: Final[Mapping[str, ProviderKind]] = {
    vertex.KIND: ProviderKind(
        vertex.LABEL, vertex.FIELDS, vertex.check, vertex.installed, vertex.EXTRA, vertex.VertexSearch
    )
}


def checked_settings(kind: str, values: Mapping[str, Any], knowledge_base_id: int | None = None) -> dict[str, Any]:
    """The settings of a source, complete.

    The owner of the knowledge base decides which stores are open to it; without one, those that are open to all are.

    Raises:
        Rejected: they cannot be used; says which and why.
    """
    known = KINDS.get(kind)
    if known is None:
        raise Rejected(
            "kind_invalid",
            _("There is no kind “%(kind)s” of external source: choose from %(kinds)s."),
            kind=kind,
            kinds=", ".join(KINDS),
        )
    if kind not in settings.EXTERNAL_PROVIDERS:
        raise Rejected("kind_invalid", not_allowed(kind))
    fields = {field.name: field for field in known.fields}
    if unknown := sorted(values.keys() - fields.keys()):
        raise Rejected(
            "settings_invalid",
            _("There is no setting “%(name)s” of this kind: choose from %(names)s."),
            name=unknown[0],
            names=", ".join(fields),
        )
    checked = {name: _checked(field, values.get(name, field.default)) for name, field in fields.items()}
    # Asked of the database each time: a knowledge base may be another's by now.
    owner = User.objects.filter(knowledge_bases=knowledge_base_id)
    known.check(checked, lambda: owner.values_list("username", flat=True).first() or "")
    return checked


def provider_of(source: SearchProvider) -> ExternalProvider:
    """What answers for a source.

    Raises:
        ChannelUnavailable: EXTERNAL_NOT_CONFIGURED, with what to do.
    """
    try:
        values = checked_settings(source.kind, source.settings, source.knowledge_base_id)
    except Rejected as error:
        raise unanswered(DegradationCode.EXTERNAL_NOT_CONFIGURED, source.name, reason=message_of(error)) from error
    kind = KINDS[source.kind]
    if not kind.installed():
        raise unanswered(DegradationCode.EXTERNAL_NOT_CONFIGURED, source.name, reason=not_installed(kind))
    return kind.make(source.name, values)


def not_installed(kind: ProviderKind) -> str:
    message = _("The client library of %(kind)s is not installed: run `pip install 'zhiku[%(extra)s]'`.")
    return message % {"kind": kind.label, "extra": kind.extra}


def not_allowed(kind: str) -> str:
    return _(
        "This server may not send queries to “%(kind)s”: whoever runs it can allow it by EXTERNAL_PROVIDERS=%(kind)s."
    ) % {"kind": kind}


def _checked(field: Field, value: Any) -> Any:
    if field.is_flag:
        if not isinstance(value, bool):
            raise Rejected(f"{field.name}_invalid", _("“%(name)s” is true or false."), name=field.name)
        return value
    if not isinstance(value, str) or len(value) > _MOST_CHARACTERS:
        raise Rejected(
            f"{field.name}_invalid",
            _("“%(name)s” is a text of at most %(most)d characters."),
            name=field.name,
            most=_MOST_CHARACTERS,
        )
    value = value.strip()
    if not value and field.is_required:
        raise Rejected(f"{field.name}_invalid", _("Give “%(name)s”."), name=field.label)
    if field.choices and value not in field.choices:
        raise Rejected(
            f"{field.name}_invalid",
            _("“%(name)s” is one of %(choices)s."),
            name=field.name,
            choices=", ".join(field.choices),
        )
    if value and field.pattern and not re.fullmatch(field.pattern, value):
        raise Rejected(
            f"{field.name}_invalid",
            _("“%(value)s” cannot be “%(name)s”: %(hint)s"),
            value=value,
            name=field.label,
            hint=field.hint,
        )
    return value
