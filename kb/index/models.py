"""Rows of what is derived from chunks: postings, vectors, indexes, their versions, and the copies in other stores."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models
from django.db.models import Value
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from pgvector.django import HalfVectorField

from kb.access.models import KnowledgeBase, ScopedQuerySet
from kb.base.db.triggers import EMBEDDING_TRIGGERS, POSTINGS_TRIGGERS
from kb.base.messages import MessageField, shown
from kb.base.models import InternalRow
from kb.content.models import Chunk


class Reembedding(InternalRow):
    """The last move of a knowledge base to another embedding model, as every process can show it.

    Which model searches use, which is on its way and which is kept for a return stands in the knowledge base itself. How
    far the move is follows from the vectors that there are.

    Attributes:
        dimension: of the new vectors; None until a worker has loaded the model.
        swaps: whether searches change over as soon as every chunk has its vector, and not only on request.
        counted_from: how many chunks had their vector at `counted_at`, when this run of the work began.
        told_at: when its process last reported progress.
    """

    class Status(models.TextChoices):
        BUILDING = "building", _("embedding")
        INDEXING = "indexing", _("making the vector index")
        READY = "ready", _("ready to swap")
        SWAPPED = "swapped", _("in use")
        CANCELLED = "cancelled", _("cancelled")
        FAILED = "failed", _("failed")

    knowledge_base = models.OneToOneField(KnowledgeBase, models.CASCADE, primary_key=True, related_name="reembedding")
    model = models.CharField(_("embedding model"), max_length=255)
    dimension = models.PositiveIntegerField(_("dimension"), null=True)
    status = models.CharField(_("status"), max_length=10, choices=Status, default=Status.BUILDING)
    swaps = models.BooleanField(default=False)
    error = MessageField(_("error"), blank=True)
    counted_from = models.PositiveIntegerField(default=0)
    counted_at = models.DateTimeField(default=timezone.now)
    told_at = models.DateTimeField(default=timezone.now)
    swapped_at = models.DateTimeField(null=True)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("change of the embedding model")
        verbose_name_plural = _("changes of the embedding model")


class StoreChange(InternalRow):
    """What another store than PostgreSQL has yet to take in: triggers write it, and whoever has applied it deletes it.

    A row says only that something has changed, and not how: whoever applies it reads what there is then. So a row that
    is applied twice, or together with a later one, does no harm. Without a `chunk_id` all that the store holds of the
    knowledge base goes first; without a `model` anything of the chunk has changed, else its vectors of that model.
    """

    knowledge_base = models.ForeignKey(KnowledgeBase, models.DO_NOTHING, db_constraint=False, related_name="+")
    store = models.CharField(max_length=10)
    chunk_id = models.BigIntegerField(null=True)
    model = models.CharField(max_length=255, blank=True, db_default="")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["knowledge_base", "store", "id"], name="store_changes_in_order"),
            models.Index(
                fields=["knowledge_base", "store", "model"], include=["chunk_id"], name="store_changes_by_model"
            ),
        ]


class StoreState(InternalRow):
    """A knowledge base's copy in a store, as every process can show it.

    Which store searches use and which is on its way stands in the knowledge base itself; what a copy lacks, in the changes
    that are not applied.

    Attributes:
        total: how many changes there were to apply when the copy was begun.
        checked: what was measured before searches changed over: counts and recall.
        error: of the last try to apply changes, or to finish the copy; so many `failures` in a row.
        applied_version: of the knowledge base, when nothing was left to apply.
        left: changes that are not applied, where `stores_state` has read the row; `oldest`: when the first was made.
    """

    left = 0
    oldest: datetime | None = None

    class Status(models.TextChoices):
        FILLING = "filling", _("copying")
        CHECKING = "checking", _("being checked")
        IN_USE = "in_use", _("in use")
        FAILED = "failed", _("failed")

    knowledge_base = models.ForeignKey(KnowledgeBase, models.CASCADE, related_name="store_states")
    store = models.CharField(_("store"), max_length=10, choices=KnowledgeBase.Store)
    status = models.CharField(_("status"), max_length=10, choices=Status, default=Status.FILLING)
    total = models.PositiveIntegerField(default=0)
    checked = models.JSONField(default=dict)
    error = MessageField(_("error"), blank=True)
    failures = models.PositiveIntegerField(default=0)
    retry_at = models.DateTimeField(null=True)
    applied_version = models.BigIntegerField(null=True)
    applied_at = models.DateTimeField(null=True)
    told_at = models.DateTimeField(db_default=Now())

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("state of a store")
        verbose_name_plural = _("states of stores")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "store"], name="state_once_per_store")
        ]

    @property
    def done(self) -> int:
        return max(0, self.total - self.left)

    @property
    def percent(self) -> int:
        return 100 * self.done // self.total if self.total else 0

    @property
    def error_text(self) -> str:
        return shown(self.error)


NGRAM_PREFIX = "~"
MAX_LEXEMES = 20_000
MAX_LEXEME_BYTES = 2_046
# PostgreSQL holds at most 2,046 bytes of a lexeme and 1 MiB of all of them together.
MAX_BYTES = 1_000_000


def storable_lexemes(lexemes: Iterable[str]) -> list[str]:
    """The first ones, each once, that PostgreSQL takes; too long ones are left out."""
    kept: dict[str, None] = {}
    room = MAX_BYTES
    for lexeme in lexemes:
        size = len(lexeme.encode())
        if lexeme in kept or not 0 < size <= MAX_LEXEME_BYTES or "\0" in lexeme:
            continue
        room -= size
        if room < 0 or len(kept) == MAX_LEXEMES:
            break
        kept[lexeme] = None
    return list(kept)


def quoted_lexeme(lexeme: str) -> str:
    """A lexeme in the text of a tsvector or tsquery, whatever it is made of."""
    return "'{}'".format(lexeme.replace("\\", "\\\\").replace("'", "''"))


class LexemesField(SearchVectorField):  # type: ignore[type-arg]
    """A tsvector without positions, written from and read as a list of lexemes; no parser and no dictionary touch them."""

    def get_prep_value(self, value: Any) -> Any:
        return value if hasattr(value, "as_sql") else storable_lexemes(value)

    def get_placeholder(self, value: Any, compiler: Any, connection: Any) -> str:  # noqa: ARG002 - Django's interface
        return "%s" if hasattr(value, "as_sql") else "array_to_tsvector(%s::text[])"

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:  # noqa: ARG002 - Django's interface
        return f"tsvector_to_array({sql})", params


class KnowledgeBaseVersion(InternalRow):
    """Which state of a knowledge base's content is the present one; only the database's triggers write it.

    `version` is that of its chunks and active postings, `content_version` that of everything else that can change a
    response: vectors, what is shown and filtered of documents, concepts, facts, and the knowledge base's own settings.
    """

    knowledge_base = models.OneToOneField(KnowledgeBase, models.CASCADE, primary_key=True, related_name="version_row")
    version = models.BigIntegerField()
    content_version = models.BigIntegerField(db_default=0)

    class Meta:
        db_table = "kb_versions"


class ChunkPostings(InternalRow):
    """The terms of a chunk under one tokenizer, made once at ingestion.

    `terms` are sorted 64-bit term hashes, `frequencies` their 32-bit counts, both little-endian; `length` counts tokens.
    `questions` are `Postings.packed` of the chunk's questions in their order; None: it has none, or they are not tokenised.
    `lexemes` are the tokens once more and, after "~", the text's character n-grams, for full-text search in the database.
    The database deletes a row with its chunk (ON DELETE CASCADE), so that deleting chunks loads none of them.
    """

    chunk = models.ForeignKey(Chunk, models.DO_NOTHING, db_constraint=False, related_name="postings")
    knowledge_base = models.ForeignKey(KnowledgeBase, models.DO_NOTHING, db_constraint=False, related_name="+")
    tokenizer_id = models.CharField(max_length=120)
    terms = models.BinaryField()
    frequencies = models.BinaryField()
    length = models.PositiveIntegerField()
    questions = ArrayField(models.BinaryField(), null=True)
    lexemes = LexemesField(default=list, db_default=Value([], output_field=LexemesField()))

    objects = ScopedQuerySet.as_manager()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["chunk", "tokenizer_id"], name="postings_once_per_tokenizer")
        ]
        indexes: ClassVar = [
            models.Index(fields=["knowledge_base", "tokenizer_id"], name="postings_by_kb"),
            GinIndex(fields=["lexemes"], name="postings_lexemes"),
        ]
        triggers: ClassVar = [*POSTINGS_TRIGGERS]


class ChunkChange(InternalRow):
    """The log from which a delta over an older keyword index is read; the database's triggers write it.

    It is complete from any version on that no later reset follows. Publishing an index resets it at that index's
    version, and so does whatever makes every older index useless.
    """

    class Operation(models.TextChoices):
        WRITE = "write", _("written")
        DELETE = "delete", _("deleted")
        RESET = "reset", _("log restarted")

    knowledge_base = models.ForeignKey(KnowledgeBase, models.DO_NOTHING, db_constraint=False, related_name="+")
    version = models.BigIntegerField()
    chunk_id = models.BigIntegerField(null=True)
    operation = models.CharField(max_length=6, choices=Operation)

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["knowledge_base", "version"], include=["chunk_id", "operation"], name="changes_since"),
            models.Index(
                fields=["knowledge_base", "version"], condition=models.Q(operation="reset"), name="starts_of_log"
            ),
        ]


class ChunkEmbedding(InternalRow):
    """A vector of a chunk in the space of one model; vectors of different models are never compared.

    `ordinal` numbers a chunk's questions; `enabled` follows the chunk's by trigger, so that a search reads this table
    alone.
    """

    class Kind(models.TextChoices):
        CONTENT = "content", _("content")
        KEYWORDS = "keywords", _("keywords")
        QUESTION = "question", _("question")

    chunk = models.ForeignKey(Chunk, models.DO_NOTHING, db_constraint=False, related_name="embeddings")
    knowledge_base = models.ForeignKey(KnowledgeBase, models.DO_NOTHING, db_constraint=False, related_name="+")
    kind = models.CharField(max_length=10, choices=Kind, default=Kind.CONTENT)
    ordinal = models.PositiveSmallIntegerField(default=0, db_default=0)
    model = models.CharField(max_length=255)
    vector = HalfVectorField()
    enabled = models.BooleanField(default=True)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["chunk", "kind", "model", "ordinal"], name="vector_once_per_kind_and_model")
        ]
        indexes: ClassVar = [models.Index(fields=["knowledge_base", "model", "kind"], name="vector_by_kb")]
        triggers: ClassVar = [*EMBEDDING_TRIGGERS]


class VectorIndex(InternalRow):
    """What an approximate index over vectors that are compared with each other has been measured to find.

    Attributes:
        effort: how much of the index a search looks at: `hnsw.ef_search`, or `ivfflat.probes`.
        is_used: False where the index finds too few and to compare all vectors does not take long: that is done then.
        recall: the share of the nearest 25 that the index finds at that effort, of `sampled` vectors among all `vectors`.
        exact_ms: the median time of comparing all vectors; `index_ms`: that of the index.
    """

    class Method(models.TextChoices):
        HNSW = "hnsw", "HNSW"
        IVFFLAT = "ivfflat", "IVFFlat"

    knowledge_base = models.ForeignKey(KnowledgeBase, models.CASCADE, related_name="vector_indexes")
    model = models.CharField(max_length=255)
    kind = models.CharField(max_length=10, choices=ChunkEmbedding.Kind)
    method = models.CharField(max_length=8, choices=Method)
    effort = models.PositiveIntegerField()
    is_used = models.BooleanField(default=True, db_default=True)
    vectors = models.PositiveBigIntegerField()
    recall = models.FloatField()
    sampled = models.PositiveIntegerField()
    exact_ms = models.FloatField()
    index_ms = models.FloatField()
    measured_at = models.DateTimeField(auto_now=True)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "model", "kind"], name="vector_index_measured_once")
        ]


class BM25Index(InternalRow):
    """The third tier of the BM25 cache: one signed payload a knowledge base, written by the newest version only."""

    knowledge_base = models.OneToOneField(KnowledgeBase, models.CASCADE, related_name="bm25_index")
    version = models.BigIntegerField(_("version"))
    tokenizer_id = models.CharField(_("tokenizer"), max_length=120)
    format = models.CharField(max_length=80)
    payload = models.BinaryField()
    chunk_count = models.PositiveIntegerField(_("chunks"))
    built_at = models.DateTimeField(_("built"), auto_now=True)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        db_table = "bm25_indexes"
        verbose_name = _("BM25 index")
        verbose_name_plural = _("BM25 indexes")
