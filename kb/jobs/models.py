from typing import ClassVar

from django.conf import settings
from django.db import models

from kb.access.models import KnowledgeBase


class Turn(models.Model):
    """When a process last began work on rows of an owner, in one line of work."""

    is_derived = True

    line = models.CharField(max_length=20)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    taken_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["line", "owner"], name="turn_once")]

    def __str__(self) -> str:
        return f"{self.line}: {self.owner_id}"


class MoveAttempt(models.Model):
    """How often in a row a process that carried out a change of a knowledge base has ended without a word."""

    is_derived = True

    knowledge_base = models.ForeignKey(KnowledgeBase, models.CASCADE, related_name="+")
    purpose = models.BigIntegerField()
    count = models.PositiveSmallIntegerField(default=0)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "purpose"], name="move_attempt_once")
        ]

    def __str__(self) -> str:
        return f"{self.knowledge_base_id} {self.purpose:#x}: {self.count}"
