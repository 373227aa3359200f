"""Where documents come from by themselves, and searches elsewhere that join ours."""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _, pgettext_lazy

from kb.access.models import KnowledgeBase, ScopedQuerySet, User
from kb.base.db.audit_triggers import EXTERNAL_SOURCE, SOURCE
from kb.base.db.triggers import CONTENT_TRIGGERS, LIVE_SOURCE_TRIGGERS
from kb.base.encryption import SecretsField
from kb.base.messages import MessageField
from kb.base.models import InternalRow
from kb.base.net.addresses import URL_CHARACTERS
from kb.content.models import Document


class Source(models.Model):
    """A place whose files, pages or entries are stored as documents of a knowledge base, and kept up to date.

    Attributes:
        url: of a source of the web; blank for others, whose place is in `settings`.
        settings: by the fields of the kind's connector; none of them is a secret.
        secrets: encrypted (`kb.base.encryption`), never shown.
        enabled: whether it is read by its schedule; one that is not is read when somebody asks.
        paused: nothing reads it until it is resumed; a run that was under way goes on then.
        every_minutes: between two runs; None: only when somebody asks for it.
        include: of the web, regular expressions, one of which the address of a page must match; none: any of the same host.
        exclude: regular expressions, none of which it may match.
        live: whether queries read it too, without any document; of a page or a feed only.
        hides_gone: whether what the place has no longer is not searched, until its document is deleted.
        max_share: percent of its documents; a run that would delete so many, and two at least, deletes none and asks.
        next_run_at: None: not planned.
        lease_until: until when a worker has it, or its task is awaited.
        attempts: how many in a row to carry the present run on came to no end.
        failures: how many runs in a row have found the place out of reach.
        run_count: runs that have ended.
        started_at: None: the present run waits for its first worker.
        progress: of the present run: "stage", "done", "total" and "item", as far as they are known.
        listing: of the present run: how far the place is listed; None: the listing has not begun.
        accepted_at: when somebody last accepted what a run held back: items that were gone by then lose their documents.
        accepted_keys: the texts (`text_key`) that pages may then turn into; until the next run that is done.
    """

    class Kind(models.TextChoices):
        PAGE = "page", pgettext_lazy("of the web", "page")
        SITEMAP = "sitemap", _("sitemap")
        CRAWL = "crawl", _("crawl")
        FEED = "feed", _("RSS or Atom feed")
        FOLDER = "folder", _("folder on the server")
        S3 = "s3", _("S3 bucket")
        WEBDAV = "webdav", _("WebDAV folder")
        GIT = "git", _("Git repository")
        PUSH = "push", _("sync by API")

    WEB: ClassVar = frozenset({Kind.PAGE, Kind.SITEMAP, Kind.CRAWL, Kind.FEED})

    class Status(models.TextChoices):
        NEVER = "never", _("not run yet")
        WAITING = "waiting", _("waiting")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        FAILED = "failed", _("failed")
        CANCELLED = "cancelled", _("cancelled")

    knowledge_base = models.ForeignKey(
        KnowledgeBase, models.CASCADE, related_name="sources", verbose_name=_("knowledge base")
    )
    name = models.CharField(_("name"), max_length=200)
    kind = models.CharField(_("kind"), max_length=8, choices=Kind, default=Kind.PAGE)
    url = models.CharField(_("address"), max_length=URL_CHARACTERS, blank=True)
    settings = models.JSONField(_("settings"), default=dict, db_default={}, blank=True)
    secrets = SecretsField(_("secrets"))
    enabled = models.BooleanField(_("enabled"), default=True)
    paused = models.BooleanField(_("paused"), default=False, db_default=False, editable=False)
    live = models.BooleanField(
        _("ask at query time"),
        default=False,
        help_text=_("Queries read it too, as a channel of its own. Of a page or a feed only."),
    )
    every_minutes = models.PositiveIntegerField(
        _("refresh interval (minutes)"),
        null=True,
        blank=True,
        validators=[MinValueValidator(5), MaxValueValidator(60 * 24 * 90)],
        help_text=_("Blank: only when somebody asks for it."),
    )
    hides_gone = models.BooleanField(
        _("do not search what is gone"),
        default=False,
        db_default=False,
        help_text=_(
            "The documents of files or pages that the source no longer has are left out of searches from the first run that "
            "misses them, until they are back or deleted."
        ),
    )
    max_share = models.PositiveSmallIntegerField(
        _("share deleted without confirmation (%)"),
        default=25,
        db_default=25,
        validators=[MinValueValidator(1), MaxValueValidator(100)],
        help_text=_(
            "A run that would delete this share of its documents or more, and two at least, deletes none and asks."
        ),
    )
    max_pages = models.PositiveIntegerField(
        _("max pages"), default=200, validators=[MinValueValidator(1), MaxValueValidator(20_000)]
    )
    max_depth = models.PositiveSmallIntegerField(_("depth"), default=2, validators=[MaxValueValidator(10)])
    include = ArrayField(
        models.CharField(max_length=300), verbose_name=_("include URLs (regex)"), default=list, blank=True
    )
    exclude = ArrayField(
        models.CharField(max_length=300), verbose_name=_("exclude URLs (regex)"), default=list, blank=True
    )
    tags = ArrayField(models.CharField(max_length=60), verbose_name=_("tags"), default=list, blank=True)
    status = models.CharField(_("status"), max_length=12, choices=Status, default=Status.NEVER, editable=False)
    attempts = models.PositiveSmallIntegerField(default=0, editable=False)
    failures = models.PositiveSmallIntegerField(default=0, db_default=0, editable=False)
    run_count = models.PositiveIntegerField(default=0, db_default=0, editable=False)
    error_code = models.CharField(max_length=40, blank=True, editable=False)
    error = MessageField(_("error"), blank=True, editable=False)
    error_params = models.JSONField(default=dict, editable=False)
    counts = models.JSONField(default=dict, editable=False)
    progress = models.JSONField(default=dict, db_default={}, editable=False)
    listing = models.JSONField(null=True, editable=False)
    started_at = models.DateTimeField(_("last run"), null=True, editable=False)
    finished_at = models.DateTimeField(null=True, editable=False)
    next_run_at = models.DateTimeField(_("next run"), null=True, editable=False)
    lease = models.UUIDField(null=True, editable=False)
    lease_until = models.DateTimeField(null=True, editable=False)
    accepted_at = models.DateTimeField(null=True, editable=False)
    accepted_keys = ArrayField(models.CharField(max_length=64), default=list, db_default=[], editable=False)
    created_by = models.ForeignKey(
        User, models.SET_NULL, null=True, editable=False, related_name="+", verbose_name=_("by")
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        # Tables and columns keep their names of before: the release before goes on with them during an upgrade.
        db_table = "kb_websource"
        verbose_name = _("source")
        verbose_name_plural = _("sources")
        ordering = ("name", "pk")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "name"], name="web_source_name_per_kb")
        ]
        triggers: ClassVar = [*LIVE_SOURCE_TRIGGERS, *SOURCE.triggers()]

    def __str__(self) -> str:
        return self.name


