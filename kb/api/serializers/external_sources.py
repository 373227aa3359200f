from typing import Any

from rest_framework import serializers

from kb.api.fields import StrictBooleanField, StrictCharField, StrictFloatField, StrictIntegerField, StrictSerializer
from kb.models import SearchProvider
from kb.services.external_sources import state_in_words
from kb.stores.external.kinds import KINDS

KIND_NAMES = ", ".join(KINDS)
SETTINGS = "; ".join(f"{name}: {', '.join(field.name for field in kind.fields)}" for name, kind in KINDS.items())


class ExternalSourceSerializer(serializers.ModelSerializer[SearchProvider]):
    kind = serializers.CharField(help_text=f"One of: {KIND_NAMES}.")
    settings = serializers.DictField(help_text=f"Of its kind. {SETTINGS}. None of them is a secret.")
    problem = serializers.SerializerMethodField(
        help_text="Why it cannot be asked as this server is set up, and what to do; blank: it can."
    )

    class Meta:
        model = SearchProvider
        fields = ("id", "knowledge_base_id", "name", "kind", "enabled", "weight", "timeout_ms", "settings", "problem")
        read_only_fields = fields

    def get_problem(self, source: SearchProvider) -> str:
        return state_in_words(source)


class ExternalSourceChangeSerializer(StrictSerializer):
    name = StrictCharField(max_length=80)
    # No enumeration: other models have kinds too, and two of one name would need names of their own.
    kind = StrictCharField(help_text=f"One of: {KIND_NAMES}.", max_length=40)
    enabled = StrictBooleanField(required=False)
    weight = StrictFloatField(
        min_value=0, max_value=1_000, required=False, allow_null=True, help_text="In the fusion. null: the profile’s."
    )
    timeout_ms = StrictIntegerField(
        min_value=50, max_value=30_000, required=False, help_text="After which a search goes on without it."
    )
    settings = serializers.DictField(help_text=f"Of its kind, those left out have their defaults. {SETTINGS}.")


class ExternalSourceTestSerializer(StrictSerializer):
    query = StrictCharField(max_length=500, help_text="It leaves the server.")


class ExternalHitSerializer(serializers.Serializer[Any]):
    title = serializers.CharField(allow_blank=True)
    url = serializers.CharField(allow_blank=True)
    text = serializers.CharField()
    id = serializers.CharField(allow_blank=True, help_text="The service’s own.")
    score = serializers.FloatField(allow_null=True, help_text="On the service’s own scale.")
    published = serializers.CharField(allow_blank=True)


class ExternalTestSerializer(serializers.Serializer[Any]):
    results = ExternalHitSerializer(many=True, source="hits")
    milliseconds = serializers.IntegerField()
    error = serializers.CharField(allow_null=True, help_text="Why it did not answer, and what to do about it.")
    code = serializers.CharField(allow_blank=True, help_text="As in `degraded` of a search; blank: it has answered.")
