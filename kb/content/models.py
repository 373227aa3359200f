import re
from typing import Any, ClassVar, Final

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.validators import RegexValidator
from django.db import models, transaction
from django.db.models.functions import Now
from django.dispatch import Signal
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from kb.access.models import KnowledgeBase, ScopedQuerySet
from kb.base.db.audit_triggers import CHUNK_AUDIT_TRIGGERS, DOCUMENT, FOLDER
from kb.base.db.transactions import lock_knowledge_bases
from kb.base.db.triggers import CHUNK_TRIGGERS, CONTENT_TRIGGERS, DOCUMENT_TRIGGERS, FOLDER_TRIGGERS
from kb.base.messages import MessageField
from kb.base.models import InternalRow
from kb.base.text import validate_metadata

FOLDER_NAME_CHARACTERS = 200
FOLDER_NAME = r"^[^/\\]*[^/\\\s][^/\\]*$"


class Folder(models.Model):
    """A place for documents of a knowledge base, within another or at its top; it has no rights of its own."""

    knowledge_base = models.ForeignKey(
        KnowledgeBase, models.CASCADE, related_name="folders", verbose_name=_("knowledge base")
    )
    parent = models.ForeignKey(
        "self", models.CASCADE, null=True, blank=True, related_name="folders", verbose_name=_("in the folder")
    )
    name = models.CharField(_("name"), max_length=FOLDER_NAME_CHARACTERS, validators=[RegexValidator(FOLDER_NAME)])
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("folder")
        verbose_name_plural = _("folders")
        ordering = ("name", "pk")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["knowledge_base", "parent", "name"], nulls_distinct=False, name="folder_name_once"
            ),
        ]
        triggers: ClassVar = [*FOLDER_TRIGGERS, *FOLDER.triggers()]

    def __str__(self) -> str:
        return self.name


class IngestBatch(models.Model):
    """Documents that came in together: their progress is reported, and they are paused and cancelled, as one.

    Its name is what the curator knows it by: a folder, an archive, "12 files". `notes` are the first files that became
    no document, as {"name", "code", "params", "document"}. Workers take no document of a paused one up.
    Of `timeouts` documents the file exhausted its time.
    """

    knowledge_base = models.ForeignKey(
        KnowledgeBase, models.CASCADE, related_name="batches", verbose_name=_("knowledge base")
    )
    folder = models.ForeignKey(
        Folder, models.SET_NULL, null=True, editable=False, related_name="+", verbose_name=_("into the folder")
    )
    name = models.CharField(_("name"), max_length=200)
    paused = models.BooleanField(_("paused"), default=False)
    notes = models.JSONField(default=list, editable=False)
    note_count = models.PositiveIntegerField(default=0, editable=False)
    timeouts = models.PositiveIntegerField(default=0, db_default=0, editable=False)
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


class FileDetails(InternalRow):
    """What a curator's table says about a file of an upload, before or after the file has come."""

    batch = models.ForeignKey(IngestBatch, models.CASCADE, related_name="details")
    name = models.CharField(max_length=1_000)
    title = models.CharField(max_length=500, blank=True)
    tags = ArrayField(models.CharField(max_length=60), default=list)
    metadata = models.JSONField(default=dict)

    objects = ScopedQuerySet.through("batch__knowledge_base").as_manager()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["batch", "name"], name="file_details_once")]


def upload_path(document: "Document", filename: str) -> str:
    """Where the file of a document lies: by knowledge base and content, whatever its name."""
    suffix = filename.rpartition(".")[2].lower()
    # What is longer, or other, after the last dot is part of a name, which may be too long for a file system.
    extension = f".{suffix}" if re.fullmatch(r"[a-z0-9]{1,16}", suffix) else ""
    return f"{documents_folder(document.knowledge_base_id)}/{document.sha256}{extension}"


def documents_folder(kb_id: int) -> str:
    return f"documents/{kb_id}"


# In the metadata of a document: since when its source has it no longer.
GONE_SINCE: Final = "gone_since"


