import uuid
from typing import Any, ClassVar, Self

import pgtrigger
from django.conf import settings
from django.contrib.postgres.expressions import ArraySubquery
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from kb.access.models.principal import Principal
from kb.base.db.audit_triggers import PROFILE


class RetrievalProfileQuerySet(models.QuerySet["RetrievalProfile"]):
    """Shared profiles are everyone's to use and a superuser's to change; those of a knowledge base follow its rights."""

    def visible_to(self, principal: Principal) -> Self:
        if not principal.user.is_active:
            return self.none()
        return self.filter(Q(knowledge_base=None) | Q(knowledge_base__in=_bases().visible_to(principal)))

    def editable_by(self, principal: Principal) -> Self:
        own = Q(knowledge_base__in=_bases().editable_by(principal))
        may_all = principal.user.is_superuser and principal.kb_ids is None and principal.can_write
        return self.filter(own | Q(knowledge_base=None) if may_all else own)

    def versions_of(self, profile: "RetrievalProfile") -> Self:
        """The versions of the profile that this is one of: those of its name at its place."""
        return self.filter(name=profile.name, knowledge_base=profile.knowledge_base_id)

    def live(self, name: str) -> "RetrievalProfile":
        """What the name of a shared profile stands for: its published version, or its newest where none is published.

        Raises:
            RetrievalProfile.DoesNotExist: there is none of that name.
        """
        return self.filter(name=name, knowledge_base=None).order_by("-published", "-version")[:1].get()


class RetrievalProfile(models.Model):
    """One version of named retrieval settings; what it leaves out is inherited from the environment.

    A version never changes: an edit makes the next one. Of a profile at most one version is published, which is the one
    that the name stands for in requests and that the knowledge bases with this profile use; where none is, it is the newest.
    A profile is known by its place and its name: knowledge bases may each have one of the same name.

    Attributes:
        knowledge_base: whose own profile it is, in all its versions; None: shared.
    """

    name = models.CharField(_("name"), max_length=80)
    version = models.PositiveIntegerField(_("version"), default=1)
    knowledge_base = models.ForeignKey(
        "kb.KnowledgeBase",
        models.CASCADE,
        null=True,
        blank=True,
        related_name="own_profiles",
        verbose_name=_("knowledge base"),
    )
    description = models.TextField(_("description"), blank=True)
    settings = models.JSONField(_("settings"), default=dict, blank=True)
    published = models.BooleanField(_("published"), default=False)
    published_at = models.DateTimeField(_("published at"), null=True, editable=False)
    created_by = models.ForeignKey(
        "kb.User", models.SET_NULL, null=True, editable=False, related_name="+", verbose_name=_("by")
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    objects = RetrievalProfileQuerySet.as_manager()

    class Meta:
        verbose_name = _("retrieval profile")
        verbose_name_plural = _("retrieval profiles")
        ordering = ("name", "-version")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "name", "version"], name="profile_version_once"),
            models.UniqueConstraint(
                fields=["name", "version"], condition=Q(knowledge_base=None), name="shared_profile_version_once"
            ),
            models.UniqueConstraint(
                fields=["knowledge_base", "name"], condition=Q(published=True), name="profile_published_once"
            ),
            models.UniqueConstraint(
                fields=["name"],
                condition=Q(knowledge_base=None, published=True),
                name="shared_profile_published_once",
            ),
        ]
        triggers: ClassVar = [
            pgtrigger.ReadOnly(name="profile_never_changes", fields=["name", "version", "knowledge_base", "settings"]),
            *PROFILE.triggers(),
        ]

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"

    def is_version_of_same(self, other: "RetrievalProfile") -> bool:
        return (self.name, self.knowledge_base_id) == (other.name, other.knowledge_base_id)


class SearchedQuerySet(models.QuerySet[Any]):
    """Rows that tell of searches, each perhaps over several knowledge bases (`knowledge_base_ids`)."""

    def visible_to(self, principal: Principal) -> Self:
        """Those whose knowledge bases the principal may all see now."""
        if not principal.user.is_active:
            return self.none()
        if principal.user.is_superuser and principal.kb_ids is None:
            return self
        visible = ArraySubquery(_bases().visible_to(principal).values("pk"))
        return self.filter(knowledge_base_ids__contained_by=visible).exclude(knowledge_base_ids=[])


def _bases() -> Any:
    from kb.access.models.knowledge import KnowledgeBase

    return KnowledgeBase.objects.all()


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

    class Outcome(models.TextChoices):
        FOUND = "found", _("found")
        GATED = "gated", _("all below the gate")
        NOTHING = "nothing", _("nothing found")

    class Feedback(models.IntegerChoices):
        BAD = -1, _("not helpful")
        GOOD = 1, _("helpful")

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
            GinIndex(OpClass(ResultIds("trace"), name="jsonb_path_ops"), name="searchlog_by_result"),
        ]

    def __str__(self) -> str:
        return self.query


class FailedQuery(models.Model):
    """One query that failed, however often: the curators' inbox.

    Attributes:
        key: SHA-256 of the searched knowledge bases and the normalised query.
        reasons: how often it failed in each way, by `Reason`.
        last_search: the newest entry of the search log; None where it is no longer kept.
    """

    class Reason(models.TextChoices):
        NOTHING = "nothing", _("nothing found")
        GATED = "gated", _("all below the gate")
        DEGRADED = "degraded", _("degraded")
        DISLIKED = "disliked", _("not helpful")

    class State(models.TextChoices):
        OPEN = "open", _("open")
        IN_PROGRESS = "in_progress", _("in progress")
        RESOLVED = "resolved", _("resolved")
        IGNORED = "ignored", _("ignored")

    key = models.CharField(max_length=64, unique=True, editable=False)
    knowledge_base_ids = ArrayField(models.BigIntegerField(), verbose_name=_("knowledge bases"))
    query = models.TextField(_("query"))
    reasons = models.JSONField(_("reasons"), default=dict)
    count = models.PositiveIntegerField(_("times"), default=0)
    state = models.CharField(_("state"), max_length=12, choices=State, default=State.OPEN)
    assignee = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("assignee")
    )
    last_search = models.ForeignKey(SearchLog, models.SET_NULL, null=True, related_name="+")
    first_seen = models.DateTimeField(_("first seen"))
    last_seen = models.DateTimeField(_("last seen"))

    objects = SearchedQuerySet.as_manager()

    class Meta:
        verbose_name = _("failed query")
        verbose_name_plural = _("failed queries")
        ordering = ("-last_seen",)
        indexes: ClassVar = [
            models.Index(fields=["state", "-last_seen"], name="failed_query_by_state"),
            GinIndex(fields=["knowledge_base_ids"], name="failed_query_by_kb"),
        ]

    def __str__(self) -> str:
        return self.query
