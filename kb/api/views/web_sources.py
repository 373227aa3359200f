from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.authentication import user_of
from kb.api.filters import WebPageFilters, WebSourceFilters
from kb.api.schema import answers
from kb.api.serializers.web_sources import (
    PreviewSerializer,
    WebPageSerializer,
    WebSourceChangeSerializer,
    WebSourceCreateSerializer,
    WebSourceDeleteSerializer,
    WebSourceSerializer,
)
from kb.api.views.base import ApiViewSet, asked, one
from kb.models import KnowledgeBase, WebPage, WebSource
from kb.net.settings import web_client
from kb.services.web_sources.preview import web_source_preview
from kb.services.web_sources.sources import (
    web_source_accept,
    web_source_cancel,
    web_source_check,
    web_source_create,
    web_source_delete,
    web_source_overview,
    web_source_request,
    web_source_update,
)


@extend_schema_view(
    list=extend_schema(
        summary="List the web sources of the caller's knowledge bases",
        parameters=WebSourceFilters.parameters(),
        responses=answers({200: WebSourceSerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Keep pages or entries of the web as documents",
        description="A worker reads it at once, and then as often as `every_minutes` says.",
        request=WebSourceCreateSerializer,
        responses=answers({201: WebSourceSerializer}, 400, 403, 404, 413, 415),
    ),
    retrieve=extend_schema(
        summary="Read a web source and how far its run is", responses=answers({200: WebSourceSerializer}, 404)
    ),
    partial_update=extend_schema(
        summary="Change a web source",
        description="Where that changes what is read, a worker reads it at once.",
        request=WebSourceChangeSerializer,
        responses=answers({200: WebSourceSerializer}, 400, 403, 404, 413, 415),
    ),
    destroy=extend_schema(
        summary="Delete a web source; its documents are kept unless told otherwise",
        parameters=[WebSourceDeleteSerializer],
        responses=answers({204: None}, 400, 403, 404),
    ),
    run=extend_schema(
        operation_id="web_source_run",
        summary="Read a web source now",
        description="One that is being read already is left alone.",
        request=None,
        responses=answers({202: WebSourceSerializer}, 403, 404),
    ),
    cancel=extend_schema(
        operation_id="web_source_cancel",
        summary="Stop reading a web source",
        description="The run ends with the page at hand; what it has read stays.",
        request=None,
        responses=answers({200: WebSourceSerializer}, 403, 404),
    ),
    accept=extend_schema(
        operation_id="web_source_accept",
        summary="Accept what a run of a web source has held back",
        description="A worker reads it at once. Pages that are gone lose their documents where they are gone still, and pages "
        "may turn into the texts that they were found to share.",
        request=None,
        responses=answers({202: WebSourceSerializer}, 403, 404),
    ),
    pages=extend_schema(
        operation_id="web_source_pages",
        summary="List the pages of a web source with their states",
        parameters=WebPageFilters.parameters(),
        responses=answers({200: WebPageSerializer(many=True)}, 400, 404),
    ),
    test=extend_schema(
        operation_id="web_source_test",
        summary="See what a web source would take, without saving anything",
        description="Reads its first pages, for twenty seconds at most.",
        request=WebSourceCreateSerializer,
        responses=answers({200: PreviewSerializer}, 400, 403, 404, 413, 415),
    ),
)
class WebSourceViewSet(ApiViewSet):
    queryset = WebSource.objects.none()

    def list(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(web_source_overview(self.principal), WebSourceSerializer, WebSourceFilters)

    def create(self, request: Request) -> Response:
        fields = self.checked(WebSourceCreateSerializer)
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), fields.pop("knowledge_base_id"))
        source = web_source_create(knowledge_base=kb, user=user_of(request), **fields)
        return Response(self._described(source.pk), status=status.HTTP_201_CREATED)

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(self._described(pk))

    def partial_update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        source = self._editable(pk)
        web_source_update(source, **self.checked(WebSourceChangeSerializer, partial=True))
        return Response(self._described(pk))

    def destroy(self, request: Request, pk: int) -> Response:
        source = self._editable(pk)
        web_source_delete(source, keep_documents=asked(WebSourceDeleteSerializer, request)["keep_documents"])
        return Response(status=status.HTTP_204_NO_CONTENT)

    @action(detail=True, methods=["post"])
    def run(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        web_source_request(self._editable(pk))
        return Response(self._described(pk), status=status.HTTP_202_ACCEPTED)

    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        web_source_cancel(self._editable(pk))
        return Response(self._described(pk))

    @action(detail=True, methods=["post"])
    def accept(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        web_source_accept(self._editable(pk))
        return Response(self._described(pk), status=status.HTTP_202_ACCEPTED)

    @action(detail=True)
    def pages(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        source = one(WebSource.objects.visible_to(self.principal), pk)
        rows = WebPage.objects.visible_to(self.principal).filter(source=source)
        return self.page(rows, WebPageSerializer, WebPageFilters)

    @action(detail=False, methods=["post"])
    def test(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        fields = self.checked(WebSourceCreateSerializer)
        kb = self.editable(KnowledgeBase.objects.visible_to(self.principal), fields.pop("knowledge_base_id"))
        source = WebSource(knowledge_base=kb, **fields)
        web_source_check(source)
        return Response(PreviewSerializer(web_source_preview(source, web_client())).data)

    def _editable(self, pk: int) -> WebSource:
        found: WebSource = self.editable(WebSource.objects.visible_to(self.principal), pk)
        return found

    def _described(self, pk: int) -> dict[str, Any]:
        return WebSourceSerializer(one(web_source_overview(self.principal), pk)).data
