from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.filters import ConceptFilters, EntityFilters, FactFilters
from kb.api.schema import answers
from kb.api.serializers.graph import (
    ConceptChangeSerializer,
    ConceptSerializer,
    EntityChangeSerializer,
    EntityMergeSerializer,
    EntitySerializer,
    FactCreateSerializer,
    GraphFactSerializer,
    GraphImportSerializer,
    ImportPlanSerializer,
)
from kb.api.views.base import ApiViewSet, one
from kb.models import Concept, Entity, GraphFact, KnowledgeBase
from kb.services.graph.editing import (
    concept_create,
    concept_delete,
    concept_update,
    fact_create,
    fact_delete,
    fact_update,
)
from kb.services.graph.entities import entity_create, entity_delete, entity_merge, entity_update
from kb.services.graph.importing import graph_import, graph_import_plan
from kb.services.graph.tables import MAX_BYTES, Table, read_bytes


@extend_schema_view(
    list=extend_schema(
        operation_id="knowledge_base_entities",
        summary="List the entities of a knowledge base's graph",
        parameters=EntityFilters.parameters(),
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

    def list(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        return self.page(self._entities().filter(knowledge_base=kb), EntitySerializer, EntityFilters)

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
        parameters=FactFilters.parameters(),
        responses=answers({200: GraphFactSerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Add a fact",
        request=FactCreateSerializer,
        responses=answers({201: GraphFactSerializer}, 400, 403, 404, 413, 415),
    ),
    retrieve=extend_schema(summary="Read a fact", responses=answers({200: GraphFactSerializer}, 404)),
    partial_update=extend_schema(
        summary="Change a fact",
        request=FactCreateSerializer,
        responses=answers({200: GraphFactSerializer}, 400, 403, 404, 413, 415),
    ),
    destroy=extend_schema(summary="Delete a fact", responses=answers({204: None}, 403, 404)),
)
class FactViewSet(ApiViewSet):
    queryset = GraphFact.objects.none()

    def list(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        return self.page(self._facts().filter(knowledge_base=kb), GraphFactSerializer, FactFilters)

    def create(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        fact = fact_create(knowledge_base=kb, **self.checked(FactCreateSerializer))
        return Response(GraphFactSerializer(fact).data, status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(GraphFactSerializer(one(self._facts(), pk)).data)

    def partial_update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        fact = self.editable(self._facts(), pk)
        fact_update(fact, **self.checked(FactCreateSerializer, partial=True))
        return Response(GraphFactSerializer(fact).data)

    def destroy(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        fact_delete(self.editable(self._facts(), pk))
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _facts(self) -> QuerySet[GraphFact]:
        rows: QuerySet[GraphFact] = GraphFact.objects.visible_to(self.principal)
        return rows


@extend_schema_view(
    list=extend_schema(
        operation_id="knowledge_base_concepts",
        summary="List the concepts of a knowledge base",
        parameters=ConceptFilters.parameters(),
        responses=answers({200: ConceptSerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Add a concept",
        request=ConceptChangeSerializer,
        responses=answers({201: ConceptSerializer}, 400, 403, 404, 413, 415),
    ),
    retrieve=extend_schema(summary="Read a concept", responses=answers({200: ConceptSerializer}, 404)),
    partial_update=extend_schema(
        summary="Change a concept",
        request=ConceptChangeSerializer,
        responses=answers({200: ConceptSerializer}, 400, 403, 404, 413, 415),
    ),
    destroy=extend_schema(
        summary="Delete a concept; those that are narrower stay", responses=answers({204: None}, 403, 404)
    ),
)
class ConceptViewSet(ApiViewSet):
    queryset = Concept.objects.none()

    def list(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        return self.page(self._concepts().filter(knowledge_base=kb), ConceptSerializer, ConceptFilters)

    def create(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        concept = concept_create(knowledge_base=kb, **self.checked(ConceptChangeSerializer))
        return Response(self._described(concept.pk), status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(self._described(pk))

    def partial_update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        concept_update(self.editable(self._concepts(), pk), **self.checked(ConceptChangeSerializer, partial=True))
        return Response(self._described(pk))

    def destroy(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        concept_delete(self.editable(self._concepts(), pk))
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _concepts(self) -> QuerySet[Concept]:
        rows: QuerySet[Concept] = Concept.objects.visible_to(self.principal).prefetch_related("terms")
        return rows

    def _described(self, pk: int) -> dict[str, Any]:
        return ConceptSerializer(one(self._concepts(), pk)).data


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
