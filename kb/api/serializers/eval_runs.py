from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from kb.api.fields import MAX_ID, StrictCharField, StrictIntegerField
from kb.api.serializers.profiled import ProfiledSerializer
from kb.api.serializers.search import UsedProfileSerializer
from kb.messages import shown
from kb.models import EvalRun, EvalRunQuery
from kb.services.evaluation.observe import LOST_AT, STAGES
from kb.services.evaluation.report import report_as_json
from kb.services.profiles import MAX_REFERENCE_CHARACTERS

MOST_QUERIES = 10_000_000
BY_STAGE = f"By stage: {', '.join(STAGES)}."
# No enumeration: documents have statuses too, and two of one name would need names of their own.
STATUSES = ", ".join(EvalRun.Status.values)


class EvalRunCreateSerializer(ProfiledSerializer):
    eval_set_id = StrictIntegerField(min_value=1, max_value=MAX_ID)
    profile = StrictCharField(
        max_length=MAX_REFERENCE_CHARACTERS,
        required=False,
        allow_blank=True,
        help_text="A shared profile, or one of the knowledge base. Left out: the one that it searches by.",
    )
    overrides = serializers.DictField(
        required=False, help_text="Unsaved settings over the profile's, by the names of the configuration."
    )
    limit = StrictIntegerField(
        min_value=1,
        max_value=MOST_QUERIES,
        required=False,
        allow_null=True,
        help_text="Only the first so many queries, with an answer and without. null: all.",
    )


class EvalSetOfRunSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField()
    knowledge_base_id = serializers.IntegerField()


class StageFiguresSerializer(serializers.DictField):
    child = serializers.FloatField()


class EvalRunSerializer(serializers.Serializer[EvalRun]):
    id = serializers.IntegerField()
    eval_set = EvalSetOfRunSerializer()
    profile = UsedProfileSerializer()
    overrides = serializers.DictField()
    limit = serializers.IntegerField(source="query_limit", allow_null=True)
    status = serializers.CharField(help_text=f"One of: {STATUSES}.")
    cancel_requested = serializers.BooleanField()
    done = serializers.IntegerField(help_text="Queries so far.")
    total = serializers.IntegerField()
    error = serializers.SerializerMethodField(help_text="Why it failed, and what to do about it; else empty.")
    stages = serializers.DictField(
        child=StageFiguresSerializer(),
        allow_null=True,
        help_text=f"Figures from 0 to 1, by metric. {BY_STAGE} null until it is done.",
    )
    created_by = serializers.CharField(source="created_by.username", default=None, allow_null=True)
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)

    def get_error(self, run: EvalRun) -> str:
        return shown(run.error)


class EvalRunDetailSerializer(EvalRunSerializer):
    configuration = serializers.DictField(help_text="As it was resolved.")
    model_ids = serializers.DictField(child=serializers.CharField(), help_text="By role.")
    kb_version = serializers.IntegerField(allow_null=True, help_text="Of the knowledge base when the run began.")
    content_version = serializers.IntegerField(allow_null=True)
    report = serializers.SerializerMethodField(
        help_text="What `manage.py evaluate --json` prints; empty until it is done."
    )

    @extend_schema_field(OpenApiTypes.OBJECT)
    def get_report(self, run: EvalRun) -> dict[str, Any]:
        return report_as_json(run.report)


class EvalRunQuerySerializer(serializers.ModelSerializer[EvalRunQuery]):
    figures = serializers.DictField(
        child=StageFiguresSerializer(), help_text=f"From 0 to 1, by metric. {BY_STAGE} Empty without an answer."
    )
    best_score = serializers.FloatField(
        allow_null=True, help_text="Of the first result before the gate; null: nothing was found."
    )
    score_scale = serializers.CharField(allow_blank=True)
    first_relevant = serializers.DictField(
        child=serializers.IntegerField(), help_text=f"The rank of the first that is relevant. {BY_STAGE}"
    )
    lost_at = serializers.CharField(
        allow_blank=True,
        help_text=f"The stage that lost the last of what is relevant: {', '.join(LOST_AT)}; blank: some of it is a result.",
    )
    judged = serializers.ListField(
        child=serializers.ListField(child=serializers.FloatField()),
        help_text="Score and grade of the judged results before the gate.",
    )

    class Meta:
        model = EvalRunQuery
        fields = (
            "external_id",
            "text",
            "answerable",
            "figures",
            "best_score",
            "score_scale",
            "first_relevant",
            "lost_at",
            "judged",
            "latency_ms",
        )
        read_only_fields = fields
