"""Counts of related rows as subqueries, so that a list of many rows stays one query."""

from typing import Any

from django.db.models import Count, IntegerField, Model, OuterRef, Subquery
from django.db.models.functions import Coalesce


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
