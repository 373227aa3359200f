from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.authentication import user_of
from kb.api.etags import IF_MATCH, IF_NONE_MATCH, RETURNED, conditional, require_match
from kb.api.filters import KnowledgeBaseFilters
from kb.api.schema import NOT_MODIFIED, answers
from kb.api.serializers.knowledge_bases import (
    KnowledgeBaseChangeSerializer,
    KnowledgeBaseCreateSerializer,
    KnowledgeBaseSerializer,
)
from kb.api.views.base import ApiViewSet, one
from kb.models import KnowledgeBase
from kb.models.locks import lock_knowledge_bases
from kb.selectors import knowledge_base_overview
from kb.services.embedding_models import require_embedding_model
from kb.services.errors import NotAllowed
from kb.services.knowledge_bases import (
    knowledge_base_create,
    knowledge_base_delete,
    knowledge_base_update,
)


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
    queryset = KnowledgeBase.objects.none()

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
        with transaction.atomic():
            lock_knowledge_bases([pk])
            require_match(request, self._described(pk))
            kb.refresh_from_db()
            knowledge_base_update(kb, by=self.principal, **changes)
        told = self._described(pk)
        return Response(told, headers={"ETag": told["etag"]})

    def destroy(self, request: Request, pk: int) -> Response:
        kb = one(KnowledgeBase.objects.visible_to(self.principal), pk)
        if not KnowledgeBase.objects.owned_by(self.principal).filter(pk=pk).exists():
            raise NotAllowed(_("Only an owner may delete a knowledge base."))
        with transaction.atomic():
            lock_knowledge_bases([pk])
            require_match(request, self._described(pk))
            knowledge_base_delete(kb)
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _described(self, pk: int) -> dict[str, Any]:
        return KnowledgeBaseSerializer(one(knowledge_base_overview(self.principal), pk)).data
