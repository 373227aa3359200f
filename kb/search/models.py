import uuid
from typing import Any, ClassVar, Self

from django.conf import settings
from django.contrib.postgres.expressions import ArraySubquery
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.db import models
from django.utils.translation import gettext_lazy as _

from kb.access.models import KnowledgeBase, Principal


class Speaker(models.TextChoices):
    USER = "user", _("user")
    ASSISTANT = "assistant", _("assistant")


class SearchedQuerySet(models.QuerySet[Any]):
    """Rows that tell of searches, each perhaps over several knowledge bases (`knowledge_base_ids`)."""

    def over_visible(self, principal: Principal) -> Self:
        """Those whose knowledge bases the principal may all see now, whoever asked."""
        if not principal.user.is_active:
            return self.none()
        if principal.user.is_superuser and principal.kb_ids is None:
            return self
        visible = ArraySubquery(KnowledgeBase.objects.visible_to(principal).values("pk"))
        return self.filter(knowledge_base_ids__contained_by=visible).exclude(knowledge_base_ids=[])

    def visible_to(self, principal: Principal) -> Self:
        """As `over_visible`; what visitors of assistants asked only where the principal curates all the knowledge bases."""
        seen = self.over_visible(principal)
        if principal.user.is_superuser:
            return seen
        curated = ArraySubquery(KnowledgeBase.objects.curated_by(principal).values("pk"))
        return seen.filter(~self.model.ASKED_BY_VISITORS | models.Q(knowledge_base_ids__contained_by=curated))

    def editable_by(self, principal: Principal) -> Self:
        """Those of whose knowledge bases the principal may edit every one."""
        seen = self.visible_to(principal)
        if not principal.can_write:
            return seen.none()
        if principal.user.is_superuser and principal.kb_ids is None:
            return seen
        editable = ArraySubquery(KnowledgeBase.objects.editable_by(principal).values("pk"))
        return seen.filter(knowledge_base_ids__contained_by=editable)


class ResultIds(models.Func):
    """The chunks that a trace's results are, as a JSON array in their order; the index `searchlog_by_result` holds it."""

    template = "jsonb_path_query_array(%(expressions)s, '$.results[*].chunk_id')"
    output_field = models.JSONField()


class SearchLog(models.Model):
    """One search as it was run: its trace and the resolved configuration, enough to run it again.

    Attributes:
        query: blank where the installation keeps queries out of the log.
        timings: milliseconds by stage, and "total".
    """

    ASKED_BY_VISITORS: ClassVar = models.Q(assistant__isnull=False)

    class Outcome(models.TextChoices):
        FOUND = "found", _("found")
        GATED = "gated", _("all below the threshold")
        NOTHING = "nothing", _("nothing found")

    class Feedback(models.IntegerChoices):
        BAD = -1, _("not helpful")
        GOOD = 1, _("helpful")

    id = models.UUIDField(_("trace id"), primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+", verbose_name=_("user")
    )
    # A plain number to the database: an assistant is deleted without a look at a long log.
    assistant = models.ForeignKey(
        "kb.Assistant",
        models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        null=True,
        related_name="+",
        verbose_name=_("assistant"),
    )
    knowledge_base_ids = ArrayField(models.BigIntegerField(), verbose_name=_("knowledge bases"))
    query = models.TextField(_("query"))
    profile = models.CharField(_("profile"), max_length=80)
    profile_version = models.PositiveIntegerField(_("profile version"))
    configuration = models.JSONField(_("configuration"))
    trace = models.JSONField(_("trace"))
    degraded = models.JSONField(_("degraded"), default=list)
    result_count = models.PositiveIntegerField(_("results"))
    outcome = models.CharField(_("outcome"), max_length=8, choices=Outcome, default=Outcome.FOUND)
    duration_ms = models.FloatField(_("milliseconds"))
    timings = models.JSONField(default=dict, editable=False)
    feedback = models.SmallIntegerField(_("feedback"), choices=Feedback, null=True, editable=False)
    # Apart from the trace: it may tell of knowledge bases that other readers of the trace may not see.
    history = models.JSONField(default=list, editable=False)
    created_at = models.DateTimeField(_("time"), db_index=True)

    objects = SearchedQuerySet.as_manager()

    class Meta:
        verbose_name = _("search log entry")
        verbose_name_plural = _("search log")
        ordering = ("-created_at",)
        indexes: ClassVar = [
            GinIndex(fields=["knowledge_base_ids"], name="searchlog_by_kb"),
            models.Index(
                fields=["assistant", "created_at"],
                condition=models.Q(assistant__isnull=False),
                name="searchlog_by_assistant",
            ),
            GinIndex(OpClass(ResultIds("trace"), name="jsonb_path_ops"), name="searchlog_by_result"),
        ]

    def __str__(self) -> str:
        return self.query
