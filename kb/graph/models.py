"""A knowledge base's taxonomy, and the facts of its graph."""

from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models.functions import Left
from django.utils.translation import gettext_lazy as _, pgettext_lazy

from kb.access.models import KnowledgeBase, ScopedQuerySet
from kb.base.db.audit_triggers import CONCEPT, ENTITY, FACT, TERM
from kb.base.db.transactions import holding_knowledge_bases
from kb.base.db.triggers import CONTENT_TRIGGERS, DOCUMENT_CONCEPT_TRIGGERS, FACT_SOURCE_TRIGGERS, FACT_TRIGGERS
from kb.base.messages import MessageField
from kb.base.models import InternalRow
from kb.base.text import KEY_CHARACTERS, PREFIX_CHARACTERS, normalized_key
from kb.content.models import Chunk, Document


class Origin(models.TextChoices):
    """Where entities and facts come from; only those of a chat model go when nothing states them any more."""

    HAND = "hand", _("by hand")
    IMPORT = "import", _("imported")
    LLM = "llm", _("by a chat model")


class GraphRow(models.Model):
    """A row of a knowledge base's graph, which is saved and deleted while nobody else writes to the knowledge base."""

    knowledge_base_id: int

    objects = ScopedQuerySet.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        with holding_knowledge_bases([self.knowledge_base_id]):
            super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        with holding_knowledge_bases([self.knowledge_base_id]):
            return super().delete(*args, **kwargs)


class GraphName(GraphRow):
    """One way to write what its row belongs to: `owner` names that field."""

    owner: ClassVar[str]

    knowledge_base = models.ForeignKey(KnowledgeBase, models.CASCADE, related_name="+", editable=False)
    text = models.CharField(_("text"), max_length=200)
    key = models.CharField(max_length=KEY_CHARACTERS, editable=False)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.text

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.knowledge_base_id = getattr(self, self.owner).knowledge_base_id
        self.key = normalized_key(self.text)
        super().save(*args, **kwargs)


class Concept(GraphRow):
    """A concept of a taxonomy; `parent` is the wider one. Its name is one of its terms, always."""

    knowledge_base = models.ForeignKey(
        KnowledgeBase, models.CASCADE, related_name="concepts", verbose_name=_("knowledge base")
    )
    name = models.CharField(_("name"), max_length=200)
    description = models.TextField(_("description"), blank=True)
    parent = models.ForeignKey(
        "self", models.SET_NULL, null=True, blank=True, related_name="children", verbose_name=_("wider concept")
    )

    class Meta:
        verbose_name = _("concept")
        verbose_name_plural = _("concepts")
        ordering = ("name", "pk")
        constraints: ClassVar = [models.UniqueConstraint(fields=["knowledge_base", "name"], name="concept_name_per_kb")]
        triggers: ClassVar = [*CONTENT_TRIGGERS, *CONCEPT.triggers()]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        key = normalized_key(self.name)
        with transaction.atomic():
            super().save(*args, **kwargs)
            named = self.terms.filter(models.Q(kind=ConceptTerm.Kind.NAME) | models.Q(key=key))
            if [(term.kind, term.text) for term in named] != [(ConceptTerm.Kind.NAME, self.name)]:
                named.delete()
                ConceptTerm(concept=self, text=self.name, kind=ConceptTerm.Kind.NAME).save()

    def clean(self) -> None:
        """Refuses a wider concept of another knowledge base, and one that is this concept or narrower than it."""
        if self.parent is None:
            return
        if self.parent.knowledge_base_id != self.knowledge_base_id:
            raise ValidationError({"parent": _("Choose a wider concept of the same knowledge base.")})
        met: set[int] = set()
        wider: Concept | None = self.parent
        while wider is not None and wider.pk not in met:
            if wider.pk == self.pk:
                message = _("“%(name)s” is narrower than this concept: choose another one.") % {"name": self.parent}
                raise ValidationError({"parent": message})
            met.add(wider.pk)
            wider = wider.parent

    @property
    def other_terms(self) -> "list[ConceptTerm]":
        """Its synonyms and abbreviations."""
        return [term for term in self.terms.all() if term.kind != ConceptTerm.Kind.NAME]


