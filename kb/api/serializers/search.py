from typing import Any

from rest_framework import serializers

from kb.api.fields import (
    KnowledgeBaseIdsField,
    StrictBooleanField,
    StrictCharField,
    StrictFloatField,
    StrictIntegerField,
    StrictSerializer,
)
from kb.models import SearchLog
from kb.services.search import MAX_LATENCY_BUDGET_MS, SearchRequest
from retrieval.gate import ScoreScale
from retrieval.trace import DegradationCode


class SearchRequestSerializer(StrictSerializer):
    query = StrictCharField(max_length=2_000)
    knowledge_base_ids = KnowledgeBaseIdsField(
        min_length=1, max_length=20, help_text="Their order breaks ties between equal scores."
    )
    top_k = StrictIntegerField(
        min_value=1, max_value=200, required=False, allow_null=True, help_text="null: the profile's."
    )
    score_threshold = StrictFloatField(
        min_value=0,
        max_value=1,
        required=False,
        allow_null=True,
        help_text="The least score. null: the default of the score's scale; 0: no gate.",
    )
    profile = StrictCharField(
        max_length=80,
        required=False,
        allow_blank=True,
        help_text="A profile for all of them. Left out: each knowledge base's own.",
    )
    overrides = serializers.DictField(
        required=False, help_text="Settings of this request, over the profile's, by the names of the configuration."
    )
    latency_budget_ms = StrictIntegerField(
        min_value=1,
        max_value=MAX_LATENCY_BUDGET_MS,
        required=False,
        allow_null=True,
        help_text="How long the search may wait for a keyword index that is being built, before it answers without it and "
        "says so in `degraded`. null: the server's LATENCY_BUDGET_MS.",
    )
    explain = StrictBooleanField(required=False, help_text="Return the whole trace, with every candidate.")

    def to_request(self) -> SearchRequest:
        """The validated request; the named fields win over the same settings in `overrides`."""
        data: dict[str, Any] = self.validated_data
        named = {name: data[name] for name in ("top_k", "score_threshold") if data.get(name) is not None}
        return SearchRequest(
            query=data["query"],
            knowledge_base_ids=data["knowledge_base_ids"],
            profile=data.get("profile", ""),
            overrides={**data.get("overrides", {}), **named},
            explain=data.get("explain", False),
            latency_budget_ms=data.get("latency_budget_ms"),
        )


class DegradationSerializer(serializers.Serializer[Any]):
    stage = serializers.CharField()
    code = serializers.ChoiceField([(code.value, code.value) for code in DegradationCode])
    detail = serializers.CharField(help_text="What is degraded, and what to do about it.")


class UsedProfileSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    version = serializers.IntegerField()


class LoggedProfileSerializer(serializers.Serializer[SearchLog]):
    name = serializers.CharField(source="profile")
    version = serializers.IntegerField(source="profile_version")


class SearchResultSerializer(serializers.Serializer[Any]):
    chunk_id = serializers.IntegerField()
    document_id = serializers.IntegerField()
    knowledge_base_id = serializers.IntegerField()
    title = serializers.CharField(allow_blank=True)
    source = serializers.CharField(allow_blank=True)  # type: ignore[assignment]
    page = serializers.IntegerField(allow_null=True)
    text = serializers.CharField()
    score = serializers.FloatField(help_text="On the scale that `score_scale` names.")
    score_scale = serializers.ChoiceField([(scale.value, scale.value) for scale in ScoreScale])
    ranks = serializers.DictField(
        child=serializers.IntegerField(), help_text="From 1, by stage: vector, bm25, fused, rerank."
    )
    scores = serializers.DictField(child=serializers.FloatField(), help_text="By stage, each on a scale of its own.")
    metadata = serializers.DictField()


class SearchResponseSerializer(serializers.Serializer[Any]):
    query = serializers.CharField()
    results = SearchResultSerializer(many=True)
    facts = serializers.ListField(child=serializers.DictField())
    degraded = DegradationSerializer(many=True)
    profile = UsedProfileSerializer()
    timings_ms = serializers.DictField(child=serializers.FloatField(), help_text="Milliseconds by stage, and in total.")
    trace_id = serializers.UUIDField(help_text="Of the search's entry in the search log: see traces/{trace_id}/.")
    trace = serializers.DictField(required=False, help_text="With `explain` only.")


class TraceSerializer(serializers.ModelSerializer[SearchLog]):
    trace_id = serializers.UUIDField(source="id", read_only=True)
    profile = LoggedProfileSerializer(source="*", read_only=True)
    configuration = serializers.DictField(
        read_only=True, help_text="As it was resolved, enough to run the search again."
    )
    trace = serializers.DictField(read_only=True)
    degraded = DegradationSerializer(many=True, read_only=True)

    class Meta:
        model = SearchLog
        fields = (
            "trace_id",
            "query",
            "knowledge_base_ids",
            "profile",
            "configuration",
            "trace",
            "degraded",
            "result_count",
            "duration_ms",
            "created_at",
        )
        read_only_fields = fields
