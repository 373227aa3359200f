import re
from typing import ClassVar, Final

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from kb.access.models.accounts import ScopedQuerySet
from kb.base.db.audit_triggers import KNOWLEDGE_BASE, MEMBERSHIP
from kb.base.db.store_triggers import knowledge_base_store_triggers
from kb.base.db.triggers import knowledge_base_triggers


class KnowledgeBase(models.Model):
    class Language(models.TextChoices):
        CHINESE = "zh", _("Chinese")
        ENGLISH = "en", _("English")

    class ChunkUnit(models.TextChoices):
        CHARACTERS = "characters", _("characters")
        TOKENS = "tokens", _("tokens")

    class ChunkStrategy(models.TextChoices):
        RECURSIVE = "recursive", _("by paragraphs and sentences")
        HEADINGS = "headings", _("by headings, with their path as context")
        QUESTIONS = "questions", _("questions and answers")
        PARENT_CHILD = "parent_child", _("small to search, large to return")
        TOKENS = "tokens", _("fixed numbers of the model’s tokens")

    class Store(models.TextChoices):
        """What searches its vectors, and with Milvus its keywords; PostgreSQL holds everything in any case."""

        POSTGRES = "postgres", "PostgreSQL"
        MILVUS = "milvus", "Milvus"
        CHROMA = "chroma", "ChromaDB"

    class KeywordMethod(models.TextChoices):
        TFIDF = "tfidf", _("TF-IDF")
        TEXTRANK = "textrank", _("TextRank, by part of speech")
        LLM = "llm", _("a language model")

    name = models.CharField(_("name"), max_length=120)
    description = models.TextField(_("description"), blank=True)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, related_name="knowledge_bases", verbose_name=_("owner")
    )
    language = models.CharField(_("language"), max_length=2, choices=Language, default=Language.CHINESE)
    embedding_model = models.CharField(_("embedding model"), max_length=255)
    target_embedding_model = models.CharField(max_length=255, blank=True, editable=False)
    previous_embedding_model = models.CharField(max_length=255, blank=True, editable=False)
    dimension = models.PositiveIntegerField(_("dimension"), null=True, editable=False)
    store = models.CharField(
        _("store"), max_length=10, choices=Store, default=Store.POSTGRES, db_default="postgres", editable=False
    )
    target_store = models.CharField(max_length=10, choices=Store, blank=True, default="", db_default="", editable=False)
    tokenizer_id = models.CharField(_("tokenizer"), max_length=120, blank=True, editable=False)
    target_tokenizer_id = models.CharField(max_length=120, blank=True, editable=False)
    tokenizing_at = models.DateTimeField(null=True, editable=False)
    tokenizer_swapped_at = models.DateTimeField(null=True, editable=False)
    lacks_postings = models.BooleanField(default=False, editable=False)
    chunk_size = models.PositiveIntegerField(
        _("chunk size"), default=500, validators=[MinValueValidator(20), MaxValueValidator(8_000)]
    )
    chunk_overlap = models.PositiveIntegerField(_("chunk overlap"), default=50, validators=[MaxValueValidator(4_000)])
    chunk_unit = models.CharField(_("chunk unit"), max_length=12, choices=ChunkUnit, default=ChunkUnit.CHARACTERS)
    chunk_strategy = models.CharField(
        _("chunking"), max_length=12, choices=ChunkStrategy, default=ChunkStrategy.RECURSIVE
    )
    parent_size = models.PositiveIntegerField(
        _("size of what is returned"),
        default=2_000,
        validators=[MinValueValidator(100), MaxValueValidator(32_000)],
        help_text=_("Only where small chunks are searched and large ones returned; in chunk units."),
    )
    profile = models.ForeignKey(
        "kb.RetrievalProfile",
        models.RESTRICT,  # its own profiles go with it
        related_name="knowledge_bases",
        verbose_name=_("retrieval profile"),
    )
    keyword_vectors = models.BooleanField(
        _("keyword vectors"),
        default=False,
        help_text=_("Extract keywords and embed them beside the content."),
    )
    keyword_method = models.CharField(
        _("keywords by"), max_length=8, choices=KeywordMethod, default=KeywordMethod.TFIDF
    )
    ask_questions = models.BooleanField(
        _("questions by a language model"),
        default=False,
        help_text=_("Let the language model write questions that a chunk answers, and embed them."),
    )
    extract_graph = models.BooleanField(
        _("graph by a language model"),
        default=False,
        help_text=_("Let the language model find entities, relations and concepts in every document."),
    )
    no_answer = models.CharField(
        _("answer when nothing is found"),
        max_length=500,
        blank=True,
        help_text=_("Blank: a sentence in the knowledge base’s language."),
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    updated_at = models.DateTimeField(_("updated"), auto_now=True)

    objects = ScopedQuerySet.through("").as_manager()

    class Meta:
        verbose_name = _("knowledge base")
        verbose_name_plural = _("knowledge bases")
        ordering = ("name", "pk")
        constraints: ClassVar = [models.UniqueConstraint(fields=["owner", "name"], name="kb_name_per_owner")]
        triggers: ClassVar = [
            *knowledge_base_triggers(),
            *knowledge_base_store_triggers(),
            *KNOWLEDGE_BASE.triggers(),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Checks what no single field can tell."""
        if self.chunk_size is not None and self.chunk_overlap is not None and self.chunk_overlap >= self.chunk_size:
            raise ValidationError({"chunk_overlap": _("The overlap must be smaller than the chunk size.")})
        has_parents = self.chunk_strategy == self.ChunkStrategy.PARENT_CHILD
        if has_parents and None not in (self.chunk_size, self.parent_size) and self.parent_size <= self.chunk_size:
            raise ValidationError({"parent_size": _("What is returned must be larger than what is searched.")})


class Membership(models.Model):
    class Role(models.TextChoices):
        VIEWER = "viewer", _("viewer")
        EDITOR = "editor", _("editor")
        OWNER = "owner", _("owner")

    knowledge_base = models.ForeignKey(KnowledgeBase, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships", verbose_name=_("user")
    )
    role = models.CharField(_("role"), max_length=8, choices=Role, default=Role.VIEWER)

    objects = ScopedQuerySet.as_manager()

    class Meta:
        verbose_name = _("membership")
        verbose_name_plural = _("memberships")
        constraints: ClassVar = [models.UniqueConstraint(fields=["knowledge_base", "user"], name="membership_once")]
        triggers: ClassVar = MEMBERSHIP.triggers()

    def __str__(self) -> str:
        return f"{self.user} · {self.get_role_display()}"


_EXTENSION: Final = re.compile(r"[a-z0-9]{1,16}")
"""What is longer, or other, after the last dot is part of a name, which may be too long for a file system."""
