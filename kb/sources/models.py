"""Where documents come from by themselves, and searches elsewhere that join ours."""

from typing import ClassVar

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _, pgettext_lazy

from kb.access.models import KnowledgeBase, ScopedQuerySet
from kb.base.db.audit_triggers import EXTERNAL_SOURCE, WEB_SOURCE
from kb.base.db.triggers import CONTENT_TRIGGERS, LIVE_SOURCE_TRIGGERS
from kb.base.messages import MessageField
from kb.base.net.addresses import URL_CHARACTERS
from kb.content.models import Document


class WebSource(models.Model):
    """Pages or entries of the web that are stored as documents of a knowledge base.

    Attributes:
        every_minutes: between two runs; None: only when somebody asks for it.
        include: regular expressions, one of which the address of a page must match; none: any of the same host.
        exclude: regular expressions, none of which it may match.
        live: whether queries read it too, without any document; of a page or a feed only.
        next_run_at: None: not planned.
        lease_until: until when a worker has it, or its task is awaited.
        attempts: how many in a row to carry the present run on came to no end.
        started_at: None: the present run waits for its first worker.
        accepted_at: when somebody last accepted what a run held back: pages that were gone by then lose their documents.
        accepted_keys: the texts (`text_key`) that pages may then turn into; until the next run that is done.
    """

    class Kind(models.TextChoices):
        PAGE = "page", pgettext_lazy("of the web", "page")
        SITEMAP = "sitemap", _("sitemap")
        CRAWL = "crawl", _("crawl")
        FEED = "feed", _("RSS or Atom feed")

    class Status(models.TextChoices):
        NEVER = "never", _("not run yet")
        WAITING = "waiting", _("waiting")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        FAILED = "failed", _("failed")
        CANCELLED = "cancelled", _("cancelled")

    knowledge_base = models.ForeignKey(
        KnowledgeBase, models.CASCADE, related_name="web_sources", verbose_name=_("knowledge base")
    )
    name = models.CharField(_("name"), max_length=200)
    kind = models.CharField(_("kind"), max_length=8, choices=Kind, default=Kind.PAGE)
    url = models.CharField(_("address"), max_length=URL_CHARACTERS)
    enabled = models.BooleanField(_("enabled"), default=True)
    live = models.BooleanField(
        _("ask at query time"),
        default=False,
        help_text=_("Queries read it too, as a channel of its own. Of a page or a feed only."),
    )
    every_minutes = models.PositiveIntegerField(
        _("every so many minutes"),
        null=True,
        blank=True,
        validators=[MinValueValidator(5), MaxValueValidator(60 * 24 * 90)],
        help_text=_("Blank: only when somebody asks for it."),
    )
    max_pages = models.PositiveIntegerField(
        _("most pages"), default=200, validators=[MinValueValidator(1), MaxValueValidator(20_000)]
    )
    max_depth = models.PositiveSmallIntegerField(_("depth"), default=2, validators=[MaxValueValidator(10)])
    include = ArrayField(
        models.CharField(max_length=300), verbose_name=_("only addresses like"), default=list, blank=True
    )
    exclude = ArrayField(
        models.CharField(max_length=300), verbose_name=_("no addresses like"), default=list, blank=True
    )
    tags = ArrayField(models.CharField(max_length=60), verbose_name=_("tags"), default=list, blank=True)
    status = models.CharField(_("status"), max_length=12, choices=Status, default=Status.NEVER, editable=False)
    attempts = models.PositiveSmallIntegerField(default=0, editable=False)
    error_code = models.CharField(max_length=40, blank=True, editable=False)
    error = MessageField(_("error"), blank=True, editable=False)
    error_params = models.JSONField(default=dict, editable=False)
    counts = models.JSONField(default=dict, editable=False)
    started_at = models.DateTimeField(_("last run"), null=True, editable=False)
    finished_at = models.DateTimeField(null=True, editable=False)
    next_run_at = models.DateTimeField(_("next run"), null=True, editable=False)
    lease = models.UUIDField(null=True, editable=False)
    lease_until = models.DateTimeField(null=True, editable=False)
    accepted_at = models.DateTimeField(null=True, editable=False)
    accepted_keys = ArrayField(models.CharField(max_length=64), default=list, db_default=[], editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, editable=False, related_name="+", verbose_name=_("by")
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("web source")
        verbose_name_plural = _("web sources")
        ordering = ("name", "pk")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "name"], name="web_source_name_per_kb")
        ]
        triggers: ClassVar = [*LIVE_SOURCE_TRIGGERS, *WEB_SOURCE.triggers()]

    def __str__(self) -> str:
        return self.name