class Document(models.Model):
    """A source of chunks.

    `chunking` is the fingerprint of the settings that its chunks were cut under; blank: not cut here, or not known.
    `picture_bytes` is the size of its pictures' files together; 0: it has none.
    """

    class Status(models.TextChoices):
        PENDING = "pending", _("waiting")
        PROCESSING = "processing", _("processing")
        READY = "ready", _("ready")
        FAILED = "failed", _("failed")
        CANCELLED = "cancelled", _("cancelled")

    UNFINISHED: ClassVar = (Status.PENDING, Status.PROCESSING)

    class Stage(models.TextChoices):
        PARSE = "parse", _("parsing")
        CHUNK = "chunk", _("chunking")
        TOKENIZE = "tokenize", _("tokenising")
        EMBED = "embed", _("embedding")
        WRITE = "write", _("writing")

    class SourceType(models.TextChoices):
        BOOK = "book", _("document")
        VIDEO = "video", _("video")
        QA = "qa", _("Q&A")
        WEB = "web", _("web")

    knowledge_base = models.ForeignKey(
        KnowledgeBase, models.CASCADE, related_name="documents", verbose_name=_("knowledge base")
    )
    folder = models.ForeignKey(
        Folder, models.SET_NULL, null=True, blank=True, related_name="documents", verbose_name=_("folder")
    )
    title = models.CharField(_("title"), max_length=500, blank=True)
    source = models.CharField(_("source"), max_length=1_000, blank=True)
    source_type = models.CharField(_("source type"), max_length=12, choices=SourceType, default=SourceType.BOOK)
    file = models.FileField(_("file"), upload_to=upload_path, max_length=500, blank=True)
    mime = models.CharField(_("type"), max_length=120, blank=True)
    size = models.PositiveBigIntegerField(_("size"), default=0)
    sha256 = models.CharField(max_length=64)
    picture_bytes = models.PositiveBigIntegerField(default=0, db_default=0, editable=False)
    metadata = models.JSONField(_("metadata"), default=dict, blank=True, validators=[validate_metadata])
    tags = ArrayField(models.CharField(max_length=60), verbose_name=_("tags"), default=list, blank=True)
    concepts = models.ManyToManyField("kb.Concept", related_name="documents", verbose_name=_("concepts"), blank=True)
    batch = models.ForeignKey(
        "kb.IngestBatch", models.SET_NULL, null=True, blank=True, related_name="documents", verbose_name=_("upload")
    )
    status = models.CharField(_("status"), max_length=12, choices=Status, default=Status.PENDING)
    stage = models.CharField(_("stage"), max_length=12, choices=Stage, blank=True)
    progress = models.PositiveSmallIntegerField(_("progress"), default=0)
    attempts = models.PositiveSmallIntegerField(default=0)
    # Since it was added, or was to be processed once more; an attempt that failed does not reset it.
    waiting_since = models.DateTimeField(default=timezone.now, db_default=Now(), editable=False)
    keep_chunks = models.BooleanField(default=False, editable=False)
    chunking = models.CharField(max_length=32, blank=True, db_default="", editable=False)
    indexed_title = models.CharField(max_length=500, blank=True, db_default="", editable=False)
    lease = models.UUIDField(null=True, editable=False)
    lease_until = models.DateTimeField(null=True, editable=False)
    error_code = models.CharField(max_length=40, blank=True)
    error = MessageField(_("error"), blank=True)
    error_params = models.JSONField(default=dict, editable=False)
    # What its reader had to leave out, as {"code", "params"} of kb.base.findings.REMARKS.
    remarks = models.JSONField(_("remarks"), default=list, editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+", verbose_name=_("created by")
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    updated_at = models.DateTimeField(_("updated"), auto_now=True)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("document")
        verbose_name_plural = _("documents")
        ordering = ("-created_at", "-pk")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "sha256"], name="document_bytes_once_per_kb"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["knowledge_base", "source"], name="document_by_source"),
            models.Index(fields=["knowledge_base", "created_at", "id"], name="document_by_creation"),
            models.Index(fields=["knowledge_base", "updated_at", "id"], name="document_by_update"),
            models.Index(fields=["knowledge_base", "title", "id"], name="document_by_title"),
            models.Index(fields=["knowledge_base", "status", "source_type"], name="document_by_state"),
            models.Index(fields=["knowledge_base"], condition=models.Q(status="failed"), name="document_failed"),
            models.Index(
                fields=["lease_until"],
                condition=models.Q(status__in=("pending", "processing")),
                name="document_unfinished",
            ),
        ]
        triggers: ClassVar = [*DOCUMENT_TRIGGERS, *DOCUMENT.triggers()]

    def __str__(self) -> str:
        return self.title or self.source

    def save(self, *args: Any, **kwargs: Any) -> None:
        """A change takes its turn with the worker that writes the document's chunks: both lock the document's row."""
        with transaction.atomic():
            if not self._state.adding:
                lock_knowledge_bases([self.knowledge_base_id])
            super().save(*args, **kwargs)


