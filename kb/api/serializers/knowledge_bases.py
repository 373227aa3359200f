from django.utils.translation import gettext as _
from rest_framework import serializers

from kb.api.etags import Etagged
from kb.api.fields import StrictBooleanField, StrictCharField, StrictIntegerField, StrictSerializer
from kb.models import KnowledgeBase, Membership, RetrievalProfile
from retrieval.embedders.hashing import HASHING_MODEL_ID


class ProfileSerializer(serializers.ModelSerializer[RetrievalProfile]):
    class Meta:
        model = RetrievalProfile
        fields = ("name", "version")


class KnowledgeBaseSerializer(Etagged, serializers.ModelSerializer[KnowledgeBase]):
    profile = ProfileSerializer(read_only=True)
    document_count = serializers.IntegerField(read_only=True)
    chunk_count = serializers.IntegerField(read_only=True)
    role = serializers.ChoiceField(Membership.Role.choices, read_only=True, help_text="The caller's role.")
    degraded = serializers.SerializerMethodField(help_text="Whether its searches are worse than they could be.")
    degraded_reason = serializers.SerializerMethodField(help_text="Why, and what to do about it; else empty.")

    class Meta:
        model = KnowledgeBase
        fields = (
            "id",
            "name",
            "description",
            "language",
            "embedding_model",
            "dimension",
            "store",
            "profile",
            "chunk_strategy",
            "chunk_size",
            "chunk_overlap",
            "chunk_unit",
            "parent_size",
            "keyword_vectors",
            "keyword_method",
            "ask_questions",
            "extract_graph",
            "document_count",
            "chunk_count",
            "role",
            "degraded",
            "degraded_reason",
            "created_at",
            "etag",
        )
        read_only_fields = fields

    def get_degraded(self, kb: KnowledgeBase) -> bool:
        return kb.embedding_model == HASHING_MODEL_ID

    def get_degraded_reason(self, kb: KnowledgeBase) -> str:
        if not self.get_degraded(kb):
            return ""
        return _(
            "The hashing embedder compares words, not meaning, so keywords lead the search. "
            "Create the knowledge base with an embedding model, or re-embed it with one (manage.py reindex --embeddings)."
        )


class ChunkingSerializer(StrictSerializer):
    """How documents are cut."""

    chunk_strategy = serializers.ChoiceField(KnowledgeBase.ChunkStrategy.choices, required=False)
    chunk_size = StrictIntegerField(min_value=20, max_value=8_000, required=False, help_text="In chunk units.")
    chunk_overlap = StrictIntegerField(
        min_value=0, max_value=4_000, required=False, help_text="In chunk units; smaller than the chunk size."
    )
    chunk_unit = serializers.ChoiceField(KnowledgeBase.ChunkUnit.choices, required=False)
    parent_size = StrictIntegerField(
        min_value=100,
        max_value=32_000,
        required=False,
        help_text="Of the strategy parent_child: how long the passage is that is returned, in chunk units.",
    )


class DerivedSerializer(StrictSerializer):
    """What is made of chunks beside their text."""

    keyword_vectors = StrictBooleanField(
        required=False, help_text="Whether keywords are extracted and embedded beside the content."
    )
    keyword_method = serializers.ChoiceField(
        KnowledgeBase.KeywordMethod.choices, required=False, help_text="What finds them; llm: the language model."
    )
    ask_questions = StrictBooleanField(
        required=False,
        help_text="Whether the language model writes questions that a chunk answers, which are embedded.",
    )
    extract_graph = StrictBooleanField(
        required=False, help_text="Whether the language model finds entities, relations and concepts in every document."
    )


class KnowledgeBaseChangeSerializer(ChunkingSerializer, DerivedSerializer):
    name = StrictCharField(max_length=120, help_text="Unique among the knowledge bases of its owner.")
    description = StrictCharField(max_length=10_000, allow_blank=True, required=False)
    language = serializers.ChoiceField(KnowledgeBase.Language.choices, required=False)


class KnowledgeBaseCreateSerializer(KnowledgeBaseChangeSerializer):
    embedding_model = StrictCharField(
        max_length=255,
        required=False,
        help_text="hashing, a model whose weights this server has, or openai:MODEL. Left out: the server's default.",
    )
