from typing import Any, ClassVar, cast

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field, extend_schema_view
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.base.net.addresses import URL_CHARACTERS
from kb.sources.connectors.listing import MOST_PATTERNS
from kb.sources.connectors.web.preview import Preview, PreviewItem
from kb.sources.external.services import KINDS, external_source_test, external_source_update, state_text
from kb.sources.models import SearchProvider, Source, SourceItem
from kb.sources.services.preview import source_preview
from kb.sources.services.sources import (
    error_of,
    error_text,
    source_accept,
    source_cancel,
    source_check,
    source_create,
    source_delete,
    source_overview,
    source_request,
    source_update,
)
from kb.web.api.callers import user_of
from kb.web.api.fields import (
    MAX_ID,
    StrictBooleanField,
    StrictCharField,
    StrictFloatField,
    StrictIntegerField,
    StrictSerializer,
    TagsField,
    answers,
)
from kb.web.api.views import ApiViewSet, Flag, ListFilters, OneOf, Related, Text, asked, knowledge_bases_of, one

WEB_KINDS = ", ".join(Source.Kind.values)


class WebErrorSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="Stable; blank where there is none.")
    message = serializers.CharField()


@extend_schema_field(WebErrorSerializer(allow_null=True))
class WebErrorField(serializers.Field[Any, Any, Any, Any]):
    """The error of a row or of a preview in the caller's language."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(source="*", read_only=True, **kwargs)

    def to_representation(self, value: Any) -> dict[str, str] | None:
        if not value.error:
            return None
        if isinstance(value, Source | SourceItem):
            return {"code": value.error_code, "message": error_text(value.error, value.error_code, value.error_params)}
        return {"code": str(value.error.code), "message": error_of(value.error)}


class SourceSerializer(serializers.ModelSerializer[Source]):
    kind = serializers.CharField(max_length=40, help_text=f"One of: {WEB_KINDS}.")
    status = serializers.CharField(help_text=f"Of the last run, one of: {', '.join(Source.Status.values)}.")
    counts = serializers.DictField(
        child=serializers.IntegerField(), help_text="Addresses of the present or the last run by what became of them."
    )
    item_count = serializers.IntegerField()
    document_count = serializers.IntegerField()
    error = WebErrorField(help_text="Why the last run failed, and what to do about it.")

    class Meta:
        model = Source
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
            "item_count",
            "document_count",
            "started_at",
            "finished_at",
            "next_run_at",
            "created_at",
        )
        read_only_fields = fields


class SourceChangeSerializer(StrictSerializer):
    name = StrictCharField(max_length=200)
    # No enumeration: other models have kinds too, and two of one name would need names of their own.
    kind = StrictCharField(max_length=40, help_text=f"One of: {WEB_KINDS}.")
    url = StrictCharField(max_length=URL_CHARACTERS)
    enabled = StrictBooleanField(required=False)
    live = StrictBooleanField(required=False, help_text="Queries read it too, as a channel of its own.")
    every_minutes = StrictIntegerField(
        min_value=5, max_value=60 * 24 * 90, required=False, allow_null=True, help_text="null: only when asked for."
    )
    max_pages = StrictIntegerField(min_value=1, max_value=20_000, required=False)
    max_depth = StrictIntegerField(min_value=0, max_value=10, required=False, help_text="Of a crawl: links deep.")
    include = serializers.ListField(
        child=StrictCharField(max_length=300),
        max_length=MOST_PATTERNS,
        required=False,
        help_text="Regular expressions, one of which an address must match.",
    )
    exclude = serializers.ListField(
        child=StrictCharField(max_length=300),
        max_length=MOST_PATTERNS,
        required=False,
        help_text="Regular expressions, none of which an address may match.",
    )
    tags = TagsField(required=False, help_text="Of its documents.")

    def validate_kind(self, kind: str) -> str:
        if kind not in Source.Kind.values:
            self.fields["kind"].fail("invalid")
        return kind


class SourceCreateSerializer(SourceChangeSerializer):
    knowledge_base_id = StrictIntegerField(min_value=1, max_value=MAX_ID)


class SourceDeleteSerializer(serializers.Serializer[Any]):
    keep_documents = serializers.BooleanField(
        default=True, help_text="false: its documents are deleted with it, with their chunks."
    )


class SourceItemSerializer(serializers.ModelSerializer[SourceItem]):
    state = serializers.CharField(help_text=f"One of: {', '.join(SourceItem.State.values)}.")
    error = WebErrorField(help_text="Why it was not read, and what to do about it.")

    class Meta:
        model = SourceItem
        fields = ("id", "url", "title", "document_id", "state", "error", "fetched_at", "gone_at")
        read_only_fields = fields


class PreviewItemSerializer(serializers.Serializer[PreviewItem]):
    url = serializers.CharField()
    title = serializers.CharField()
    excerpt = serializers.CharField(help_text="The beginning of its text.")
    characters = serializers.IntegerField(allow_null=True, help_text="Of its text; null: it was not read for this.")
    published = serializers.DateTimeField(allow_null=True)
    error = WebErrorField(help_text="Why it would not be taken; null: it would be.")


class PreviewSerializer(serializers.Serializer[Preview]):
    items = PreviewItemSerializer(many=True)
    has_more = serializers.BooleanField()
    error = WebErrorField(help_text="Why the source as a whole cannot be read.")


class SourceFilters(ListFilters):
    orders: ClassVar = ("name", "-name", "created_at", "-created_at", "id", "-id")
    knowledge_base_id = Related(knowledge_bases_of, field_name="knowledge_base", help_text="Only its sources.")
    q = Text(method="with_words", help_text="Stands in the name or the address.")
    kind = OneOf(Source.Kind.values)
    status = OneOf(Source.Status.values, help_text="Of the last run.")
    enabled = Flag()

    def with_words(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(Q(name__icontains=value) | Q(url__icontains=value))


class SourceItemFilters(ListFilters):
    orders: ClassVar = ("url", "-url", "id", "-id")
    q = Text(field_name="url", lookup_expr="icontains", help_text="Stands in the address.")
    state = OneOf(SourceItem.State.values, help_text="Only pages of this state.")


@extend_schema_view(
    list=extend_schema(
        summary="List the web sources of the caller's knowledge bases",
        parameters=SourceFilters.parameters(),
        responses=answers({200: SourceSerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Keep pages or entries of the web as documents",
        description="A worker reads it at once, and then as often as `every_minutes` says.",
        request=SourceCreateSerializer,
        responses=answers({201: SourceSerializer}, 400, 403, 404, 413, 415),
    ),
    retrieve=extend_schema(
        summary="Read a web source and how far its run is", responses=answers({200: SourceSerializer}, 404)
    ),
    partial_update=extend_schema(
        summary="Change a web source",
        description="Where that changes what is read, a worker reads it at once.",
        request=SourceChangeSerializer,
        responses=answers({200: SourceSerializer}, 400, 403, 404, 413, 415),
    ),
    destroy=extend_schema(
        summary="Delete a web source; its documents are kept unless asked otherwise",
        parameters=[SourceDeleteSerializer],
        responses=answers({204: None}, 400, 403, 404),
    ),
    run=extend_schema(
        operation_id="source_run",
        summary="Read a web source now",
        description="One that is being read already is left alone.",
        request=None,
        responses=answers({202: SourceSerializer}, 403, 404),
    ),
    cancel=extend_schema(
        operation_id="source_cancel",
        summary="Stop reading a web source",
        description="The run ends with the page at hand; what it has read stays.",
        request=None,
        responses=answers({200: SourceSerializer}, 403, 404),
    ),
    accept=extend_schema(
        operation_id="source_accept",
        summary="Accept what a run of a web source has held back",
        description="A worker reads it at once. Pages that are gone lose their documents where they are gone still, and pages "
        "may turn into the texts that they were found to share.",
        request=None,
        responses=answers({202: SourceSerializer}, 403, 404),
    ),
    pages=extend_schema(
        operation_id="source_pages",
        summary="List the pages of a web source with their states",
        parameters=SourceItemFilters.parameters(),
        responses=answers({200: SourceItemSerializer(many=True)}, 400, 404),
    ),
    test=extend_schema(
        operation_id="source_test",
        summary="See what a web source would take, without saving anything",
        description="Reads its first pages, for twenty seconds at most.",
        request=SourceCreateSerializer,
        responses=answers({200: PreviewSerializer}, 400, 403, 404, 413, 415),
    ),
)
class SourceViewSet(ApiViewSet):
    def list(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(source_overview(self.principal), SourceSerializer, SourceFilters)

    def create(self, request: Request) -> Response:
        fields = self.checked(SourceCreateSerializer)
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), fields.pop("knowledge_base_id"))
        source = source_create(knowledge_base=kb, user=user_of(request), **fields)
        return Response(self._described(source.pk), status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(self._described(pk))

    def partial_update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        source_update(self._editable(pk), **self.checked(SourceChangeSerializer, partial=True))
        return Response(self._described(pk))

    def destroy(self, request: Request, pk: int) -> Response:
        source = self._editable(pk)
        source_delete(source, keep_documents=asked(SourceDeleteSerializer, request)["keep_documents"])
        return Response(status=status.HTTP_204_NO_CONTENT)

    @action(detail=True, methods=["post"])
    def run(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        source_request(self._editable(pk))
        return Response(self._described(pk), status=status.HTTP_202_ACCEPTED)

    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        source_cancel(self._editable(pk))
        return Response(self._described(pk))

    @action(detail=True, methods=["post"])
    def accept(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        source_accept(self._editable(pk))
        return Response(self._described(pk), status=status.HTTP_202_ACCEPTED)

    @action(detail=True)
    def pages(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        source = one(Source.objects.visible_to(self.principal), pk)
        rows = SourceItem.objects.visible_to(self.principal).filter(source=source)
        return self.page(rows, SourceItemSerializer, SourceItemFilters)

    @action(detail=False, methods=["post"])
    def test(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        fields = self.checked(SourceCreateSerializer)
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), fields.pop("knowledge_base_id"))
        source = Source(knowledge_base=kb, **fields)
        source_check(source)
        return Response(PreviewSerializer(source_preview(source)).data)

    def _editable(self, pk: int) -> Source:
        return cast(Source, self.editable(Source.objects.visible_to(self.principal), pk))

    def _described(self, pk: int) -> dict[str, Any]:
        return SourceSerializer(one(source_overview(self.principal), pk)).data


# -- External sources -----------------------------------------------------------------------------------------------------
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
        return state_text(source)


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


class ExternalSourceFilters(ListFilters):
    orders: ClassVar = ("name", "-name", "id", "-id")
    kind = OneOf(KINDS)
    enabled = Flag()


@extend_schema_view(
    list=extend_schema(
        operation_id="external_sources_list",
        summary="List the search services that a knowledge base’s queries are sent to",
        parameters=ExternalSourceFilters.parameters(),
        responses=answers({200: ExternalSourceSerializer(many=True)}, 400, 403, 404),
    ),
    create=extend_schema(
        operation_id="external_sources_create",
        summary="Send a knowledge base’s queries to a search service, too",
        description="Its results join the search as a channel. The server’s EXTERNAL_PROVIDERS says which kinds may be.",
        request=ExternalSourceChangeSerializer,
        responses=answers({201: ExternalSourceSerializer}, 400, 403, 404, 413, 415),
    ),
    retrieve=extend_schema(
        operation_id="external_sources_retrieve",
        summary="Read an external source",
        responses=answers({200: ExternalSourceSerializer}, 403, 404),
    ),
    partial_update=extend_schema(
        operation_id="external_sources_partial_update",
        summary="Change an external source",
        request=ExternalSourceChangeSerializer,
        responses=answers({200: ExternalSourceSerializer}, 400, 403, 404, 413, 415),
    ),
    destroy=extend_schema(
        operation_id="external_sources_destroy",
        summary="Delete an external source",
        responses=answers({204: None}, 403, 404),
    ),
)
class ExternalSourceViewSet(ApiViewSet):
    """For those who may change the knowledge base: where queries go is no matter of its readers."""

    def list(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        rows = SearchProvider.objects.visible_to(self.principal).filter(knowledge_base=self._kb(kb_id))
        return self.page(rows, ExternalSourceSerializer, ExternalSourceFilters)

    def create(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002
        source = SearchProvider(knowledge_base=self._kb(kb_id))
        external_source_update(source=source, **self.checked(ExternalSourceChangeSerializer))
        return Response(ExternalSourceSerializer(source).data, status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, kb_id: int, source_id: int) -> Response:  # noqa: ARG002
        return Response(ExternalSourceSerializer(self._source(kb_id, source_id)).data)

    def partial_update(self, request: Request, kb_id: int, source_id: int) -> Response:  # noqa: ARG002
        source = self._source(kb_id, source_id)
        external_source_update(source=source, **self.checked(ExternalSourceChangeSerializer, partial=True))
        return Response(ExternalSourceSerializer(source).data)

    def destroy(self, request: Request, kb_id: int, source_id: int) -> Response:  # noqa: ARG002
        self._source(kb_id, source_id).delete()
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(
        operation_id="external_sources_test",
        summary="Send a query to an external source",
        description="Nothing is kept. It takes ten seconds at most.",
        request=ExternalSourceTestSerializer,
        responses=answers({200: ExternalTestSerializer}, 400, 403, 404, 413, 415),
    )
    def test(self, request: Request, kb_id: int, source_id: int) -> Response:  # noqa: ARG002
        source = self._source(kb_id, source_id)
        tested = external_source_test(source, self.checked(ExternalSourceTestSerializer)["query"])
        return Response(ExternalTestSerializer(tested).data)

    def _kb(self, kb_id: int) -> KnowledgeBase:
        return cast(KnowledgeBase, self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id))

    def _source(self, kb_id: int, source_id: int) -> SearchProvider:
        visible = SearchProvider.objects.visible_to(self.principal)
        return cast(SearchProvider, one(visible.filter(knowledge_base=self._kb(kb_id)), source_id))
