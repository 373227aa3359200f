from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from kb.api.fields import MAX_ID, StrictBooleanField, StrictCharField, StrictIntegerField, StrictSerializer
from kb.models import EvalQuery, EvalSet, Judgment
from kb.models.evaluation import MAX_GRADE
from kb.services.eval_sets.queries import NAME_CHARACTERS, QUERY_CHARACTERS
from retrieval.eval.judged_sets import Layout

GRADES = "0 irrelevant, 1 partly relevant, 2 relevant, 3 highly relevant."
LAYOUTS = [(layout.value, layout.value) for layout in Layout]


class EvalSetSerializer(serializers.ModelSerializer[EvalSet]):
    query_count = serializers.IntegerField(read_only=True)
    judged_count = serializers.IntegerField(read_only=True, help_text="Queries that have judgments.")
    unanswerable_count = serializers.IntegerField(
        read_only=True, help_text="Queries to which the knowledge base has no answer."
    )
    judgment_count = serializers.IntegerField(read_only=True)
    last_run_id = serializers.IntegerField(read_only=True, allow_null=True, help_text="The last run that is done.")

    class Meta:
        model = EvalSet
        fields = (
            "id",
            "knowledge_base_id",
            "name",
            "query_count",
            "judged_count",
            "unanswerable_count",
            "judgment_count",
            "last_run_id",
        )
        read_only_fields = fields


class EvalSetCreateSerializer(StrictSerializer):
    knowledge_base_id = StrictIntegerField(min_value=1, max_value=MAX_ID)
    name = StrictCharField(max_length=NAME_CHARACTERS)


class EvalSetChangeSerializer(StrictSerializer):
    name = StrictCharField(max_length=NAME_CHARACTERS)


class EvalSetImportSerializer(StrictSerializer):
    knowledge_base_id = serializers.IntegerField(
        min_value=1, max_value=MAX_ID, help_text="Its documents are judged; they are known by their source."
    )
    file = serializers.FileField(allow_empty_file=True, help_text="A ZIP file in the layout of BEIR or TREC.")
    name = StrictCharField(
        max_length=NAME_CHARACTERS, required=False, allow_blank=True, help_text="Left out: the name in the files."
    )
    replace = serializers.BooleanField(
        default=False, help_text="Replace the queries and judgments of a set of this name; its runs stay."
    )


class ImportedEvalSetSerializer(serializers.Serializer[Any]):
    eval_set_id = serializers.IntegerField(source="eval_set.pk")
    name = serializers.CharField(source="eval_set.name")
    queries = serializers.IntegerField()
    judgments = serializers.IntegerField()
    missing = serializers.IntegerField(
        help_text="Judgments of documents that the knowledge base does not have: they count once it does."
    )


class EvalSetExportSerializer(serializers.Serializer[Any]):
    layout = serializers.ChoiceField(LAYOUTS, default=Layout.BEIR.value)
    documents = serializers.BooleanField(
        default=False, help_text="With the texts of all documents, for an installation that lacks them."
    )


class EvalQuerySerializer(serializers.ModelSerializer[EvalQuery]):
    judgment_count = serializers.IntegerField(read_only=True)
    relevant_count = serializers.IntegerField(read_only=True, help_text="Judgments of a grade of 1 or more.")

    class Meta:
        model = EvalQuery
        fields = ("id", "external_id", "text", "answerable", "judgment_count", "relevant_count")
        read_only_fields = fields


class EvalQueryCreateSerializer(StrictSerializer):
    text = StrictCharField(max_length=QUERY_CHARACTERS)
    answerable = StrictBooleanField(default=True, help_text="false: the knowledge base has no answer to it.")


class EvalQueryChangeSerializer(StrictSerializer):
    text = StrictCharField(max_length=QUERY_CHARACTERS)
    answerable = StrictBooleanField(help_text="false is refused while passages are judged relevant.")


class JudgmentSerializer(serializers.ModelSerializer[Judgment]):
    document_id = serializers.SerializerMethodField(help_text="null once the document is deleted; its source stays.")

    class Meta:
        model = Judgment
        fields = ("id", "query_id", "document_id", "source", "quote", "grade", "created_at")
        read_only_fields = fields

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_document_id(self, judgment: Judgment) -> int | None:
        return judgment.document_id


class JudgeSerializer(StrictSerializer):
    query = StrictCharField(max_length=QUERY_CHARACTERS, help_text="Its text; a query that the set lacks is added.")
    chunk_id = StrictIntegerField(min_value=1, max_value=MAX_ID)
    grade = StrictIntegerField(min_value=0, max_value=MAX_GRADE, help_text=GRADES)
