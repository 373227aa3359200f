from typing import Any

from rest_framework import serializers

from kb.api.fields import MAX_ID, StrictCharField, StrictIntegerField, StrictSerializer
from kb.models import Concept, ConceptTerm, Entity, GraphFact, Origin
from kb.services.graph.editing import MOST_TERMS
from kb.services.graph.entities import KIND_CHARACTERS, MAX_ALIASES, NAME_CHARACTERS
from kb.services.graph.tables import CELL_CHARACTERS, COLUMNS, Table

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
