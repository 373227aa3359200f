"""The bodies of error responses, as the schema describes them."""

from typing import Any

from rest_framework import serializers

from kb.api.serializers.search import DegradationSerializer


class ProblemSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="Stable, for programs.")
    detail = serializers.CharField(help_text="A sentence for people, which says what can be done.")


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


class UnavailableSerializer(ProblemSerializer):
    degraded = DegradationSerializer(many=True, required=False)
