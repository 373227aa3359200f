from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from kb.api.etags import Etagged
from kb.api.fields import (
    JsonObjectField,
    StrictCharField,
    StrictSerializer,
    TagsField,
)
from kb.ingest.archives import ARCHIVE_EXTENSIONS
from kb.ingest.parse import SUPPORTED_EXTENSIONS
from kb.models import Document
from kb.models.connectors import URL_CHARACTERS
from kb.services.document_sentences import error_sentence, remark_sentences


class DocumentErrorSerializer(serializers.Serializer[Document]):
    code = serializers.CharField(source="error_code")
    message = serializers.SerializerMethodField()

    def get_message(self, document: Document) -> str:
        return error_sentence(document)


class DocumentSerializer(Etagged, serializers.ModelSerializer[Document]):
    metadata = JsonObjectField(read_only=True)
    chunk_count = serializers.IntegerField(read_only=True)
    stage = serializers.ChoiceField(
        Document.Stage.choices, allow_blank=True, read_only=True, help_text="While it is processing; else blank."
    )
    error = serializers.SerializerMethodField(help_text="Why it failed, as a sentence to act on.")
    remarks = serializers.SerializerMethodField(help_text="What was left out of it or guessed, as sentences to act on.")

    class Meta:
        model = Document
        fields = (
            "id",
            "knowledge_base_id",
            "title",
            "source",
            "source_type",
            "mime",
            "size",
            "sha256",
            "metadata",
            "tags",
            "status",
            "stage",
            "progress",
            "error",
            "remarks",
            "batch_id",
            "chunk_count",
            "created_at",
            "updated_at",
            "etag",
        )
        read_only_fields = fields

    @extend_schema_field(DocumentErrorSerializer(allow_null=True))
    def get_error(self, document: Document) -> dict[str, str] | None:
        return dict(DocumentErrorSerializer(document).data) if document.error else None

    def get_remarks(self, document: Document) -> list[str]:
        return remark_sentences(document)


class DocumentDetailsSerializer(StrictSerializer):
    """What a caller may say about a document, whichever way its content comes."""

    title = StrictCharField(
        max_length=500, required=False, help_text="Left out: taken from the content, or from the file's name."
    )
    source_type = serializers.ChoiceField(Document.SourceType.choices, required=False)
    metadata = JsonObjectField(
        required=False, help_text="Returned with every result. In a form: the text of a JSON object."
    )
    tags = TagsField(required=False)


class DocumentUploadSerializer(DocumentDetailsSerializer):
    file = serializers.FileField(
        allow_empty_file=True, help_text=f"One of {', '.join((*SUPPORTED_EXTENSIONS, *ARCHIVE_EXTENSIONS))}."
    )


class DocumentFileSerializer(StrictSerializer):
    file = serializers.FileField(allow_empty_file=True, help_text="Of any type that can be uploaded, but no archive.")


class DocumentReplaceSerializer(DocumentDetailsSerializer):
    """All that may be said about a document; what is left out is blank from now on."""

    title = StrictCharField(max_length=500, help_text="It is part of what is searched.")
    source_type = serializers.ChoiceField(Document.SourceType.choices, default=Document.SourceType.BOOK)
    metadata = JsonObjectField(default=dict, help_text="Returned with every result.")
    tags = TagsField(default=list)


class DocumentTextSerializer(DocumentDetailsSerializer):
    text = StrictCharField(trim_whitespace=False, required=False, help_text="This or `url`.")
    url = StrictCharField(
        max_length=URL_CHARACTERS, required=False, help_text="Of a public page, which is read at once."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """A text or an address, not both."""
        if ("text" in attrs) == ("url" in attrs):
            raise serializers.ValidationError({"text": [_("Give a text, or the address of a page in “url”.")]})
        return attrs


class DocumentChangeSerializer(DocumentDetailsSerializer):
    title = StrictCharField(
        max_length=500, help_text="It is part of what is searched: a new one is found once the chunks are indexed anew."
    )