class WebPage(models.Model):
    """One address of a web source as it was last seen.

    Attributes:
        document: None where the page has none: not read yet, failed, vanished, or the same as another document.
        version: of what a feed says of the entry; while it is the same, the entry is not read again.
        fetched_at: when it was last asked for, with or without success.
        etag: like `last_modified` from the server, sent back to ask whether anything has changed.
        text_key: of its document's text without numbers and addresses, to compare pages by; blank: unknown.
        shown_key: of a text that it shows in place of its own and shares with other pages; blank: it shows its own.
        gone_at: since when it is gone or shows the text of others; a later run that finds it so still deletes its
            document.
    """

    class State(models.TextChoices):
        KEPT = "kept", _("kept")
        UNCHANGED = "unchanged", _("unchanged")
        REFUSED = "refused", _("refused by robots.txt")
        FAILED = "failed", _("failed")
        GONE = "gone", _("gone")
        DUPLICATE = "duplicate", _("same as another document")

    source = models.ForeignKey(WebSource, models.CASCADE, related_name="pages", verbose_name=_("web source"))
    document = models.OneToOneField(
        Document, models.SET_NULL, null=True, related_name="web_page", verbose_name=_("document")
    )
    url = models.CharField(_("address"), max_length=URL_CHARACTERS)
    url_hash = models.CharField(max_length=64, editable=False)
    title = models.CharField(_("title"), max_length=500, blank=True)
    state = models.CharField(_("state"), max_length=10, choices=State, default=State.KEPT)
    etag = models.CharField(max_length=500, blank=True)
    last_modified = models.CharField(max_length=100, blank=True)
    content_hash = models.CharField(max_length=64, blank=True)
    text_key = models.CharField(max_length=64, blank=True, db_default="", editable=False, db_index=True)
    shown_key = models.CharField(max_length=64, blank=True, db_default="", editable=False)
    version = models.CharField(max_length=64, blank=True)
    error_code = models.CharField(max_length=40, blank=True)
    error = MessageField(_("error"), blank=True)
    error_params = models.JSONField(default=dict)
    fetched_at = models.DateTimeField(pgettext_lazy("when", "read"), null=True)
    gone_at = models.DateTimeField(_("gone since"), null=True)

    objects = ScopedQuerySet.through("source__knowledge_base").as_manager()

    class Meta:
        verbose_name = _("page of a web source")
        verbose_name_plural = _("pages of web sources")
        ordering = ("url",)
        constraints: ClassVar = [models.UniqueConstraint(fields=["source", "url_hash"], name="web_page_once")]

    def __str__(self) -> str:
        return self.url


class WebPageChange(models.Model):
    """What a page with a document says now (file and `details`), held until its run has seen whether others say the same."""

    page = models.OneToOneField(WebPage, models.CASCADE, related_name="change")
    text_key = models.CharField(max_length=64, db_index=True)
    data = models.BinaryField()
    details = models.JSONField()

    objects = ScopedQuerySet.through("page__source__knowledge_base").as_manager()

    def __str__(self) -> str:
        return str(self.page)


class SearchProvider(models.Model):
    """A search service elsewhere whose results join a knowledge base's as a channel: an external source.

    Attributes:
        kind: a name in KINDS, so that another one needs no migration.
        settings: of the kind; never a secret, which the environment holds.
        timeout_ms: after that much the search goes on without it, and says so.
        weight: in the fusion; None: the profile's `external_weight`.
    """

    knowledge_base = models.ForeignKey(
        KnowledgeBase, models.CASCADE, related_name="search_providers", verbose_name=_("knowledge base")
    )
    name = models.CharField(_("name"), max_length=80)
    kind = models.CharField(_("kind"), max_length=40, default="vertex_ai_search")
    settings = models.JSONField(_("settings"), default=dict, blank=True)
    enabled = models.BooleanField(_("enabled"), default=True)
    timeout_ms = models.PositiveIntegerField(
        _("milliseconds allowed"), default=2_000, validators=[MinValueValidator(50), MaxValueValidator(30_000)]
    )

    weight = models.FloatField(
        _("weight"),
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(1_000)],
        help_text=_("How much its ranking counts in the fusion. Blank: as the profile says."),
    )

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("external source")
        verbose_name_plural = _("external sources")
        ordering = ("name", "pk")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "name"], name="search_provider_name_per_kb")
        ]
        triggers: ClassVar = [*CONTENT_TRIGGERS, *EXTERNAL_SOURCE.triggers()]

    def __str__(self) -> str:
        return self.name
