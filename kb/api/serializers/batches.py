from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from kb.api.fields import StrictCharField, StrictSerializer
from kb.api.serializers.documents import DocumentErrorSerializer
from kb.models import Document, IngestBatch
from kb.services.batches.batches import BatchProgress
from kb.services.batches.uploads import note_message

FILES_A_REQUEST = 100
FAILED_SHOWN = 100
NOTES_SHOWN = 100
FINAL = (Document.Status.FAILED.value, Document.Status.CANCELLED.value)


class BatchFilesSerializer(StrictSerializer):
    """Files of an upload, as a form."""

    files = serializers.ListField(
        child=serializers.FileField(allow_empty_file=True),
        allow_empty=False,
        max_length=FILES_A_REQUEST,
        help_text="Any number up to 100. Of a ZIP archive every file becomes a document: the way to send thousands.",
    )
    paths = serializers.ListField(
        child=StrictCharField(max_length=1_000),
        required=False,
        max_length=FILES_A_REQUEST,
        help_text="The names of the files with the folders that they lay in, in the same order. Left out: the files' names.",
    )
    source_type = serializers.ChoiceField(Document.SourceType.choices, required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """As many paths as files, or none."""
        if attrs.get("paths") and len(attrs["paths"]) != len(attrs["files"]):
            raise serializers.ValidationError({"paths": [_("Give a path for each file, or none at all.")]})
        return attrs


class BatchCreateSerializer(BatchFilesSerializer):
    table = serializers.FileField(
        required=False,
        allow_empty_file=True,
        help_text="CSV with a column filename, and any of title, tags (between semicolons) and metadata (a JSON object); "
        "every further column is an entry of the metadata.",
    )
    name = StrictCharField(max_length=200, required=False, help_text="Left out: the name of the first file.")


class BatchRetrySerializer(StrictSerializer):
    status = serializers.ChoiceField(
        [(each, each) for each in FINAL], default=Document.Status.FAILED.value, help_text="Which are to be tried again."
    )


class BatchProgressSerializer(serializers.Serializer[BatchProgress]):
    """How far an upload is."""

    counts = serializers.DictField(child=serializers.IntegerField(), help_text="Documents by status.")
    stages = serializers.DictField(child=serializers.IntegerField(), help_text="Those in processing by stage.")
    total = serializers.IntegerField()
    done = serializers.IntegerField(help_text="Ready, failed or cancelled.")
    percent = serializers.IntegerField()
    rate = serializers.FloatField(help_text="Documents a second, of late.")
    seconds_left = serializers.IntegerField(allow_null=True, help_text="Null where that cannot be told.")


class BatchSerializer(serializers.ModelSerializer[IngestBatch]):
    """An upload; the view gives each a `progress`."""

    progress = BatchProgressSerializer(read_only=True)

    class Meta:
        model = IngestBatch
        fields: tuple[str, ...] = ("id", "knowledge_base_id", "name", "paused", "progress", "created_at")
        read_only_fields: tuple[str, ...] = fields


class FailedDocumentSerializer(serializers.ModelSerializer[Document]):
    error = serializers.SerializerMethodField(help_text="Why it failed, as a sentence to act on.")

    class Meta:
        model = Document
        fields = ("id", "source", "title", "error")
        read_only_fields = fields

    @extend_schema_field(DocumentErrorSerializer)
    def get_error(self, document: Document) -> dict[str, str]:
        return dict(DocumentErrorSerializer(document).data)


class BatchNoteSerializer(serializers.Serializer[Any]):
    """A file that became no document."""

    name = serializers.CharField()
    code = serializers.CharField()
    message = serializers.CharField(help_text="A sentence to act on.")
    document_id = serializers.IntegerField(allow_null=True, help_text="Of the document that holds the same bytes.")


class BatchDetailSerializer(BatchSerializer):
    failed = FailedDocumentSerializer(many=True, read_only=True, help_text="The first 100 of them.")
    notes = serializers.SerializerMethodField(help_text="Files of archives that became no document: the first 100.")

    class Meta(BatchSerializer.Meta):
        fields = (*BatchSerializer.Meta.fields, "failed", "notes", "note_count")
        read_only_fields = fields

    @extend_schema_field(BatchNoteSerializer(many=True))
    def get_notes(self, batch: IngestBatch) -> list[dict[str, Any]]:
        return [
            {
                "name": note["name"],
                "code": note["code"],
                "message": note_message(note),
                "document_id": note.get("document"),
            }
            for note in batch.notes[:NOTES_SHOWN]
        ]


class BatchTakenSerializer(BatchDetailSerializer):
    refused = BatchNoteSerializer(many=True, read_only=True, help_text="Files of this request that were not taken in.")

    class Meta(BatchDetailSerializer.Meta):
        fields = (*BatchDetailSerializer.Meta.fields, "refused")
        read_only_fields = fields
