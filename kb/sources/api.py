from collections.abc import Callable
from typing import Any, ClassVar, cast

from django.db.models import Q, QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field, extend_schema_view
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.base.net.addresses import URL_CHARACTERS
from kb.base.waits import waiting_outside
from kb.sources.connectors.listing import MOST_PATTERNS
from kb.sources.connectors.registry import KINDS as SOURCES, secret_names
from kb.sources.connectors.web.preview import Preview, PreviewItem
from kb.sources.external.services import KINDS, external_source_test, external_source_update, state_text
from kb.sources.fields import MOST_CHARACTERS_OF_LONG
from kb.sources.models import SearchProvider, Source, SourceItem, SourceRun
from kb.sources.services.preview import source_preview
from kb.sources.services.sources import (
    error_of,
    error_text,
    gone_delete,
    secrets_set,
    source_accept,
    source_cancel,
    source_check,
    source_create,
    source_delete,
    source_overview,
    source_pause,
    source_request,
    source_resume,
    source_update,
)
from kb.web.api.callers import user_of
from kb.web.api.fields import (
    MAX_ID,
    ListField,
    StrictBooleanField,
    StrictCharField,
    StrictFloatField,
    StrictIntegerField,
    StrictSerializer,
    TagsField,
    answers,
)
from kb.web.api.views import ApiViewSet, Flag, ListFilters, OneOf, Related, Text, asked, knowledge_bases_of, one

SOURCE_KINDS = ", ".join(SOURCES)
SOURCE_SETTINGS = "; ".join(
    f"{name}: {', '.join(field.name for field in kind.fields)}" for name, kind in SOURCES.items() if kind.fields
)
SECRETS = "; ".join(
    f"{name}: {', '.join(sorted(secret_names(kind)))}" for name, kind in SOURCES.items() if secret_names(kind)
)


class SourceErrorSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="Stable; blank where there is none.")
    message = serializers.CharField()


