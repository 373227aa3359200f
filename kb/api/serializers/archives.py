from typing import Any

from rest_framework import serializers

from kb.api.fields import StrictCharField, StrictSerializer


class ArchiveExportSerializer(serializers.Serializer[Any]):
    vectors = serializers.BooleanField(
        default=False, help_text="With its vectors, so that the importing installation need not embed."
    )


class ArchiveImportSerializer(StrictSerializer):
    file = serializers.FileField(allow_empty_file=True, help_text="An archive that an export has written.")
    name = StrictCharField(max_length=120, required=False, allow_blank=True, help_text="Left out: the name in it.")


class ImportedArchiveSerializer(serializers.Serializer[Any]):
    knowledge_base_id = serializers.IntegerField(source="knowledge_base.pk")
    name = serializers.CharField(source="knowledge_base.name")
    rows = serializers.DictField(child=serializers.IntegerField(), help_text="How many rows of each kind were made.")
    notes = serializers.ListField(
        child=serializers.CharField(), help_text="What differs from where the archive was made, or needs a look."
    )