class ConceptTerm(GraphName):
    """One way to write a concept. The same key may belong to several concepts: an abbreviation of two names."""

    class Kind(models.TextChoices):
        NAME = "name", _("name")
        SYNONYM = "synonym", _("synonym")
        ABBREVIATION = "abbreviation", _("abbreviation")

    owner = "concept"

    concept = models.ForeignKey(Concept, models.CASCADE, related_name="terms", verbose_name=_("concept"))
    kind = models.CharField(_("kind"), max_length=12, choices=Kind, default=Kind.SYNONYM)

    class Meta:
        verbose_name = _("term")
        verbose_name_plural = _("terms")
        ordering = ("concept_id", "pk")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["knowledge_base", "key", "concept"], name="term_once_per_concept"),
        ]
        indexes: ClassVar = [models.Index("knowledge_base", Left("key", PREFIX_CHARACTERS), name="term_by_prefix")]
        triggers: ClassVar = [*CONTENT_TRIGGERS, *TERM.triggers()]


class Entity(GraphRow):
    """Something that facts are about: a person, a product, a law. Its name is one of its names, always.

    Facts name entities by text; whatever text is one of an entity's names means that entity.
    """

    knowledge_base = models.ForeignKey(
        KnowledgeBase, models.CASCADE, related_name="entities", verbose_name=_("knowledge base")
    )
    name = models.CharField(_("name"), max_length=200)
    kind = models.CharField(_("kind"), max_length=80, blank=True)
    description = models.TextField(_("description"), blank=True)
    origin = models.CharField(
        _("origin"), max_length=6, choices=Origin, default=Origin.HAND, db_default=Origin.HAND, editable=False
    )

    class Meta:
        verbose_name = _("entity")
        verbose_name_plural = _("entities")
        ordering = ("name", "pk")
        constraints: ClassVar = [models.UniqueConstraint(fields=["knowledge_base", "name"], name="entity_name_per_kb")]
        triggers: ClassVar = ENTITY.triggers()

    def __str__(self) -> str:
        return self.name

    @property
    def aliases(self) -> list[str]:
        """Its names but for that which it is shown by."""
        return [name.text for name in self.names.all() if name.text != self.name]

    @property
    def keys(self) -> set[str]:
        return {name.key for name in self.names.all()}


class EntityName(GraphName):
    """One way to write an entity; in a knowledge base a key belongs to one entity."""

    owner = "entity"

    entity = models.ForeignKey(Entity, models.CASCADE, related_name="names", verbose_name=_("entity"))

    class Meta:
        verbose_name = _("name of an entity")
        verbose_name_plural = _("names of entities")
        ordering = ("entity_id", "pk")
        constraints: ClassVar = [models.UniqueConstraint(fields=["knowledge_base", "key"], name="entity_key_per_kb")]
        indexes: ClassVar = [models.Index("knowledge_base", Left("key", PREFIX_CHARACTERS), name="entity_by_prefix")]
        triggers: ClassVar = CONTENT_TRIGGERS


class GraphFact(GraphRow):
    """An edge of a knowledge base's graph.

    The database forgets the source chunk when it goes (ON DELETE SET NULL), so that deleting chunks loads no facts.
    """

    knowledge_base = models.ForeignKey(
        KnowledgeBase, models.CASCADE, related_name="facts", verbose_name=_("knowledge base")
    )

    subject = models.CharField(_("subject"), max_length=200)
    predicate = models.CharField(_("predicate"), max_length=200)
    object = models.CharField(_("object"), max_length=200)
    subject_key = models.CharField(max_length=KEY_CHARACTERS, editable=False)
    object_key = models.CharField(max_length=KEY_CHARACTERS, editable=False)
    source_chunk = models.ForeignKey(
        Chunk,
        models.DO_NOTHING,
        db_constraint=False,
        null=True,
        blank=True,
        related_name="facts",
        verbose_name=_("source"),
    )
    origin = models.CharField(_("origin"), max_length=6, choices=Origin, default=Origin.HAND, editable=False)

    class Meta:
        verbose_name = _("graph fact")
        verbose_name_plural = _("graph facts")
        ordering = ("subject", "predicate", "object")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["knowledge_base", "subject_key", "predicate", "object_key"], name="fact_once_per_kb"
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["knowledge_base", "object_key"], name="fact_by_object"),
            models.Index("knowledge_base", Left("subject_key", PREFIX_CHARACTERS), name="fact_by_subject_prefix"),
            models.Index("knowledge_base", Left("object_key", PREFIX_CHARACTERS), name="fact_by_object_prefix"),
        ]
        triggers: ClassVar = [*FACT_TRIGGERS, *FACT.triggers()]

    def __str__(self) -> str:
        return f"{self.subject} · {self.predicate} · {self.object}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.subject_key, self.object_key = normalized_key(self.subject), normalized_key(self.object)
        super().save(*args, **kwargs)

    def is_stated_already(self) -> bool:
        same = GraphFact.objects.filter(
            knowledge_base=self.knowledge_base_id,
            subject_key=normalized_key(self.subject),
            predicate=self.predicate,
            object_key=normalized_key(self.object),
        )
        return same.exclude(pk=self.pk).exists()


