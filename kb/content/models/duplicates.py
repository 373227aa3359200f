from django.db import models

from kb.access.models.accounts import ScopedQuerySet
from kb.access.models.knowledge import KnowledgeBase


class DuplicateScan(models.Model):
    """What the last look for near-duplicates in a knowledge base has found; large ones are looked through by a worker.

    Attributes:
        version: of the knowledge base's chunks that were looked at; another one by now: the result may be out of date.
        groups: as {"chunk_ids", "similarity"}, the most alike first; the similarity is that of its least alike pair.
        group_count: of all that were found, of which the first are kept.
        found_at: None: it is the first look, and not done.
        asked_at: since when a worker is to look; None: nobody waits.
    """

    knowledge_base = models.OneToOneField(
        KnowledgeBase, models.CASCADE, primary_key=True, related_name="duplicate_scan"
    )
    version = models.BigIntegerField(default=0)
    groups = models.JSONField(default=list)
    group_count = models.PositiveIntegerField(default=0)
    found_at = models.DateTimeField(null=True)
    asked_at = models.DateTimeField(null=True)

    objects = ScopedQuerySet.as_manager()

    def __str__(self) -> str:
        return f"{self.knowledge_base_id}: {self.group_count}"
