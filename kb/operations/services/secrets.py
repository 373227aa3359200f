"""Secrets in the database: encrypted again under the present SECRET_KEY, and those that none of the keys opens."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db import transaction
from django.db.models import Model, QuerySet

from kb.access.models import kind_of
from kb.base.encryption import SecretsField, SecretsUnreadable, decrypted, renewed


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row whose secrets must be entered again; `kind` as the audit log has it."""

    kind: str
    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Rotated:
    """How many rows were encrypted again, how many were so already, and which no key opens."""

    renewed: int
    current: int
    unreadable: list[Unreadable]


def unreadable_secrets() -> list[Unreadable]:
    """The rows that none of SECRET_KEY and SECRET_KEY_FALLBACKS opens."""
    return [_named(row) for rows, field in _with_secrets() for row in rows if not _is_readable(getattr(row, field))]


def count_secrets() -> int:
    return sum(rows.count() for rows, _field in _with_secrets())


def secrets_rotate(on_row: Callable[[], object] = lambda: None) -> Rotated:
    """Encrypts all secrets under SECRET_KEY, so that the fallbacks can go; what none of the keys opens stays as it is."""
    changed = current = 0
    unreadable = []
    for rows, field in _with_secrets():
        for pk in rows.values_list("pk", flat=True):
            with transaction.atomic():
                row = rows.model._default_manager.select_for_update(no_key=True).filter(pk=pk).first()
                if row is None:
                    continue
                before = getattr(row, field)
                try:
                    after = renewed(before)
                except SecretsUnreadable:
                    unreadable.append(_named(row))
                else:
                    if after != before:
                        rows.model._default_manager.filter(pk=pk).update(**{field: after})
                        changed += 1
                    else:
                        current += 1
            on_row()
    return Rotated(changed, current, unreadable)


def _with_secrets() -> Iterator[tuple[QuerySet[Any], str]]:
    """The rows that hold secrets, and the field that holds them."""
    for model in apps.get_app_config("kb").get_models():
        for field in model._meta.fields:
            if isinstance(field, SecretsField):
                yield model._default_manager.exclude(**{field.name: ""}).order_by("pk"), field.name


def _is_readable(token: str) -> bool:
    try:
        decrypted(token)
    except SecretsUnreadable:
        return False
    return True


def _named(row: Model) -> Unreadable:
    return Unreadable(kind_of(row), row.pk, str(row))
