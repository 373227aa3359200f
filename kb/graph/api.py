from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, cast

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
    concept_update,
    entity_merge,
    entity_update,
    fact_update,
    facts_of,
)
from kb.graph.services.tables import (
    CELL_CHARACTERS,
    COLUMNS,
    MAX_BYTES,
    PlannedRow,
    Table,
    graph_import,
    graph_import_plan,
    read_bytes,
)
from kb.web.api.fields import MAX_ID, ListField, StrictCharField, StrictIntegerField, StrictSerializer, answers, shape
from kb.web.api.views import ApiViewSet, ListFilters, OneOf, Related, Text, Whole, one

WRITE_PROBLEMS = (400, 403, 404, 413, 415)
ORIGINS = ", ".join(Origin.values)
COLUMNS_IN_WORDS = "; ".join(f"{table.value}: {', '.join(columns)}" for table, columns in COLUMNS.items())


class EntitySerializer(serializers.ModelSerializer[Entity]):
    aliases = ListField(child=serializers.CharField(), read_only=True, help_text="Other names that mean it.")
    origin = serializers.CharField(help_text=f"One of: {ORIGINS}.")

    class Meta:
        model = Entity
        fields = ("id", "knowledge_base_id", "name", "aliases", "kind", "description", "origin")
        read_only_fields = fields


