from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers

from kb.api.fields import StrictCharField, StrictIntegerField
from kb.api.serializers.knowledge_bases import ChunkingSerializer
from kb.services.chunk_preview import MOST_CHARACTERS


class ChunkPreviewRequestSerializer(ChunkingSerializer):
    document_id = StrictIntegerField(min_value=1, required=False, help_text="A document of the knowledge base.")
    text = StrictCharField(
        max_length=MOST_CHARACTERS,
        required=False,
        allow_blank=True,
        trim_whitespace=False,
        help_text="Or a text that is in no document.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("document_id" in attrs) == ("text" in attrs):
            raise serializers.ValidationError({"document_id": _("Give either document_id or text.")})
        return attrs


class ShownChunkSerializer(serializers.Serializer[Any]):
    number = serializers.IntegerField(help_text="From 1.")
    text = serializers.CharField()
    overlap = serializers.IntegerField(
        help_text="How many characters at its beginning repeat the end of the one before."
    )
    page = serializers.IntegerField(allow_null=True)
    heading_path = serializers.ListField(child=serializers.CharField())
    tokens = serializers.IntegerField()
    questions = serializers.ListField(child=serializers.CharField())
    parent = serializers.IntegerField(  # type: ignore[assignment]  # not the serializer that holds this one
        allow_null=True, help_text="Number from 1 of the longer passage that is returned in its place."
    )
    survives = serializers.BooleanField(help_text="A chunk of this text is there already, and would stay.")


class SurvivalSerializer(serializers.Serializer[Any]):
    kept = serializers.IntegerField(help_text="Chunks that stay, with their indexes.")
    new = serializers.IntegerField()
    gone = serializers.IntegerField()
    edits = serializers.IntegerField(help_text="Chunks whose text was changed by hand.")
    edits_kept = serializers.IntegerField()
    disabled = serializers.IntegerField()
    disabled_kept = serializers.IntegerField()


class ChunkPreviewSerializer(serializers.Serializer[Any]):
    chunks = ShownChunkSerializer(many=True, help_text="The first ones.")
    total = serializers.IntegerField()
    parents = serializers.IntegerField()
    most_tokens = serializers.IntegerField()
    is_partial = serializers.BooleanField(help_text="Only the beginning of the document was cut.")
    present = serializers.IntegerField(allow_null=True, help_text="How many chunks the document has now.")
    survival = SurvivalSerializer(allow_null=True, help_text="What becomes of the chunks that the document has now.")
