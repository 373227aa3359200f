import re
from typing import Any, ClassVar, Final, Self

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.core.validators import MaxValueValidator
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy as _

from kb.access.models import KnowledgeBase, ScopedQuerySet
from kb.base.db.audit_triggers import EVAL_QUERY, EVAL_SET, JUDGMENT
from kb.base.messages import MessageField
from kb.content.models import Document
from kb.profiles.models import RetrievalProfile
from kb.search.models import SearchedQuerySet, SearchLog

MAX_GRADE = 3
# Where clicks go if no set is named, apart from imported sets, whose figures they would change; pages call it the default one.
DEFAULT_SET: Final = "curated"


class EvalSet(models.Model):
    knowledge_base = models.ForeignKey(
        KnowledgeBase, models.CASCADE, related_name="eval_sets", verbose_name=_("knowledge base")
    )
    name = models.CharField(_("name"), max_length=120)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("evaluation set")
        verbose_name_plural = _("evaluation sets")
        ordering = ("name", "pk")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "name"], name="eval_set_name_per_kb")
        ]
        triggers: ClassVar = EVAL_SET.triggers()

    def __str__(self) -> str:
        return set_label(self.name)


def set_label(name: str) -> str:
    return gettext("Default set") if name == DEFAULT_SET else name


_MADE_ID = re.compile("q-[0-9a-f]{12}")


class Identified:
    external_id: Any

    @property
    def given_id(self) -> str:
        """The id that a file or a program has given; blank for one that was made here, which tells nobody anything."""
        return "" if _MADE_ID.fullmatch(self.external_id) else str(self.external_id)


class EvalQuery(Identified, models.Model):
    eval_set = models.ForeignKey(EvalSet, models.CASCADE, related_name="queries", verbose_name=_("evaluation set"))
    external_id = models.CharField(_("id"), max_length=200)
    text = models.TextField(_("query"))
    answerable = models.BooleanField(_("answerable"), default=True)

    objects = ScopedQuerySet.through("eval_set__knowledge_base").as_manager()

    class Meta:
        verbose_name = _("evaluation query")
        verbose_name_plural = _("evaluation queries")
        ordering = ("pk",)
        constraints: ClassVar = [models.UniqueConstraint(fields=["eval_set", "external_id"], name="eval_query_once")]
        triggers: ClassVar = EVAL_QUERY.triggers()

    def __str__(self) -> str:
        return self.text


class Judgment(models.Model):
    """How relevant a document, or a passage of it, is to a query, graded as in TREC qrels: 0 is irrelevant.

    It is anchored to the document's source, or title where it has none, and the passage's words (`quote`; blank: the
    whole document), not to a chunk, so it survives another chunking and another import. `document` is None once it is
    deleted; another one of the same source takes its place. `quote_hash` is the SHA-256 of the quote; blank with it.
    """

    query = models.ForeignKey(EvalQuery, models.CASCADE, related_name="judgments", verbose_name=_("query"))
    document = models.ForeignKey(
        Document, models.SET_NULL, null=True, related_name="judgments", verbose_name=_("document")
    )
    source = models.CharField(_("source"), max_length=1_000, blank=True)
    quote = models.TextField(_("passage"), blank=True)
    quote_hash = models.CharField(max_length=64, blank=True, editable=False)
    grade = models.PositiveSmallIntegerField(_("grade"), validators=[MaxValueValidator(MAX_GRADE)])
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, editable=False, related_name="+", verbose_name=_("by")
    )
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)

    objects = ScopedQuerySet.through("query__eval_set__knowledge_base").as_manager()

    class Meta:
        verbose_name = _("judgment")
        verbose_name_plural = _("judgments")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["query", "document", "quote_hash"], name="judgment_once")
        ]
        triggers: ClassVar = JUDGMENT.triggers()

    def __str__(self) -> str:
        return f"{self.query_id} → {self.source}: {self.grade}"


class EvalRunQuerySet(ScopedQuerySet):
    kb_path = "eval_set__knowledge_base"

    def without_documents(self) -> Self:
        """Without what is long and no list of runs shows; a figure of a report is to be annotated."""
        return self.defer("configuration", "report", "fit")