class EntityChangeSerializer(StrictSerializer):
    name = StrictCharField(max_length=NAME_CHARACTERS)
    aliases = ListField(
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
        return [term.text for term in concept.other_terms if term.kind == ConceptTerm.Kind.SYNONYM]

    def get_abbreviations(self, concept: Concept) -> list[str]:
        return [term.text for term in concept.other_terms if term.kind == ConceptTerm.Kind.ABBREVIATION]


class ConceptChangeSerializer(StrictSerializer):
    name = StrictCharField(max_length=NAME_CHARACTERS)
    description = StrictCharField(max_length=CELL_CHARACTERS, required=False, allow_blank=True)
    parent_id = StrictIntegerField(
        min_value=1, max_value=MAX_ID, required=False, allow_null=True, help_text="Of the wider concept."
    )
    synonyms = ListField(
        child=StrictCharField(max_length=NAME_CHARACTERS),
        max_length=MOST_TERMS,
        required=False,
        help_text="All other words for it.",
    )
    abbreviations = ListField(
        child=StrictCharField(max_length=NAME_CHARACTERS),
        max_length=MOST_TERMS,
        required=False,
        help_text="All of them.",
    )


class GraphImportSerializer(StrictSerializer):
    table = serializers.ChoiceField(
        Table.values, help_text=f"What the file holds, and its columns: {COLUMNS_IN_WORDS}."
    )
    file = serializers.FileField(help_text="CSV in UTF-8 or GB18030.")
    dry_run = serializers.BooleanField(default=False, help_text="Only tell what would change.")
    skip_errors = serializers.BooleanField(
        default=False, help_text="Leave lines with errors out; else one refuses the file."
    )


class ImportPlanSerializer(serializers.Serializer[Any]):
    counts = serializers.DictField(child=serializers.IntegerField(), help_text="Lines by their effect.")
    bad_lines = shape(PlannedRow)(many=True, source="errors", help_text="Lines with errors.")


class GraphViewSet(ApiViewSet):
    """Rows of knowledge bases' graphs: listed and added below their knowledge base, read and changed by their ids.

    `queryset` holds none of them and says what they are, `row_class` shows one, `fields_class` is what a caller may
    give of it, and `change` the service that writes it, stored or new.
    """

    queryset: Any
    row_class: ClassVar[type[serializers.ModelSerializer[Any]]]
    fields_class: ClassVar[type[StrictSerializer]]
    filters: ClassVar[type[ListFilters]]
    related: ClassVar[tuple[str, ...]] = ()
    change: ClassVar[Callable[..., Any]]

    def list(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        return self.page(self.visible().filter(knowledge_base=kb), self.row_class, self.filters)

    def create(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        row = self.change(self.queryset.model(knowledge_base=kb), **self.checked(self.fields_class))
        return Response(self.described(row.pk), status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(self.described(pk))

    def partial_update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        self.change(self.editable(self.visible(), pk), **self.checked(self.fields_class, partial=True))
        return Response(self.described(pk))

    def destroy(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        self.editable(self.visible(), pk).delete()
        return Response(status=status.HTTP_204_NO_CONTENT)

    def visible(self) -> QuerySet[Any]:
        rows = self.queryset.model.objects.visible_to(self.principal)
        return cast("QuerySet[Any]", rows.prefetch_related(*self.related))

    def described(self, pk: int) -> Any:
        return self.row_class(one(self.visible(), pk)).data


def _documented(
    plural: str, single: str, *, listed: str, deleted: str, changed: str | None = None
) -> Callable[[type[GraphViewSet]], type[GraphViewSet]]:
    """Describes the operations on rows, which are called `plural` and each of them `single`."""

    def decorate(view: type[GraphViewSet]) -> type[GraphViewSet]:
        row, given = view.row_class, view.fields_class
        return extend_schema_view(
            list=extend_schema(
                operation_id=f"knowledge_base_{plural}",
                summary=listed,
                parameters=view.filters.parameters(),
                responses=answers({200: row(many=True)}, 400, 404),
            ),
            create=extend_schema(
                summary=f"Add {single}", request=given, responses=answers({201: row}, *WRITE_PROBLEMS)
            ),
            retrieve=extend_schema(summary=f"Read {single}", responses=answers({200: row}, 404)),
            partial_update=extend_schema(
                summary=f"Change {single}",
                description=changed,
                request=given,
                responses=answers({200: row}, *WRITE_PROBLEMS),
            ),
            destroy=extend_schema(summary=deleted, responses=answers({204: None}, 403, 404)),
        )(view)

    return decorate


class EntityFilters(ListFilters):
    orders: ClassVar = ("name", "-name", "id", "-id")
    q = Text(method="named", help_text="Stands in one of the names.")
    kind = Text()
    origin = OneOf(Origin.values)

    def named(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(pk__in=EntityName.objects.filter(key__contains=normalized_key(value)).values("entity"))


@_documented(
    "entities",
    "an entity",
    listed="List the entities of a knowledge base's graph",
    changed="Facts that are stated by one of its names are stated by its name from then on.",
    deleted="Delete an entity; the facts that name it stay",
)
class EntityViewSet(GraphViewSet):
    queryset = Entity.objects.none()
    related = ("names",)
    row_class = EntitySerializer
    fields_class = EntityChangeSerializer
    filters = EntityFilters
    change = staticmethod(entity_update)

    @extend_schema(
        operation_id="entity_merge",
        summary="Make another entity a part of this one",
        description="Its names move, and of facts that are then equal one stays.",
        request=EntityMergeSerializer,
        responses=answers({200: EntitySerializer}, *WRITE_PROBLEMS),
    )
    @action(detail=True, methods=["post"])
    def merge(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        kept = self.editable(self.visible(), pk)
        entity_merge(kept, one(self.visible(), self.checked(EntityMergeSerializer)["entity_id"]))
        return Response(self.described(pk))


class FactFilters(ListFilters):
    orders: ClassVar = ("subject", "-subject", "id", "-id")
    entity_id = Related(
        Entity.objects.visible_to,
        lambda rows, entity: rows.filter(pk__in=facts_of(entity).order_by().values("pk")),
        help_text="Only facts that name it, by any of its names.",
    )
    subject = Text()
    predicate = Text()
    object = Text()
    origin = OneOf(Origin.values)


@_documented("facts", "a fact", listed="List the facts of a knowledge base's graph", deleted="Delete a fact")
class FactViewSet(GraphViewSet):
    queryset = GraphFact.objects.none()
    row_class = GraphFactSerializer
    fields_class = FactCreateSerializer
    filters = FactFilters
    change = staticmethod(fact_update)


class ConceptFilters(ListFilters):
    orders: ClassVar = ("name", "-name", "id", "-id")
    q = Text(method="named", help_text="Stands in the name or in another word for it.")
    parent_id = Whole(field_name="parent", help_text="The concept that is wider.")

    def named(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(pk__in=rows.filter(terms__key__contains=normalized_key(value)).order_by().values("pk"))


@_documented(
    "concepts",
    "a concept",
    listed="List the concepts of a knowledge base",
    deleted="Delete a concept; those that are narrower stay",
)
class ConceptViewSet(GraphViewSet):
    queryset = Concept.objects.none()
    related = ("terms",)
    row_class = ConceptSerializer
    fields_class = ConceptChangeSerializer
    filters = ConceptFilters
    change = staticmethod(concept_update)


@extend_schema_view(
    import_file=extend_schema(
        operation_id="knowledge_base_graph_import",
        summary="Import entities, facts or concepts from a CSV file",
        description="Entities are known by their names and aliases; what the knowledge base holds already is added to.",
        request={"multipart/form-data": GraphImportSerializer},
        responses=answers({200: ImportPlanSerializer}, *WRITE_PROBLEMS),
    ),
)
class GraphImportViewSet(ApiViewSet):
    parser_classes = [MultiPartParser]

    @action(detail=True, methods=["post"])
    def import_file(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        fields = self.checked(GraphImportSerializer)
        work = graph_import_plan if fields["dry_run"] else partial(graph_import, skip_errors=fields["skip_errors"])
        plan = work(kb, Table(fields["table"]), read_bytes(fields["file"].read(MAX_BYTES + 1)))
        return Response(ImportPlanSerializer(plan).data)
