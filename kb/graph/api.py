from typing import Any, ClassVar

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.base.text import normalized_key
from kb.graph.models import Concept, ConceptTerm, Entity, EntityName, GraphFact, Origin
from kb.graph.services.entities import (
    KIND_CHARACTERS,
    MAX_ALIASES,
    MOST_TERMS,
    NAME_CHARACTERS,
    concept_create,
    concept_delete,
    concept_update,
    entity_create,
    entity_delete,
    entity_merge,
    entity_update,
    fact_create,
    fact_delete,
    fact_update,
    facts_of,
)
from kb.graph.services.importing import graph_import, graph_import_plan
from kb.graph.services.tables import CELL_CHARACTERS, COLUMNS, MAX_BYTES, Table, read_bytes
from kb.web.api.fields import MAX_ID, StrictCharField, StrictIntegerField, StrictSerializer
from kb.web.api.lists import ListFilters, OneOf, Related, Text, Whole
from kb.web.api.schema import answers
from kb.web.api.views import ApiViewSet, one

ORIGINS = ", ".join(Origin.values)
TABLES = [(table.value, table.value) for table in Table]
COLUMNS_IN_WORDS = "; ".join(f"{table.value}: {', '.join(columns)}" for table, columns in COLUMNS.items())


class EntitySerializer(serializers.ModelSerializer[Entity]):
    aliases = serializers.SerializerMethodField(help_text="Other names that mean it.")
    origin = serializers.CharField(help_text=f"One of: {ORIGINS}.")

    class Meta:
        model = Entity
        fields = ("id", "knowledge_base_id", "name", "aliases", "kind", "description", "origin")
        read_only_fields = fields

    def get_aliases(self, entity: Entity) -> list[str]:
        return [name.text for name in entity.names.all() if name.text != entity.name]


class EntityChangeSerializer(StrictSerializer):
    name = StrictCharField(max_length=NAME_CHARACTERS)
    aliases = serializers.ListField(
        child=StrictCharField(max_length=NAME_CHARACTERS),
        max_length=MAX_ALIASES,
        required=False,
        help_text="All of its other names. A name that it was shown by stays one of them.",
    )
    kind = StrictCharField(max_length=KIND_CHARACTERS, required=False, allow_blank=True)
    description = StrictCharField(max_length=CELL_CHARACTERS, required=False, allow_blank=True)


class EntityMergeSerializer(StrictSerializer):
    entity_id = StrictIntegerField(
        min_value=1, max_value=MAX_ID, help_text="The entity that becomes a part of this one."
    )


class GraphFactSerializer(serializers.ModelSerializer[GraphFact]):
    chunk_id = serializers.IntegerField(source="source_chunk_id", allow_null=True, help_text="That states it, if any.")
    origin = serializers.CharField(help_text=f"One of: {ORIGINS}.")

    class Meta:
        model = GraphFact
        fields = ("id", "subject", "predicate", "object", "chunk_id", "origin")
        read_only_fields = fields


class FactCreateSerializer(StrictSerializer):
    subject = StrictCharField(max_length=NAME_CHARACTERS)
    predicate = StrictCharField(max_length=NAME_CHARACTERS)
    object = StrictCharField(max_length=NAME_CHARACTERS)


class ConceptSerializer(serializers.ModelSerializer[Concept]):
    synonyms = serializers.SerializerMethodField(help_text="Other words for it.")
    abbreviations = serializers.SerializerMethodField()
    parent_id = serializers.IntegerField(allow_null=True, help_text="Of the wider concept.")

    class Meta:
        model = Concept
        fields = ("id", "knowledge_base_id", "name", "description", "parent_id", "synonyms", "abbreviations")
        read_only_fields = fields

    def get_synonyms(self, concept: Concept) -> list[str]:
        return _texts(concept, ConceptTerm.Kind.SYNONYM)

    def get_abbreviations(self, concept: Concept) -> list[str]:
        return _texts(concept, ConceptTerm.Kind.ABBREVIATION)


def _texts(concept: Concept, kind: ConceptTerm.Kind) -> list[str]:
    return [term.text for term in concept.terms.all() if term.kind == kind]


class TermsField(serializers.ListField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=StrictCharField(max_length=NAME_CHARACTERS), max_length=MOST_TERMS, **kwargs)


class ConceptChangeSerializer(StrictSerializer):
    name = StrictCharField(max_length=NAME_CHARACTERS)
    description = StrictCharField(max_length=CELL_CHARACTERS, required=False, allow_blank=True)
    parent_id = StrictIntegerField(
        min_value=1, max_value=MAX_ID, required=False, allow_null=True, help_text="Of the wider concept."
    )
    synonyms = TermsField(required=False, help_text="All other words for it.")
    abbreviations = TermsField(required=False, help_text="All of them.")


class GraphImportSerializer(StrictSerializer):
    table = serializers.ChoiceField(TABLES, help_text=f"What the file holds, and its columns: {COLUMNS_IN_WORDS}.")
    file = serializers.FileField(help_text="CSV in UTF-8 or GB18030.")
    dry_run = serializers.BooleanField(default=False, help_text="Only tell what would change.")
    skip_errors = serializers.BooleanField(
        default=False, help_text="Leave lines with errors out; else one refuses the file."
    )


class PlannedRowSerializer(serializers.Serializer[Any]):
    line = serializers.IntegerField()
    text = serializers.CharField()
    effect = serializers.CharField(help_text="One of: new, changed, same, error.")
    message = serializers.CharField()


class ImportPlanSerializer(serializers.Serializer[Any]):
    counts = serializers.DictField(child=serializers.IntegerField(), help_text="Lines by their effect.")
    bad_lines = PlannedRowSerializer(many=True, source="errors", help_text="Lines with errors.")


class EntityFilters(ListFilters):
    orders: ClassVar = ("name", "-name", "id", "-id")
    q = Text(method="named", help_text="Stands in one of the names.")
    kind = Text()
    origin = OneOf(Origin.values)

    def named(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(pk__in=EntityName.objects.filter(key__contains=normalized_key(value)).values("entity"))


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


def entities_of(principal: Any) -> QuerySet[Any]:
    return Entity.objects.visible_to(principal)


def facts_naming(rows: QuerySet[Any], entity: Entity) -> QuerySet[Any]:
    return rows.filter(pk__in=facts_of(entity).order_by().values("pk"))


class FactFilters(ListFilters):
    orders: ClassVar = ("subject", "-subject", "id", "-id")
    entity_id = Related(entities_of, facts_naming, help_text="Only facts that name it, by any of its names.")
    subject = Text()
    predicate = Text()
    object = Text()
    origin = OneOf(Origin.values)


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


class ConceptFilters(ListFilters):
    orders: ClassVar = ("name", "-name", "id", "-id")
    q = Text(method="named", help_text="Stands in the name or in another word for it.")
    parent_id = Whole(field_name="parent", help_text="The concept that is wider.")

    def named(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(pk__in=rows.filter(terms__key__contains=normalized_key(value)).order_by().values("pk"))


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
