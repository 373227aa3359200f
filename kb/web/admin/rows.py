"""Ids that stand in addresses and forms, which anybody can write."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, IntegerField, Model, OuterRef, Subquery
from django.db.models.functions import Coalesce
from django.forms import BaseInlineFormSet, ModelChoiceField

ID_DIGITS = 18
"""What fits a bigint, whatever the digits are."""


def row_id(text: str) -> int | None:
    """The id of a row, as far as a text is one."""
    plain = text.strip()
    return int(plain) if plain.isascii() and plain.isdecimal() and len(plain) <= ID_DIGITS else None


def row_ids(texts: Iterable[str]) -> list[int]:
    """The ids among texts."""
    return [found for text in texts if (found := row_id(text)) is not None]


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to look at the rows; `count` is None where it is not counted."""

    value: str
    label: str
    url: str
    is_chosen: bool
    count: int | None = None


def count_of(model: type[Model], path: str, **conditions: Any) -> Coalesce:
    """How many rows of a model point to the outer row by a lookup.

    Args:
        model: whose rows are counted.
        path: the foreign key to the outer row.
        conditions: further filters on the counted rows.
    """
    counted = (
        model._default_manager.filter(**{path: OuterRef("pk")}, **conditions)
        .order_by()
        .values(path)
        .annotate(number=Count("pk"))
        .values("number")
    )
    return Coalesce(Subquery(counted, output_field=IntegerField()), 0)


class OwnRowsFormSet(BaseInlineFormSet):  # type: ignore[type-arg]
    """Knows the rows of its object only: Django's looks the key of a row up among all rows that there are."""

    def add_fields(self, form: Any, index: int | None) -> None:
        super().add_fields(form, index)
        key = form.fields.get("id")
        if isinstance(key, ModelChoiceField):
            key.queryset = self.get_queryset()
