import uuid
from functools import lru_cache

from django.db import models


class Installation(models.Model):
    """One row: the id that every cache key carries, so that two installations never read each other's entries."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)

    def __str__(self) -> str:
        return str(self.pk)


@lru_cache(maxsize=1)
def installation_id() -> str:
    """The id of this installation, read once a process; after a restore its cache is cleared."""
    return str(Installation.objects.values_list("pk", flat=True).get())
