import uuid
from typing import ClassVar

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.utils.translation import gettext_lazy as _

from kb.models.access import Principal


class RetrievalProfile(models.Model):
    """Named, versioned retrieval settings; what a version leaves out is inherited from the environment."""

    name = models.CharField(_("name"), max_length=80)
    version = models.PositiveIntegerField(_("version"), default=1)
    description = models.TextField(_("description"), blank=True)
    settings = models.JSONField(_("settings"), default=dict, blank=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("retrieval profile")
        verbose_name_plural = _("retrieval profiles")
        ordering = ("name", "-version")
        constraints: ClassVar = [models.UniqueConstraint(fields=["name", "version"], name="profile_version_once")]

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


class SearchLogQuerySet(models.QuerySet["SearchLog"]):
    def visible_to(self, principal: Principal) -> "SearchLogQuerySet":
        """Searches whose knowledge bases the principal may all see now."""
        from kb.models.knowledge import KnowledgeBase  # noqa: PLC0415 - the models of that module use this package

        if not principal.user.is_active:
            return self.none()
        if principal.user.is_superuser and principal.kb_ids is None:
            return self
        visible = KnowledgeBase.objects.visible_to(principal).values_list("pk", flat=True)
        return self.filter(knowledge_base_ids__contained_by=list(visible)).exclude(knowledge_base_ids=[])


class SearchLog(models.Model):
    """One search as it was run: its trace and the resolved configuration, enough to run it again."""

    id = models.UUIDField(_("trace id"), primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+", verbose_name=_("user")
    )
    knowledge_base_ids = ArrayField(models.BigIntegerField(), verbose_name=_("knowledge bases"))
    query = models.TextField(_("query"))
    profile = models.CharField(_("profile"), max_length=80)
    profile_version = models.PositiveIntegerField(_("profile version"))
    configuration = models.JSONField(_("configuration"))
    trace = models.JSONField(_("trace"))
    degraded = models.JSONField(_("degraded"), default=list)
    result_count = models.PositiveIntegerField(_("results"))
    duration_ms = models.FloatField(_("milliseconds"))
    # Apart from the trace: it may tell of knowledge bases that other readers of the trace may not see.
    history = models.JSONField(default=list, editable=False)
    created_at = models.DateTimeField(_("time"), db_index=True)

    objects = SearchLogQuerySet.as_manager()

    class Meta:
        verbose_name = _("search log entry")
        verbose_name_plural = _("search log")
        ordering = ("-created_at",)
        indexes: ClassVar = [GinIndex(fields=["knowledge_base_ids"], name="searchlog_by_kb")]

    def __str__(self) -> str:
        return self.query
