from typing import ClassVar

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils.translation import gettext_lazy as _

from kb.access.models.accounts import ScopedQuerySet
from kb.access.models.knowledge import KnowledgeBase


class IngestBatch(models.Model):
    """Documents that came in together: their progress is told, and they are paused and cancelled, as one.

    Attributes:
        name: what the curator knows it by: a folder, an archive, "12 files".
        paused: workers take none of its documents up.
        notes: files that became no document, as {"name", "code", "params", "document"}, the first of them only.
        note_count: how many there are.
    """

    knowledge_base = models.ForeignKey(
        KnowledgeBase, models.CASCADE, related_name="batches", verbose_name=_("knowledge base")
    )
    name = models.CharField(_("name"), max_length=200)
    paused = models.BooleanField(_("paused"), default=False)
    notes = models.JSONField(default=list, editable=False)
    note_count = models.PositiveIntegerField(default=0, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, editable=False, related_name="+", verbose_name=_("by")
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("upload")
        verbose_name_plural = _("uploads")
        ordering: ClassVar = ("-created_at", "-pk")

    def __str__(self) -> str:
        return self.name


class FileDetails(models.Model):
    """What a curator's table says about a file of an upload, before or after the file has come."""

    batch = models.ForeignKey(IngestBatch, models.CASCADE, related_name="details")
    name = models.CharField(max_length=1_000)
    title = models.CharField(max_length=500, blank=True)
    tags = ArrayField(models.CharField(max_length=60), default=list)
    metadata = models.JSONField(default=dict)

    objects = ScopedQuerySet.through("batch__knowledge_base").as_manager()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["batch", "name"], name="file_details_once")]

    def __str__(self) -> str:
        return self.name
