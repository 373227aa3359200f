from typing import Any, ClassVar

from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase, Membership
from kb.base.db.transactions import holding_knowledge_bases
from kb.base.errors import NotAllowed
from kb.content.services import (
    knowledge_base_create,
    knowledge_base_delete,
    knowledge_base_overview,
    knowledge_base_update,
)
from kb.ingest.remote_parsers.registry import offered_parsers
from kb.ingest.services.chunk_preview import CHUNKING
from kb.profiles.models import RetrievalProfile
from kb.providers.embedding_models import require_embedding_model
from kb.web.api.callers import user_of
from kb.web.api.fields import (
    NOT_MODIFIED,
    ListField,
    StrictBooleanField,
    StrictCharField,
    StrictIntegerField,
    StrictSerializer,
    answers,
)
from kb.web.api.idempotency import IF_MATCH, IF_NONE_MATCH, RETURNED, Etagged, conditional, require_match
from kb.web.api.views import ApiViewSet, Created, ListFilters, OneOf, Text, one
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
            *CHUNKING,
            "word_parts",
            "parser",
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
            "The hashing embedder compares words, not meaning. "
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


class ReadingSerializer(StrictSerializer):
    """What is read of files, where that is a choice."""

    word_parts = ListField(
        child=serializers.ChoiceField(KnowledgeBase.WordPart.choices),
        required=False,
        max_length=len(KnowledgeBase.WordPart.values),
        help_text="What is read of Word documents beside their body.",
    )


class DerivedSerializer(StrictSerializer):
    """What is made of chunks beside their text."""

    keyword_vectors = StrictBooleanField(
        required=False, help_text="Whether keywords are extracted and embedded beside the content."
    )
    keyword_method = serializers.ChoiceField(
        KnowledgeBase.KeywordMethod.choices, required=False, help_text="What finds them; llm: the chat model."
    )
    ask_questions = StrictBooleanField(
        required=False,
        help_text="Whether the chat model writes questions that a chunk answers, which are embedded.",
    )
    extract_graph = StrictBooleanField(
        required=False, help_text="Whether the chat model finds entities, relations and concepts in every document."
    )


class KnowledgeBaseChangeSerializer(ChunkingSerializer, ReadingSerializer, DerivedSerializer):
    name = StrictCharField(max_length=120, help_text="Unique among the knowledge bases of its owner.")
    description = StrictCharField(max_length=10_000, allow_blank=True, required=False)
    language = serializers.ChoiceField(KnowledgeBase.Language.choices, required=False)
    parser = serializers.ChoiceField(
        KnowledgeBase.Parser.choices,
        required=False,
        help_text="What reads its files; empty: the built-in reader. Another one has to be set up by the operator.",
    )

    def validate_parser(self, value: str) -> str:
        if value not in offered_parsers():
            raise serializers.ValidationError(
                _("This installation has no address for this parser: let an administrator set it, or choose another.")
            )
        return value


class KnowledgeBaseCreateSerializer(KnowledgeBaseChangeSerializer):
    embedding_model = StrictCharField(
        max_length=255,
        required=False,
        help_text="hashing, a model whose weights this server has, or openai:MODEL. Left out: the server's default.",
    )


class KnowledgeBaseFilters(Created, ListFilters):
    orders: ClassVar = ("name", "-name", "created_at", "-created_at", "id", "-id")
    q = Text(field_name="name", lookup_expr="icontains", help_text="Stands in the name.")
    language = OneOf(KnowledgeBase.Language.values, help_text="Of its documents.")
    role = OneOf(Membership.Role.values, help_text="The caller’s.")
    embedding_model = Text(help_text="The id of the model.")


@extend_schema_view(
    list=extend_schema(
        summary="List the knowledge bases that the caller may see",
        parameters=KnowledgeBaseFilters.parameters(),
        responses=answers({200: KnowledgeBaseSerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Create a knowledge base",
        request=KnowledgeBaseCreateSerializer,
        responses=answers({201: KnowledgeBaseSerializer}, 400, 403, 413, 415),
    ),
    retrieve=extend_schema(
        summary="Read a knowledge base",
        parameters=[IF_NONE_MATCH, RETURNED],
        responses=answers({200: KnowledgeBaseSerializer, 304: NOT_MODIFIED}, 404),
    ),
    partial_update=extend_schema(
        summary="Change a knowledge base",
        description="New chunking serves the documents that are indexed from now on.",
        parameters=[IF_MATCH, RETURNED],
        request=KnowledgeBaseChangeSerializer,
        responses=answers({200: KnowledgeBaseSerializer}, 400, 403, 404, 412, 413, 415),
    ),
    destroy=extend_schema(
        summary="Delete a knowledge base and everything in it",
        description="For its owners only.",
        parameters=[IF_MATCH],
        responses=answers({204: None}, 403, 404, 412),
    ),
)
class KnowledgeBaseViewSet(ApiViewSet):
    def list(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(knowledge_base_overview(self.principal), KnowledgeBaseSerializer, KnowledgeBaseFilters)

    def create(self, request: Request) -> Response:
        fields = self.checked(KnowledgeBaseCreateSerializer)
        if self.principal.kb_ids is not None:
            raise NotAllowed(
                _("This API key is bound to knowledge bases and cannot make another: use one that is not.")
            )
        if "embedding_model" in fields:
            fields["embedding_model"] = require_embedding_model(fields["embedding_model"])
        kb = knowledge_base_create(owner=user_of(request), **fields)
        return Response(self._described(kb.pk), status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, pk: int) -> Response:
        return conditional(request, self._described(pk))

    def partial_update(self, request: Request, pk: int) -> Response:
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), pk)
        changes = self.checked(KnowledgeBaseChangeSerializer, partial=True)
        with holding_knowledge_bases([pk]):
            require_match(request, self._described(pk))
            kb.refresh_from_db()
            knowledge_base_update(kb, by=self.principal, **changes)
        described = self._described(pk)
        return Response(described, headers={"ETag": described["etag"]})

    def destroy(self, request: Request, pk: int) -> Response:
        kb = one(KnowledgeBase.objects.visible_to(self.principal), pk)
        if not KnowledgeBase.objects.owned_by(self.principal).filter(pk=pk).exists():
            raise NotAllowed(_("Only an owner may delete a knowledge base."))
        with holding_knowledge_bases([pk]):
            require_match(request, self._described(pk))
            knowledge_base_delete(kb)
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _described(self, pk: int) -> dict[str, Any]:
        return KnowledgeBaseSerializer(one(knowledge_base_overview(self.principal), pk)).data
