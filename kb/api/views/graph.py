from typing import Any

from django.db import IntegrityError
from django.db.models import QuerySet
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer

from kb.api.schema import answers
from kb.api.serializers.graph import (
    EntityChangeSerializer,
    EntityFilterSerializer,
    EntityMergeSerializer,
    EntitySerializer,
    FactCreateSerializer,
    FactFilterSerializer,
    GraphFactSerializer,
    GraphImportSerializer,
    ImportPlanSerializer,
)
from kb.api.views.base import ApiViewSet, one
from kb.models import Entity, EntityName, GraphFact, KnowledgeBase
from kb.models.names import normalized_key
from kb.services.errors import Rejected
from kb.services.graph.entities import entity_create, entity_delete, entity_merge, entity_update
from kb.services.graph.importing import graph_import, graph_import_plan
from kb.services.graph.neighbourhood import facts_of
from kb.services.graph.tables import MAX_BYTES, Table, read_bytes


@extend_schema_view(
    list=extend_schema(
        operation_id="knowledge_base_entities",
        summary="List the entities of a knowledge base's graph",
        parameters=[EntityFilterSerializer],
        responses=answers({200: EntitySerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Add an entity",
        request=EntityChangeSerializer,
        responses=answers({201: EntitySerializer}, 400, 403, 404, 413, 415),
    ),
    retrieve=extend_schema(summary="Read an entity", responses=answers({200: EntitySerializer}, 404)),
    partial_update=extend_schema(
        summary="Change an entity",
        description="Facts that are stated by one of its names are stated by its name from then on.",
        request=EntityChangeSerializer,
        responses=answers({200: EntitySerializer}, 400, 403, 404, 413, 415),
    ),
    destroy=extend_schema(
        summary="Delete an entity; the facts that name it stay", responses=answers({204: None}, 403, 404)
    ),
    merge=extend_schema(
        operation_id="entity_merge",
        summary="Make another entity a part of this one",
        description="Its names move, and of facts that are then equal one stays.",
        request=EntityMergeSerializer,
        responses=answers({200: EntitySerializer}, 400, 403, 404, 413, 415),
    ),
)
class EntityViewSet(ApiViewSet):
    queryset = Entity.objects.none()

    def list(self, request: Request, kb_id: int) -> Response:
        kb = one(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        rows = self._entities().filter(knowledge_base=kb).order_by("name", "pk")
        if query := _asked(EntityFilterSerializer, request).get("q"):
            named = EntityName.objects.filter(knowledge_base=kb, key__contains=normalized_key(query))
            rows = rows.filter(pk__in=named.values("entity"))
        return self.page(rows, EntitySerializer)

    def create(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        entity = entity_create(knowledge_base=kb, **self.checked(EntityChangeSerializer))
        return Response(self._described(entity.pk), status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(self._described(pk))

    def partial_update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        entity_update(self.editable(self._entities(), pk), **self.checked(EntityChangeSerializer, partial=True))
        return Response(self._described(pk))

    def destroy(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        entity_delete(self.editable(self._entities(), pk))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @action(detail=True, methods=["post"])
    def merge(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kept = self.editable(self._entities(), pk)
        entity_merge(kept, one(self._entities(), self.checked(EntityMergeSerializer)["entity_id"]))
        return Response(self._described(pk))

    def _entities(self) -> QuerySet[Entity]:
        rows: QuerySet[Entity] = Entity.objects.visible_to(self.principal).prefetch_related("names")
        return rows

    def _described(self, pk: int) -> dict[str, Any]:
        return EntitySerializer(one(self._entities(), pk)).data


@extend_schema_view(
    list=extend_schema(
        operation_id="knowledge_base_facts",
        summary="List the facts of a knowledge base's graph",
        parameters=[FactFilterSerializer],
        responses=answers({200: GraphFactSerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Add a fact",
        request=FactCreateSerializer,
        responses=answers({201: GraphFactSerializer}, 400, 403, 404, 413, 415),
    ),
)
class FactViewSet(ApiViewSet):
    queryset = GraphFact.objects.none()

    def list(self, request: Request, kb_id: int) -> Response:
        kb = one(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        rows: QuerySet[GraphFact] = GraphFact.objects.filter(knowledge_base=kb)
        if entity_id := _asked(FactFilterSerializer, request).get("entity_id"):
            rows = facts_of(one(Entity.objects.filter(knowledge_base=kb), entity_id))
        return self.page(rows.order_by("subject", "predicate", "object", "pk"), GraphFactSerializer)

    def create(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        fact = GraphFact(knowledge_base=kb, **self.checked(FactCreateSerializer))
        if not (normalized_key(fact.subject) and normalized_key(fact.object)):
            raise Rejected("blank_name", _("Subject, predicate and object are all needed."))
        try:
            fact.save()
        except IntegrityError as error:
            message = _("The knowledge base holds this fact already: change it or go back.")
            raise Rejected("fact_known", message) from error
        return Response(GraphFactSerializer(fact).data, status=status.HTTP_201_CREATED)


@extend_schema_view(
    import_file=extend_schema(
        operation_id="knowledge_base_graph_import",
        summary="Import entities, facts or concepts from a CSV file",
        description="Entities are known by their names and aliases; what the knowledge base holds already is added to.",
        request={"multipart/form-data": GraphImportSerializer},
        responses=answers({200: ImportPlanSerializer}, 400, 403, 404, 413, 415),
    ),
)
class GraphImportViewSet(ApiViewSet):
    queryset = GraphFact.objects.none()
    parser_classes = [MultiPartParser]

    @action(detail=True, methods=["post"])
    def import_file(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        fields = self.checked(GraphImportSerializer)
        table, text = Table(fields["table"]), read_bytes(fields["file"].read(MAX_BYTES + 1))
        if fields["dry_run"]:
            plan = graph_import_plan(kb, table, text)
        else:
            plan = graph_import(kb, table, text, skip_errors=fields["skip_errors"])
        return Response(ImportPlanSerializer(plan).data)


def _asked(serializer_class: type[Serializer[Any]], request: Request) -> dict[str, Any]:
    serializer = serializer_class(data=request.query_params)
    serializer.is_valid(raise_exception=True)
    fields: dict[str, Any] = serializer.validated_data
    return fields
