from typing import Any

from rest_framework import serializers

from kb.api.fields import MAX_ID, StrictBooleanField, StrictIntegerField, StrictSerializer

MAX_KNOWLEDGE_BASES = 1_000


class InvalidateSerializer(StrictSerializer):
    knowledge_base_ids = serializers.ListField(
        child=StrictIntegerField(min_value=1, max_value=MAX_ID),
        required=False,
        allow_empty=False,
        max_length=MAX_KNOWLEDGE_BASES,
        help_text="Left out: all that the caller may change.",
    )
    bm25 = StrictBooleanField(default=False, help_text="The keyword indexes too: the next search builds them anew.")


class InvalidatedSerializer(serializers.Serializer[Any]):
    invalidated = serializers.ListField(child=serializers.IntegerField(), help_text="Ids of the knowledge bases.")