class FactSource(InternalRow):
    """A document, and its chunk as long as that is there, in which a chat model found a fact.

    A fact of a chat model goes with the last of its sources: see `FACT_SOURCE_TRIGGERS`.
    """

    fact = models.ForeignKey(GraphFact, models.CASCADE, related_name="sources", verbose_name=_("graph fact"))
    document = models.ForeignKey(Document, models.CASCADE, related_name="+", verbose_name=_("document"))
    chunk = models.ForeignKey(
        Chunk, models.DO_NOTHING, db_constraint=False, null=True, related_name="+", verbose_name=_("chunk")
    )

    objects = ScopedQuerySet.through("document__knowledge_base").as_manager()

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["fact", "document", "chunk"], name="fact_source_once")]
        triggers: ClassVar = FACT_SOURCE_TRIGGERS


class GraphReading(InternalRow):
    """What a chat model found in a passage: one that stays as it is, is not read again."""

    document = models.ForeignKey(Document, models.CASCADE, related_name="+")
    content_hash = models.CharField(max_length=64)
    version = models.CharField(max_length=32)
    found = models.JSONField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["document", "content_hash"], name="graph_reading_once"),
        ]


class GraphExtraction(models.Model):
    """How far a document's graph is. It is apart from the document's own state: a document is searched without it.

    What was changed of the document after `asked_at` has not been read. Of its chunks some were read, now or before,
    some got no usable answer, and some were beyond what is read of one document; facts and entities that the model made
    up were refused. `concept_ids` are those that were assigned to the document here.
    """

    class Status(models.TextChoices):
        WAITING = "waiting", _("waiting")
        RUNNING = "running", _("being read")
        DONE = "done", pgettext_lazy("of a document", "read")
        FAILED = "failed", _("failed")

    document = models.OneToOneField(
        Document, models.CASCADE, related_name="graph_extraction", verbose_name=_("document")
    )
    status = models.CharField(_("status"), max_length=8, choices=Status, default=Status.WAITING)
    attempts = models.PositiveSmallIntegerField(default=0)
    error_code = models.CharField(max_length=40, blank=True)
    error = MessageField(_("error"), blank=True)
    due_at = models.DateTimeField(_("next attempt"), null=True)
    lease = models.UUIDField(null=True, editable=False)
    asked_at = models.DateTimeField()
    finished_at = models.DateTimeField(_("finished"), null=True)
    chunk_count = models.PositiveIntegerField(default=0)
    read_count = models.PositiveIntegerField(default=0)
    unusable_count = models.PositiveIntegerField(default=0)
    skipped_count = models.PositiveIntegerField(default=0)
    refused_count = models.PositiveIntegerField(default=0)
    fact_count = models.PositiveIntegerField(_("facts"), default=0)
    concept_ids = ArrayField(models.BigIntegerField(), default=list)

    objects = ScopedQuerySet.through("document__knowledge_base").as_manager()

    class Meta:
        verbose_name = _("graph extraction task")
        verbose_name_plural = _("graph extraction tasks")
        ordering = ("-asked_at", "-pk")
        indexes: ClassVar = [
            models.Index(
                fields=["due_at"], condition=models.Q(status__in=("waiting", "running")), name="graph_extraction_due"
            ),
        ]

    def __str__(self) -> str:
        return str(self.document)


class DocumentConcept(Document.concepts.through):  # type: ignore[misc, name-defined]
    """The concepts of documents, as far as versions are concerned."""

    class Meta:
        proxy = True
        triggers: ClassVar = DOCUMENT_CONCEPT_TRIGGERS
