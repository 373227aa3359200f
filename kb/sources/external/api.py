from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.sources.external.services import KINDS, external_source_test, external_source_update, state_text
from kb.sources.models import SearchProvider
from kb.web.api.fields import (
    StrictBooleanField,
    StrictCharField,
    StrictFloatField,
    StrictIntegerField,
    StrictSerializer,
    answers,
)
from kb.web.api.views import ApiViewSet, Flag, ListFilters, OneOf, one

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
        found: KnowledgeBase = self.editable(KnowledgeBase.objects.visible_to(self.principal), kb_id)
        return found

    def _source(self, kb_id: int, source_id: int) -> SearchProvider:
        visible = SearchProvider.objects.visible_to(self.principal)
        found: SearchProvider = one(visible.filter(knowledge_base=self._kb(kb_id)), source_id)
        return found