class ChunkParent(InternalRow):
    """A longer passage that is returned in place of the chunks that were cut from it, which are what is searched.

    The database makes its chunks their own passages when it goes (ON DELETE SET NULL), so that none of them is loaded.
    """

    knowledge_base = models.ForeignKey(KnowledgeBase, models.CASCADE, related_name="+")
    document = models.ForeignKey(Document, models.CASCADE, related_name="parents")
    position = models.PositiveIntegerField()
    text = models.TextField(_("text"))
    page = models.PositiveIntegerField(null=True)
    regions = models.JSONField(default=list, db_default=[])
    heading_path = ArrayField(models.CharField(max_length=300), default=list)

    objects = ScopedQuerySet.as_manager()


class Chunk(models.Model):
    """A passage as it is searched and cited. It has no signal receivers: deleting many loads none of them.

    `parent` is the longer passage that is returned in its place, if any, and `parent_spans` where its text as it was cut
    stands there, as kb.content.parents.Child has it. `cut_text` is the text as it was cut from the document, where a
    curator has changed it since. A curator who gave keywords or questions has `own_` ones, and none are extracted; with
    `own_cut`, a curator has merged or split it, and no strategy re-chunks it. One that
    `is_hidden` was switched off since its document's source has that no longer. The `regions` are where its text stands,
    as retrieval.types.PageRegion; `seconds` is the time at which a recording says it.
    """

    knowledge_base = models.ForeignKey(
        KnowledgeBase, models.CASCADE, related_name="chunks", verbose_name=_("knowledge base")
    )
    document = models.ForeignKey(Document, models.CASCADE, related_name="chunks", verbose_name=_("document"))
    parent = models.ForeignKey(
        ChunkParent, models.DO_NOTHING, db_constraint=False, null=True, editable=False, related_name="chunks"
    )
    parent_spans = ArrayField(models.PositiveIntegerField(), null=True, editable=False)
    position = models.PositiveIntegerField(_("position"))
    text = models.TextField(_("text"))
    cut_text = models.TextField(blank=True, db_default="", editable=False)
    page = models.PositiveIntegerField(_("page"), null=True, blank=True)
    regions = models.JSONField(default=list, db_default=[], blank=True, editable=False)
    seconds = models.PositiveIntegerField(null=True, blank=True, editable=False)
    heading_path = ArrayField(models.CharField(max_length=300), verbose_name=_("headings"), default=list, blank=True)
    pictures = ArrayField(models.CharField(max_length=64), default=list, db_default=[], blank=True, editable=False)
    keywords = ArrayField(
        models.CharField(max_length=300), verbose_name=_("keywords"), default=list, db_default=[], blank=True
    )
    questions = ArrayField(models.TextField(), verbose_name=_("questions"), default=list, db_default=[], blank=True)
    own_keywords = models.BooleanField(default=False, db_default=False, editable=False)
    own_questions = models.BooleanField(default=False, db_default=False, editable=False)
    own_cut = models.BooleanField(default=False, db_default=False, editable=False)
    enabled = models.BooleanField(_("enabled"), default=True)
    is_hidden = models.BooleanField(default=False, db_default=False, editable=False)
    content_hash = models.CharField(max_length=64, editable=False)
    token_count = models.PositiveIntegerField(_("tokens"), default=0, editable=False)
    updated_at = models.DateTimeField(_("updated"), auto_now=True)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("chunk")
        verbose_name_plural = _("chunks")
        ordering = ("document_id", "position")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["document", "position"], name="chunk_position_once", deferrable=models.Deferrable.DEFERRED
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["content_hash"], name="chunk_by_content")]
        triggers: ClassVar = [*CHUNK_TRIGGERS, *CHUNK_AUDIT_TRIGGERS]

    def __str__(self) -> str:
        return f"{self.document} #{self.position + 1}"


