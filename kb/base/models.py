import uuid

from django.db import models


class Installation(models.Model):
    """One row: the id that every cache key carries, so that two installations never read each other's entries."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)

    def __str__(self) -> str:
        return str(self.pk)
