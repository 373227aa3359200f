from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from kb.api.fields import MAX_ID, StrictBooleanField, StrictCharField, StrictIntegerField, StrictSerializer, TagsField
from kb.ingest.connectors.listing import MOST_PATTERNS
from kb.models import WebPage, WebSource
from kb.models.connectors import URL_CHARACTERS
from kb.services.web_sources.preview import Preview, PreviewPage
from kb.services.web_sources.sources import error_in_words

KINDS = ", ".join(WebSource.Kind.values)
STATUSES = ", ".join(WebSource.Status.values)
STATES = ", ".join(WebPage.State.values)


class PatternsField(serializers.ListField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=StrictCharField(max_length=300), max_length=MOST_PATTERNS, **kwargs)


class WebErrorSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="Stable; blank where there is none.")
    message = serializers.CharField()


def told(row: WebSource | WebPage) -> dict[str, str] | None:
    """The error of a row in the caller's language."""
    if not row.error:
        return None
    return {"code": row.error_code, "message": error_in_words(row.error, row.error_code, row.error_params)}


class WebSourceSerializer(serializers.ModelSerializer[WebSource]):
    kind = serializers.CharField(max_length=40, help_text=f"One of: {KINDS}.")
    status = serializers.CharField(help_text=f"Of the last run, one of: {STATUSES}.")
    counts = serializers.DictField(
        child=serializers.IntegerField(), help_text="Addresses of the present or the last run by what became of them."
    )
    page_count = serializers.IntegerField()
    document_count = serializers.IntegerField()
    error = serializers.SerializerMethodField(help_text="Why the last run failed, and what to do about it.")

    class Meta:
        model = WebSource
        fields = (
            "id",
            "knowledge_base_id",
            "name",
            "kind",
            "url",
            "enabled",
            "live",
            "every_minutes",
            "max_pages",
            "max_depth",
            "include",
            "exclude",
            "tags",
            "status",
            "error",
            "counts",
            "page_count",
            "document_count",
            "started_at",
            "finished_at",
            "next_run_at",
            "created_at",
        )
        read_only_fields = fields

    @extend_schema_field(WebErrorSerializer(allow_null=True))
    def get_error(self, source: WebSource) -> dict[str, str] | None:
        return told(source)


class WebSourceChangeSerializer(StrictSerializer):
    name = StrictCharField(max_length=200)
    # No enumeration: other models have kinds too, and two of one name would need names of their own.
    kind = StrictCharField(max_length=40, help_text=f"One of: {KINDS}.")
    url = StrictCharField(max_length=URL_CHARACTERS)
    enabled = StrictBooleanField(required=False)
    live = StrictBooleanField(required=False, help_text="Queries read it too, as a channel of its own.")
    every_minutes = StrictIntegerField(
        min_value=5, max_value=60 * 24 * 90, required=False, allow_null=True, help_text="null: only when asked for."
    )
    max_pages = StrictIntegerField(min_value=1, max_value=20_000, required=False)
    max_depth = StrictIntegerField(min_value=0, max_value=10, required=False, help_text="Of a crawl: links deep.")
    include = PatternsField(required=False, help_text="Regular expressions, one of which an address must match.")
    exclude = PatternsField(required=False, help_text="Regular expressions, none of which an address may match.")
    tags = TagsField(required=False, help_text="Of its documents.")

    def validate_kind(self, kind: str) -> str:
        """One of the kinds there are."""
        if kind not in WebSource.Kind.values:
            self.fields["kind"].fail("invalid")
        return kind


class WebSourceCreateSerializer(WebSourceChangeSerializer):
    knowledge_base_id = StrictIntegerField(min_value=1, max_value=MAX_ID)


class WebSourceDeleteSerializer(serializers.Serializer[Any]):
    keep_documents = serializers.BooleanField(
        default=True, help_text="false: its documents are deleted with it, with their chunks."
    )


class WebPageSerializer(serializers.ModelSerializer[WebPage]):
    state = serializers.CharField(help_text=f"One of: {STATES}.")
    error = serializers.SerializerMethodField(help_text="Why it was not read, and what to do about it.")

    class Meta:
        model = WebPage
        fields = ("id", "url", "title", "document_id", "state", "error", "fetched_at", "gone_at")
        read_only_fields = fields

    @extend_schema_field(WebErrorSerializer(allow_null=True))
    def get_error(self, page: WebPage) -> dict[str, str] | None:
        return told(page)


class PreviewPageSerializer(serializers.Serializer[PreviewPage]):
    url = serializers.CharField()
    title = serializers.CharField()
    excerpt = serializers.CharField(help_text="The beginning of its text.")
    characters = serializers.IntegerField(allow_null=True, help_text="Of its text; null: it was not read for this.")
    published = serializers.DateTimeField(allow_null=True)
    error = serializers.SerializerMethodField(help_text="Why it would not be taken; null: it would be.")

    @extend_schema_field(WebErrorSerializer(allow_null=True))
    def get_error(self, page: PreviewPage) -> dict[str, str] | None:
        return error_told(page.error)


class PreviewSerializer(serializers.Serializer[Preview]):
    pages = PreviewPageSerializer(many=True)
    has_more = serializers.BooleanField()
    error = serializers.SerializerMethodField(help_text="Why the source as a whole cannot be read.")

    @extend_schema_field(WebErrorSerializer(allow_null=True))
    def get_error(self, preview: Preview) -> dict[str, str] | None:
        return error_told(preview.error)


def error_told(error: Any) -> dict[str, str] | None:
    if error is None:
        return None
    return {"code": error.code.value, "message": error_in_words(str(error), error.code, error.params)}
