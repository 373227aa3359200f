"""The bodies of error responses, as the schema describes them."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from kb.base.messages import degradation_as_json
from retrieval.trace import Degradation, DegradationCode


class ProblemSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="Stable, for programs.")
    detail = serializers.CharField(help_text="What is wrong, as a sentence for people.")
    remedy = serializers.CharField(help_text="What the caller can do, as a sentence for people.")


class InvalidSerializer(ProblemSerializer):
    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Adds `fields`, a name that no class attribute of a serializer can have."""
        messages = serializers.ListField(child=serializers.CharField())
        by_path = serializers.DictField(
            child=messages, required=False, help_text="What is wrong with each field, by dotted path."
        )
        return {**super().get_fields(), "fields": by_path}


class ConflictSerializer(ProblemSerializer):
    document_id = serializers.IntegerField(required=False, help_text="The document that holds the same bytes.")


class StaleSerializer(ProblemSerializer):
    etag = serializers.CharField(required=False, help_text="Of what it is now.")


class FaultSerializer(ProblemSerializer):
    request_id = serializers.CharField(required=False, help_text="That the server’s log knows the request by.")


class DegradationSerializer(serializers.Serializer[Any]):
    stage = serializers.CharField()
    code = serializers.ChoiceField([(code.value, code.value) for code in DegradationCode])
    detail = serializers.CharField(help_text="What is degraded, and what to do about it, in the caller's language.")

    def to_representation(self, instance: Mapping[str, Any]) -> dict[str, str]:
        return degradation_as_json(Degradation.from_dict(instance))


class UnavailableSerializer(ProblemSerializer):
    degraded = DegradationSerializer(many=True, required=False)
