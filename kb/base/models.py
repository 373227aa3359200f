import uuid
from functools import lru_cache
from typing import Any

from django.db import models
from django.db.models.functions import Coalesce


class InternalRow(models.Model):
    """A row of the program's own: none has a page of its own, and none is counted among what a deletion takes along."""

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self._meta.model_name} {self.pk}"


class Installation(InternalRow):
    """One row: the id that every cache key carries, so that two installations never read each other's entries."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)


@lru_cache(maxsize=1)
def installation_id() -> str:
    """The id of this installation, read once a process; after a restore its cache is cleared."""
    return str(Installation.objects.values_list("pk", flat=True).get())


def count_of(rows: "models.Manager[Any] | models.QuerySet[Any]", path: str) -> Coalesce:
    """How many of the rows lead to the outer row by the foreign keys of `path`.

    A subquery of its own for each count: two joined ones would multiply each other's rows.
    """
    of_outer = rows.filter(**{path: models.OuterRef("pk")}).order_by()
    counted = of_outer.annotate(group=models.F(path)).values("group").annotate(number=models.Count("pk"))
    return Coalesce(models.Subquery(counted.values("number")), 0)