def pictures_folder(document: Document) -> str:
    return f"{documents_folder(document.knowledge_base_id)}/pictures/{document.pk}"


def previews_folder(document: Document) -> str:
    """Where what is drawn and read of a document's file for its page lies: it can be made of the file again."""
    return f"{documents_folder(document.knowledge_base_id)}/previews/{document.pk}"


class Picture(models.Model):
    """A picture of a document, with the words that it is found by; which chunks show it, these know by its `sha256`.

    `number` is its place among the document's pictures, from 0; `box` is as in retrieval.types.PageRegion, empty where it
    is not known. `caption`, `alternative` and `recognised` are the document's own; the `description` is the vision
    model's that `described_by` names. `asked_at` is when that was last asked; `attempts` are those that failed.
    """

    MIMES: ClassVar = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp"}

    knowledge_base = models.ForeignKey(KnowledgeBase, models.CASCADE, related_name="+")
    document = models.ForeignKey(Document, models.CASCADE, related_name="pictures", verbose_name=_("document"))
    number = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64)
    mime = models.CharField(max_length=20, choices=[(mime, mime) for mime in MIMES])
    size = models.PositiveIntegerField()
    width = models.PositiveIntegerField()
    height = models.PositiveIntegerField()
    page = models.PositiveIntegerField(null=True)
    box = ArrayField(models.FloatField(), default=list)
    caption = models.TextField(blank=True)
    alternative = models.TextField(blank=True)
    recognised = models.TextField(blank=True)
    description = models.TextField(blank=True)
    described_by = models.CharField(max_length=200, blank=True)
    asked_at = models.DateTimeField(null=True)
    attempts = models.PositiveSmallIntegerField(default=0, db_default=0)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("picture")
        verbose_name_plural = _("pictures")
        ordering = ("document_id", "number")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["document", "sha256"], name="picture_once_per_document"),
        ]
        triggers: ClassVar = CONTENT_TRIGGERS

    def __str__(self) -> str:
        return self.caption or self.alternative or f"{self.document_id} [{self.number + 1}]"

    @property
    def file_name(self) -> str:
        """Where its file lies, in the storage of documents."""
        return f"{pictures_folder(self.document)}/{self.sha256}.{self.MIMES[self.mime]}"


class DuplicateScan(InternalRow):
    """What the last look for near-duplicates in a knowledge base has found; large ones are looked through by a worker.

    `version` is that of the knowledge base's chunks that were looked at. The `groups` are the first of `group_count`,
    as {"chunk_ids", "similarity"}, the most alike first; the similarity is that of the least alike pair. A worker is to
    look since `asked_at`; `found_at` is None until the first look is done.
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


# Signals for features above. Sent on commit with `ids`: documents that were added together, for which no row is saved
# by itself.
documents_waiting = Signal()
# Sent on commit with `batch_id`: an upload some of whose documents are to be processed.
batch_waiting = Signal()
# Sent with `document_id`: what its page shows of its file takes a worker.
preview_wanted = Signal()
# Sent with `knowledge_base`, in the transaction that deletes it: receivers delete their rows of it.
knowledge_base_deleting = Signal()
# Sent with `kept`, a chunk, and `gone`, ids of chunks that become part of it, in the transaction that deletes them.
chunks_replacing = Signal()
