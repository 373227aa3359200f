from typing import ClassVar

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from kb.base.messages import MessageField
from kb.base.models import InternalRow


class ModelDownload(InternalRow):
    """The fetching of a model's files into the cache of this server, by a worker."""

    class Status(models.TextChoices):
        WAITING = "waiting", _("Waiting")
        RUNNING = "running", _("Downloading")
        DONE = "done", _("Downloaded")
        FAILED = "failed", _("Failed")
        CANCELLED = "cancelled", _("Cancelled")

    UNFINISHED: ClassVar = (Status.WAITING, Status.RUNNING)

    model = models.CharField(_("model"), max_length=200, unique=True)
    mirror = models.CharField(_("mirror"), max_length=200, blank=True)
    status = models.CharField(_("status"), max_length=12, choices=Status, default=Status.WAITING)
    bytes_done = models.BigIntegerField(default=0)
    bytes_total = models.BigIntegerField(null=True)
    error = MessageField(_("error"), blank=True, default="")
    attempts = models.PositiveIntegerField(default=0)
    lease = models.UUIDField(null=True, editable=False)
    lease_until = models.DateTimeField(null=True, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+", verbose_name=_("created by")
    )
    updated_at = models.DateTimeField(_("updated"), auto_now=True)

    class Meta:
        verbose_name = _("download of a model")
        verbose_name_plural = _("downloads of models")

    @property
    def is_unfinished(self) -> bool:
        return self.status in self.UNFINISHED

    @property
    def percent(self) -> int:
        return min(100, 100 * self.bytes_done // self.bytes_total) if self.bytes_total else 0