@extend_schema_field(SourceErrorSerializer(allow_null=True))
class SourceErrorField(serializers.Field[Any, Any, Any, Any]):
    """The error of a row or of a preview in the caller's language."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(source="*", read_only=True, **kwargs)

    def to_representation(self, value: Any) -> dict[str, str] | None:
        if not value.error:
            return None
        if isinstance(value, Source | SourceItem | SourceRun):
            return {"code": value.error_code, "message": error_text(value.error, value.error_code, value.error_params)}
        return {"code": str(value.error.code), "message": error_of(value.error)}


class RunProgressSerializer(serializers.Serializer[Any]):
    stage = serializers.CharField(help_text="listing, reading or deleting.")
    done = serializers.IntegerField()
    total = serializers.IntegerField(allow_null=True, help_text="null: not known.")
    item = serializers.CharField(allow_blank=True, help_text="What is done now.")


@extend_schema_field(RunProgressSerializer(allow_null=True))
class ProgressField(serializers.Field[Any, Any, Any, Any]):
    """How far the present run is."""

    def to_representation(self, value: Any) -> Any:
        return value or None


class SourceSerializer(serializers.ModelSerializer[Source]):
    kind = serializers.CharField(max_length=40, help_text=f"One of: {SOURCE_KINDS}.")
    status = serializers.CharField(help_text=f"Of the last run, one of: {', '.join(Source.Status.values)}.")
    counts = serializers.DictField(
        child=serializers.IntegerField(), help_text="Items of the present or the last run by what became of them."
    )
    settings = serializers.DictField(help_text=f"Of its kind. {SOURCE_SETTINGS}.")
    secrets_set = serializers.SerializerMethodField(
        help_text="The names of the secrets that it has; none is ever shown."
    )
    progress = ProgressField(read_only=True, help_text="What the present run does; null: there is none.")
    item_count = serializers.IntegerField()
    document_count = serializers.IntegerField()
    held_back = serializers.IntegerField(help_text="Changes and deletions that wait for the next run, or for `accept`.")
    error = SourceErrorField(help_text="Why the last run failed, and what to do about it.")

    class Meta:
        ref_name = "SourceOfDocuments"  # an answer has a Source, too
        model = Source
        fields = (
            "id",
            "knowledge_base_id",
            "name",
            "kind",
            "url",
            "settings",
            "secrets_set",
            "enabled",
            "paused",
            "live",
            "every_minutes",
            "hides_gone",
            "max_share",
            "max_pages",
            "max_depth",
            "include",
            "exclude",
            "tags",
            "status",
            "error",
            "counts",
            "progress",
            "held_back",
            "item_count",
            "document_count",
            "started_at",
            "finished_at",
            "next_run_at",
            "failures",
            "created_at",
        )
        read_only_fields = fields

    def get_secrets_set(self, source: Source) -> list[str]:
        return secrets_set(source)


class SourceChangeSerializer(StrictSerializer):
    name = StrictCharField(max_length=200)
    # No enumeration: other models have kinds too, and two of one name would need names of their own.
    kind = StrictCharField(max_length=40, help_text=f"One of: {SOURCE_KINDS}.")
    url = StrictCharField(max_length=URL_CHARACTERS, required=False, help_text="Of a page, sitemap, crawl or feed.")
    settings = serializers.DictField(
        required=False, help_text=f"Of its kind; those left out stay, or have their defaults. {SOURCE_SETTINGS}."
    )
    secrets = serializers.DictField(
        child=StrictCharField(max_length=MOST_CHARACTERS_OF_LONG, allow_blank=True, trim_whitespace=False),
        required=False,
        write_only=True,
        help_text=f"Those left out stay. They are never shown. {SECRETS}.",
    )
    enabled = StrictBooleanField(required=False)
    live = StrictBooleanField(required=False, help_text="Queries read it too, as a channel of its own.")
    every_minutes = StrictIntegerField(
        min_value=5, max_value=60 * 24 * 90, required=False, allow_null=True, help_text="null: only when asked for."
    )
    hides_gone = StrictBooleanField(
        required=False, help_text="Documents of what the source no longer has are not searched until it is back."
    )
    max_share = StrictIntegerField(
        min_value=1,
        max_value=100,
        required=False,
        help_text="Percent: a run that would delete this share of the documents, and two at least, deletes none and asks.",
    )
    max_pages = StrictIntegerField(min_value=1, max_value=20_000, required=False)
    max_depth = StrictIntegerField(min_value=0, max_value=10, required=False, help_text="Of a crawl: links deep.")
    include = ListField(
        child=StrictCharField(max_length=300),
        max_length=MOST_PATTERNS,
        required=False,
        help_text="Regular expressions, one of which an address must match.",
    )
    exclude = ListField(
        child=StrictCharField(max_length=300),
        max_length=MOST_PATTERNS,
        required=False,
        help_text="Regular expressions, none of which an address may match.",
    )
    tags = TagsField(required=False, help_text="Of its documents.")

    def validate_kind(self, kind: str) -> str:
        if kind not in SOURCES:
            self.fields["kind"].fail("invalid")
        return kind


class SourceCreateSerializer(SourceChangeSerializer):
    knowledge_base_id = StrictIntegerField(min_value=1, max_value=MAX_ID)


class SourceDeleteSerializer(serializers.Serializer[Any]):
    keep_documents = serializers.BooleanField(
        default=True, help_text="false: its documents are deleted with it, with their chunks."
    )


class SourceItemSerializer(serializers.ModelSerializer[SourceItem]):
    path = serializers.CharField(source="key", help_text="Of a file; blank of pages, which their addresses name.")
    state = serializers.CharField(help_text=f"One of: {', '.join(SourceItem.State.values)}.")
    error = SourceErrorField(help_text="Why it was not read, and what to do about it.")

    class Meta:
        model = SourceItem
        fields = ("id", "path", "url", "title", "document_id", "state", "error", "size", "fetched_at", "gone_at")
        read_only_fields = fields


class SourceRunSerializer(serializers.ModelSerializer[SourceRun]):
    status = serializers.CharField(help_text="done, failed or cancelled.")
    counts = serializers.DictField(child=serializers.IntegerField())
    error = SourceErrorField(help_text="Why it failed, and what to do about it.")

    class Meta:
        model = SourceRun
        fields = ("id", "status", "counts", "error", "started_at", "ended_at")
        read_only_fields = fields


class PreviewItemSerializer(serializers.Serializer[PreviewItem]):
    key = serializers.CharField(help_text="A path or an address.")
    url = serializers.CharField(allow_blank=True)
    size = serializers.IntegerField(allow_null=True, help_text="In bytes; null: not known.")
    title = serializers.CharField()
    excerpt = serializers.CharField(help_text="The beginning of its text.")
    characters = serializers.IntegerField(allow_null=True, help_text="Of its text; null: it was not read for this.")
    published = serializers.DateTimeField(allow_null=True)
    error = SourceErrorField(help_text="Why it would not be taken; null: it would be.")


class PreviewSerializer(serializers.Serializer[Preview]):
    items = PreviewItemSerializer(many=True)
    has_more = serializers.BooleanField()
    error = SourceErrorField(help_text="Why the source as a whole cannot be read.")


class SourceFilters(ListFilters):
    orders: ClassVar = ("name", "-name", "created_at", "-created_at", "id", "-id")
    knowledge_base_id = Related(knowledge_bases_of, field_name="knowledge_base", help_text="Only its sources.")
    q = Text(method="with_words", help_text="Stands in the name or the address.")
    kind = OneOf(SOURCES)
    status = OneOf(Source.Status.values, help_text="Of the last run.")
    enabled = Flag()

    def with_words(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(Q(name__icontains=value) | Q(url__icontains=value))


class SourceItemFilters(ListFilters):
    orders: ClassVar = ("key", "-key", "url", "-url", "id", "-id")
    q = Text(method="with_words", help_text="Stands in the path or the address.")
    state = OneOf(SourceItem.State.values, help_text="Only items of this state.")

    def with_words(self, rows: QuerySet[Any], _name: str, value: str) -> QuerySet[Any]:
        return rows.filter(Q(key__icontains=value) | Q(url__icontains=value))


class SourceRunFilters(ListFilters):
    orders: ClassVar = ("-id", "id")


@extend_schema_view(
    list=extend_schema(
        summary="List the sources of the caller's knowledge bases",
        parameters=SourceFilters.parameters(),
        responses=answers({200: SourceSerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Keep the files of a place, or pages of the web, as documents",
        description="A worker reads it at once, and then as often as `every_minutes` says.",
        request=SourceCreateSerializer,
        responses=answers({201: SourceSerializer}, 400, 403, 404, 413, 415),
    ),
    retrieve=extend_schema(
        summary="Read a source and how far its run is", responses=answers({200: SourceSerializer}, 404)
    ),
    partial_update=extend_schema(
        summary="Change a source",
        description="Where that changes what is read, a worker reads it at once.",
        request=SourceChangeSerializer,
        responses=answers({200: SourceSerializer}, 400, 403, 404, 413, 415),
    ),
    destroy=extend_schema(
        summary="Delete a source; its documents are kept unless asked otherwise",
        parameters=[SourceDeleteSerializer],
        responses=answers({204: None}, 400, 403, 404),
    ),
    run=extend_schema(
        operation_id="source_run",
        summary="Read a source now",
        description="One that is being read already is left alone.",
        request=None,
        responses=answers({202: SourceSerializer}, 403, 404),
    ),
    cancel=extend_schema(
        operation_id="source_cancel",
        summary="Stop reading a source",
        description="The run ends with the item at hand; what it has read stays.",
        request=None,
        responses=answers({200: SourceSerializer}, 403, 404),
    ),
    accept=extend_schema(
        operation_id="source_accept",
        summary="Accept what a run of a source has held back",
        description="A worker reads it at once. Items that are gone lose their documents where they are gone still, and pages "
        "may turn into the texts that they were found to share.",
        request=None,
        responses=answers({202: SourceSerializer}, 403, 404),
    ),
    delete_gone=extend_schema(
        operation_id="source_delete_gone",
        summary="Delete the documents of what a source no longer has",
        description="Their metadata say since when: `gone_since`. Without this they are deleted by a later run.",
        request=None,
        responses=answers({200: SourceSerializer}, 403, 404),
    ),
    pause=extend_schema(
        operation_id="source_pause",
        summary="Let nothing read a source for now",
        description="A run that is under way stops with the item at hand, and goes on with `resume`.",
        request=None,
        responses=answers({200: SourceSerializer}, 403, 404),
    ),
    resume=extend_schema(
        operation_id="source_resume",
        summary="Let a paused source be read again",
        request=None,
        responses=answers({200: SourceSerializer}, 403, 404),
    ),
    runs=extend_schema(
        operation_id="source_runs",
        summary="List the last runs of a source",
        parameters=SourceRunFilters.parameters(),
        responses=answers({200: SourceRunSerializer(many=True)}, 400, 404),
    ),
    items=extend_schema(
        operation_id="source_items",
        summary="List the files or pages of a source with their states",
        parameters=SourceItemFilters.parameters(),
        responses=answers({200: SourceItemSerializer(many=True)}, 400, 404),
    ),
    test=extend_schema(
        operation_id="source_test",
        summary="See what a source would take, without saving anything",
        description="Reads the first pages, for twenty seconds at most, or lists the first files.",
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
        return self._acted(source_request, pk, status.HTTP_202_ACCEPTED)

    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self._acted(source_cancel, pk)

    @action(detail=True, methods=["post"])
    def accept(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self._acted(source_accept, pk, status.HTTP_202_ACCEPTED)

    @action(detail=True, methods=["post"], url_path="delete-gone")
    def delete_gone(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self._acted(gone_delete, pk)

    @action(detail=True, methods=["post"])
    def pause(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self._acted(source_pause, pk)

    @action(detail=True, methods=["post"])
    def resume(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return self._acted(source_resume, pk)

    @action(detail=True)
    def runs(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        source = one(Source.objects.visible_to(self.principal), pk)
        rows = SourceRun.objects.visible_to(self.principal).filter(source=source)
        return self.page(rows, SourceRunSerializer, SourceRunFilters)

    @action(detail=True)
    def items(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        source = one(Source.objects.visible_to(self.principal), pk)
        rows = SourceItem.objects.visible_to(self.principal).filter(source=source)
        return self.page(rows, SourceItemSerializer, SourceItemFilters)

    @action(detail=False, methods=["post"])
    def test(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        fields = self.checked(SourceCreateSerializer)
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), fields.pop("knowledge_base_id"))
        source = Source(knowledge_base=kb, **fields)
        source_check(source)
        with waiting_outside(self.principal.user.pk):
            preview = source_preview(source)
        return Response(PreviewSerializer(preview).data)

    def _acted(self, act: Callable[[Source], object], pk: int, code: int = status.HTTP_200_OK) -> Response:
        act(self._editable(pk))
        return Response(self._described(pk), status=code)

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
        query = self.checked(ExternalSourceTestSerializer)["query"]
        with waiting_outside(self.principal.user.pk):
            tested = external_source_test(source, query)
        return Response(ExternalTestSerializer(tested).data)

    def _kb(self, kb_id: int) -> KnowledgeBase:
        return cast(KnowledgeBase, self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id))

    def _source(self, kb_id: int, source_id: int) -> SearchProvider:
        visible = SearchProvider.objects.visible_to(self.principal)
        return cast(SearchProvider, one(visible.filter(knowledge_base=self._kb(kb_id)), source_id))
