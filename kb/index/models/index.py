from typing import ClassVar

from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.utils.translation import gettext_lazy as _
from pgvector.django import HalfVectorField

from kb.access.models.accounts import ScopedQuerySet
from kb.access.models.knowledge import KnowledgeBase
from kb.base.db.store_triggers import embedding_store_triggers, postings_store_triggers
from kb.base.db.triggers import embedding_triggers, postings_triggers
from kb.content.models.documents import Chunk
from kb.index.models.lexemes import LexemesField, no_lexemes


class KnowledgeBaseVersion(models.Model):
    """Which state of a knowledge base's content is the present one; only the database's triggers write it.

    `version` is that of its chunks and active postings, `content_version` that of everything else that can change a
    response: vectors, what is shown and filtered of documents, concepts, facts, and the knowledge base's own settings.
    """

    knowledge_base = models.OneToOneField(KnowledgeBase, models.CASCADE, primary_key=True, related_name="version_row")
    version = models.BigIntegerField()
    content_version = models.BigIntegerField(db_default=0)

    class Meta:
        db_table = "kb_versions"

    def __str__(self) -> str:
        return f"{self.knowledge_base_id}: {self.version}"


class ChunkPostings(models.Model):
    """The terms of a chunk under one tokenizer, made once at ingestion.

    `terms` are sorted 64-bit term hashes, `frequencies` their 32-bit counts, both little-endian; `length` counts tokens.
    `lexemes` are the tokens once more and, after "~", the text's character n-grams, for full-text search in the database.
    The database deletes a row with its chunk (ON DELETE CASCADE), so that deleting chunks loads none of them.
    """

    chunk = models.ForeignKey(Chunk, models.DO_NOTHING, db_constraint=False, related_name="postings")
    knowledge_base = models.ForeignKey(KnowledgeBase, models.DO_NOTHING, db_constraint=False, related_name="+")
    tokenizer_id = models.CharField(max_length=120)
    terms = models.BinaryField()
    frequencies = models.BinaryField()
    length = models.PositiveIntegerField()
    lexemes = LexemesField(default=list, db_default=no_lexemes())

    objects = ScopedQuerySet.as_manager()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["chunk", "tokenizer_id"], name="postings_once_per_tokenizer"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["knowledge_base", "tokenizer_id"], name="postings_by_kb"),
            GinIndex(fields=["lexemes"], name="postings_lexemes"),
        ]
        triggers: ClassVar = [*postings_triggers(), *postings_store_triggers()]

    def __str__(self) -> str:
        return f"{self.chunk_id}: {self.tokenizer_id}"


class ChunkChange(models.Model):
    """The log from which a delta over an older keyword index is read; the database's triggers write it.

    It is complete from any version on that no later reset follows. Publishing an index resets it at that index's
    version, and so does whatever makes every older index useless.
    """

    class Operation(models.TextChoices):
        WRITE = "write", _("written")
        DELETE = "delete", _("deleted")
        RESET = "reset", _("log starts anew")

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

    def __str__(self) -> str:
        return f"{self.knowledge_base_id} at {self.version}: {self.operation} {self.chunk_id or ''}"


class ChunkEmbedding(models.Model):
    """A vector of a chunk in the space of one model; vectors of different models are never compared.

    `ordinal` tells a chunk's questions apart. `enabled` follows the chunk's by trigger, so that a search reads this table
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
            models.UniqueConstraint(
                fields=["chunk", "kind", "model", "ordinal"], name="vector_once_per_kind_and_model"
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["knowledge_base", "model", "kind"], name="vector_by_kb")]
        triggers: ClassVar = [*embedding_triggers(), *embedding_store_triggers()]

    def __str__(self) -> str:
        return f"{self.chunk_id}: {self.kind} {self.model}"


class VectorIndex(models.Model):
    """What an approximate index over vectors that are compared with each other has been measured to find.

    Attributes:
        effort: how much of the index a search looks at: `hnsw.ef_search`, or `ivfflat.probes`.
        is_used: False where the index finds too few and to compare all vectors does not take long: that is done then.
        vectors: how many there were at the measurement.
        recall: the share of the nearest 25 that the index finds at that effort.
        sampled: so many vectors were searched for.
        exact_ms: the median time of comparing all vectors.
        index_ms: that of the index.
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
            models.UniqueConstraint(fields=["knowledge_base", "model", "kind"], name="vector_index_measured_once"),
        ]

    def __str__(self) -> str:
        return f"{self.knowledge_base_id}: {self.kind} {self.model}, {self.method}"


class BM25Index(models.Model):
    """The third tier of the BM25 cache: one sealed payload a knowledge base, written by the newest version only."""

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

    def __str__(self) -> str:
        return f"{self.knowledge_base_id}: {self.version}"
