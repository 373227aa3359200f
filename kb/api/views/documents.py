from django.db.models import QuerySet
from django.http import FileResponse
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.decorators import action
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.authentication import user_of
from kb.api.parsers import ShallowJSONParser
from kb.api.schema import answers
from kb.api.serializers.chunks import ChunkSerializer
from kb.api.serializers.documents import (
    DocumentChangeSerializer,
    DocumentSerializer,
    DocumentTextSerializer,
    DocumentUploadSerializer,
)
from kb.api.views.base import AnyAccept, ApiView, ApiViewSet, one
from kb.models import Chunk, Document, KnowledgeBase
from kb.selectors import document_overview
from kb.services.documents import (
    document_add,
    document_add_text,
    document_delete,
    document_requeue,
    document_update,
)
from kb.services.errors import NotVisible
from kb.services.web_sources.documents import document_add_url


@extend_schema_view(
    list=extend_schema(
        summary="List the documents of a knowledge base, newest first",
        responses=answers({200: DocumentSerializer(many=True)}, 400, 404),
    ),
    create=extend_schema(
        summary="Add a document: a file as a form, or a text or the address of a page as JSON",
        description="A worker parses and indexes it: its `status` becomes `ready`, or `failed` with a reason.",
        request={"multipart/form-data": DocumentUploadSerializer, "application/json": DocumentTextSerializer},
        responses=answers({201: DocumentSerializer}, 400, 403, 404, 409, 413, 415),
    ),
)
class KnowledgeBaseDocumentViewSet(ApiViewSet):
    queryset = Document.objects.none()
    parser_classes = [ShallowJSONParser, MultiPartParser]

    def list(self, request: Request, kb_id: int) -> Response:  # noqa: ARG002 - the framework's interface
        kb = one(self._knowledge_bases(), kb_id)
        return self.page(document_overview(self.principal).filter(knowledge_base=kb), DocumentSerializer)

    def create(self, request: Request, kb_id: int) -> Response:
        kb = self.editable(self._knowledge_bases(), kb_id)
        if (request.content_type or "").startswith(MultiPartParser.media_type):
            fields = self.checked(DocumentUploadSerializer)
            file = fields["file"]
            document = document_add(knowledge_base=kb, name=file.name, user=user_of(request), **fields)
        else:
            fields = self.checked(DocumentTextSerializer)
            if "url" in fields:
                document = document_add_url(knowledge_base=kb, user=user_of(request), **fields)
            else:
                document = document_add_text(knowledge_base=kb, user=user_of(request), **({"title": ""} | fields))
        described = DocumentSerializer(one(document_overview(self.principal), document.pk))
        return Response(described.data, status=status.HTTP_201_CREATED)

    def _knowledge_bases(self) -> QuerySet[KnowledgeBase]:
        return KnowledgeBase.objects.visible_to(self.principal)


@extend_schema_view(
    retrieve=extend_schema(
        summary="Read a document, its status and progress", responses=answers({200: DocumentSerializer}, 404)
    ),
    partial_update=extend_schema(
        summary="Change what is said about a document",
        request=DocumentChangeSerializer,
        responses=answers({200: DocumentSerializer}, 400, 403, 404, 409, 413, 415),
    ),
    destroy=extend_schema(
        summary="Delete a document with its chunks and its file", responses=answers({204: None}, 403, 404)
    ),
    retry=extend_schema(
        summary="Parse and index a document again",
        description="As after a failure. Its chunks are cut from its file again, so that edits of them are lost.",
        request=None,
        responses=answers({202: DocumentSerializer}, 400, 403, 404),
    ),
    chunks=extend_schema(
        summary="List the chunks of a document in their order",
        responses=answers({200: ChunkSerializer(many=True)}, 400, 404),
    ),
)
class DocumentViewSet(ApiViewSet):
    queryset = Document.objects.none()

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(self._described(pk))

    def partial_update(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        document = self.editable(self._documents(), pk)
        document_update(document, **self.checked(DocumentChangeSerializer, partial=True))
        return Response(self._described(pk))

    def destroy(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        document_delete(self.editable(self._documents(), pk))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        document_requeue(self.editable(self._documents(), pk))
        return Response(self._described(pk), status=status.HTTP_202_ACCEPTED)

    @action(detail=True)
    def chunks(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        document = one(self._documents(), pk)
        rows = Chunk.objects.visible_to(self.principal).filter(document=document).order_by("position")
        return self.page(rows, ChunkSerializer)

    def _documents(self) -> QuerySet[Document]:
        return Document.objects.visible_to(self.principal)

    def _described(self, pk: int) -> dict[str, object]:
        return DocumentSerializer(one(document_overview(self.principal), pk)).data


@extend_schema_view(
    get=extend_schema(
        operation_id="documents_file_retrieve",
        summary="Download the file of a document",
        responses=answers({(200, "application/octet-stream"): OpenApiResponse(OpenApiTypes.BINARY, "The file.")}, 404),
    )
)
class DocumentFileView(ApiView):
    content_negotiation_class = AnyAccept

    def get(self, request: Request, pk: int) -> FileResponse:  # noqa: ARG002 - the framework's interface
        document = one(Document.objects.visible_to(self.principal), pk)
        if not document.file or not document.file.storage.exists(document.file.name):
            raise NotVisible(_("This document has no file."))
        return FileResponse(
            document.file.open("rb"),
            as_attachment=True,
            filename=document.source,
            content_type="application/octet-stream",
            headers={"X-Content-Type-Options": "nosniff"},
        )