class SourceItem(models.Model):
    """One file, page or entry of a source as it was last seen.

    Attributes:
        document: None where it has none: not read yet, failed, vanished, or the same as another document.
        key: what names it within its source: a path, the key of an object; blank: its address does.
        key_hash: SHA-256 of the key, or of the address.
        url: where people open it; blank: nowhere.
        name: of the file; blank: the last part of the key.
        version: as the place says it; while it is the same, the item is not read again.
        digest: SHA-256 of the content that its document has; blank: unknown, as for pages.
        size: in bytes, as it was read.
        seen_at: when the last run that has listed it began; of files.
        fetched_at: when it was last asked for, with or without success.
        etag: like `last_modified` from the server, sent back to ask whether anything has changed.
        content_hash: of title and text of a page.
        text_key: of its document's text without numbers and addresses, to compare pages by; blank: unknown.
        former_hash: the `content_hash` of before its text changed last.
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

    source = models.ForeignKey(Source, models.CASCADE, related_name="items", verbose_name=_("source"))
    document = models.OneToOneField(
        Document, models.SET_NULL, null=True, related_name="source_item", verbose_name=_("document")
    )
    key = models.TextField(_("path"), blank=True, default="", db_default="")
    key_hash = models.CharField(max_length=64, editable=False, db_column="url_hash")
    url = models.CharField(_("address"), max_length=URL_CHARACTERS, blank=True)
    name = models.CharField(max_length=1_000, blank=True, default="", db_default="")
    title = models.CharField(_("title"), max_length=500, blank=True)
    state = models.CharField(_("state"), max_length=10, choices=State, default=State.KEPT)
    etag = models.CharField(max_length=500, blank=True)
    last_modified = models.CharField(max_length=100, blank=True)
    content_hash = models.CharField(max_length=64, blank=True)
    text_key = models.CharField(max_length=64, blank=True, db_default="", editable=False, db_index=True)
    former_hash = models.CharField(max_length=64, blank=True, db_default="", editable=False)
    shown_key = models.CharField(max_length=64, blank=True, db_default="", editable=False)
    version = models.CharField(max_length=500, blank=True, db_default="")
    digest = models.CharField(max_length=64, blank=True, default="", db_default="")
    size = models.BigIntegerField(_("size"), null=True)
    error_code = models.CharField(max_length=40, blank=True)
    error = MessageField(_("error"), blank=True)
    error_params = models.JSONField(default=dict)
    seen_at = models.DateTimeField(null=True, editable=False)
    fetched_at = models.DateTimeField(pgettext_lazy("when", "read"), null=True)
    gone_at = models.DateTimeField(_("gone since"), null=True)

    objects = ScopedQuerySet.through("source__knowledge_base").as_manager()

    class Meta:
        db_table = "kb_webpage"
        verbose_name = _("item of a source")
        verbose_name_plural = _("items of sources")
        ordering = ("url", "key")
        constraints: ClassVar = [models.UniqueConstraint(fields=["source", "key_hash"], name="web_page_once")]
        indexes: ClassVar = [models.Index(fields=["source", "digest"], name="source_item_by_digest")]

    def __str__(self) -> str:
        return self.key or self.url


class ListedItem(InternalRow):
    """A file that the present run of its source has listed, and is still to fetch: new, or another than before."""

    source = models.ForeignKey(Source, models.CASCADE, related_name="listed_items")
    key_hash = models.CharField(max_length=64)
    item = models.JSONField()

    objects = ScopedQuerySet.through("source__knowledge_base").as_manager()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["source", "key_hash"], name="listed_item_once")]


class SourceItemChange(InternalRow):
    """What a page with a document says now (file and `details`), held until its run has seen whether others say the same."""

    item = models.OneToOneField(SourceItem, models.CASCADE, related_name="change", db_column="page_id")
    text_key = models.CharField(max_length=64, db_index=True)
    data = models.BinaryField()
    details = models.JSONField()

    objects = ScopedQuerySet.through("item__source__knowledge_base").as_manager()

    class Meta:
        db_table = "kb_webpagechange"


class SourceRun(InternalRow):
    """A run of a source that has ended: the log of the last ones."""

    source = models.ForeignKey(Source, models.CASCADE, related_name="runs", verbose_name=_("source"))
    status = models.CharField(_("status"), max_length=12, choices=Source.Status)
    counts = models.JSONField(default=dict)
    error_code = models.CharField(max_length=40, blank=True)
    error = MessageField(_("error"), blank=True)
    error_params = models.JSONField(default=dict)
    started_at = models.DateTimeField(_("began"), null=True)
    ended_at = models.DateTimeField(_("ended"))

    objects = ScopedQuerySet.through("source__knowledge_base").as_manager()

    class Meta:
        ordering = ("-pk",)


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