class EvalRun(models.Model):
    """One run of an evaluation set under one version of a profile, perhaps with unsaved settings over it (`overrides`).

    Attributes:
        embedding_model: that the vectors searched are of; blank: that which the knowledge base uses.
        configuration: as it was resolved.
        model_ids: by role ("embedding", "reranker", ...).
        kb_version: like `content_version` that of the knowledge base when the run began.
        report: what `manage.py evaluate --json` prints; empty until it is done.
        folds: of the cross-validation, where settings are fitted to the judgments too; None: they are not.
        fit: what `manage.py profile fit --json` prints; empty until it is done.
        heartbeat: when its process last reported progress; from `lease_until` on that counts as lost.
    """

    class Status(models.TextChoices):
        PENDING = "pending", _("waiting")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        CANCELLED = "cancelled", _("cancelled")
        FAILED = "failed", _("failed")

    eval_set = models.ForeignKey(EvalSet, models.CASCADE, related_name="runs", verbose_name=_("evaluation set"))
    profile = models.ForeignKey(RetrievalProfile, models.RESTRICT, related_name="runs", verbose_name=_("profile"))
    overrides = models.JSONField(_("unsaved settings"), default=dict)
    embedding_model = models.CharField(max_length=255, blank=True, db_default="")
    configuration = models.JSONField(_("configuration"), default=dict)
    model_ids = models.JSONField(_("models"), default=dict)
    kb_version = models.BigIntegerField(null=True)
    content_version = models.BigIntegerField(null=True)
    status = models.CharField(_("status"), max_length=10, choices=Status, default=Status.PENDING)
    cancel_requested = models.BooleanField(default=False)
    query_limit = models.PositiveIntegerField(null=True)
    done = models.PositiveIntegerField(_("done"), default=0)
    total = models.PositiveIntegerField(_("total"), default=0)
    report = models.JSONField(_("report"), default=dict)
    folds = models.PositiveSmallIntegerField(null=True)
    fit = models.JSONField(default=dict, db_default={})
    error = MessageField(_("error"), blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, editable=False, related_name="+", verbose_name=_("by")
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    heartbeat = models.DateTimeField(null=True)
    lease = models.UUIDField(null=True, editable=False)
    lease_until = models.DateTimeField(null=True, editable=False)
    finished_at = models.DateTimeField(_("finished"), null=True)

    objects = EvalRunQuerySet.as_manager()

    class Meta:
        verbose_name = _("evaluation run")
        verbose_name_plural = _("evaluation runs")
        ordering = ("-created_at", "-pk")

    def __str__(self) -> str:
        return f"{self.eval_set} / {self.profile} #{self.pk}"


class EvalRunQuery(Identified, models.Model):
    """What a run measured of one query, whose id and text stay once it is deleted.

    Attributes:
        figures: by stage, by metric, from 0 to 1; empty for one without an answer.
        best_score: the highest that met the gate, be its result relevant or not; None where nothing was found.
        first_relevant: by stage, the rank of the first relevant unit; a stage that lacks it has lost them all.
        lost_at: the stage that lost the last relevant unit; blank where one is among the results.
        judged: (score, grade) of the judged results before the gate, for the calibration of thresholds.
    """

    run = models.ForeignKey(EvalRun, models.CASCADE, related_name="queries")
    query = models.ForeignKey(EvalQuery, models.SET_NULL, null=True, related_name="+")
    external_id = models.CharField(max_length=200)
    text = models.TextField()
    answerable = models.BooleanField()
    figures = models.JSONField(default=dict)
    best_score = models.FloatField(null=True)
    score_scale = models.CharField(max_length=20, blank=True)
    first_relevant = models.JSONField(default=dict)
    lost_at = models.CharField(max_length=20, blank=True)
    judged = models.JSONField(default=list)
    latency_ms = models.FloatField()

    objects = ScopedQuerySet.through("run__eval_set__knowledge_base").as_manager()

    class Meta:
        verbose_name = _("measured query")
        verbose_name_plural = _("measured queries")
        ordering = ("pk",)
        constraints: ClassVar = [models.UniqueConstraint(fields=["run", "external_id"], name="eval_run_query_once")]

    def __str__(self) -> str:
        return self.text


class FailedQuery(models.Model):
    """One query that failed, however often, with counts by `Reason`: the curators' inbox.

    `key` is the SHA-256 of the searched knowledge bases and the normalised query; `last_search`, the newest entry of
    the search log, is None where it is no longer kept; `assistant_ids` are of those that were asked it.
    """

    class Reason(models.TextChoices):
        NOTHING = "nothing", _("nothing found")
        GATED = "gated", _("all below the threshold")
        DEGRADED = "degraded", _("degraded")
        DISLIKED = "disliked", _("not helpful")
        UNANSWERED = "unanswered", _("passages do not answer it")
        WEAK = "weak", _("low relevance only")

    class State(models.TextChoices):
        OPEN = "open", _("open")
        IN_PROGRESS = "in_progress", _("in progress")
        RESOLVED = "resolved", _("resolved")
        IGNORED = "ignored", _("ignored")

    WAITING: ClassVar = (State.OPEN, State.IN_PROGRESS)
    ASKED_BY_VISITORS: ClassVar = ~models.Q(assistant_ids=[])

    key = models.CharField(max_length=64, unique=True, editable=False)
    knowledge_base_ids = ArrayField(models.BigIntegerField(), verbose_name=_("knowledge bases"))
    assistant_ids = ArrayField(models.BigIntegerField(), verbose_name=_("assistants"), default=list, db_default=[])
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
