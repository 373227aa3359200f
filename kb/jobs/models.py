from typing import ClassVar

from django.conf import settings
from django.db import models

from kb.access.models import KnowledgeBase
from kb.base.models import InternalRow


class Turn(InternalRow):
    """When a process last began work on rows of an owner, in one line of work."""

    line = models.CharField(max_length=20)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    taken_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["line", "owner"], name="turn_once")]


class MoveAttempt(InternalRow):
    """How often in a row a process that carried out a change of a knowledge base has ended without a word."""

    knowledge_base = models.ForeignKey(KnowledgeBase, models.CASCADE, related_name="+")
    purpose = models.BigIntegerField()
    count = models.PositiveSmallIntegerField(default=0)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "purpose"], name="move_attempt_once")
        ]
