from django.http import FileResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.authentication import user_of
from kb.api.schema import answers
from kb.api.serializers.archives import (
    ArchiveExportSerializer,
    ArchiveImportSerializer,
    ImportedArchiveSerializer,
)
from kb.api.views.base import AnyAccept, ApiView, one
from kb.models import KnowledgeBase
from kb.services.archives.export import archive_name, export_open
from kb.services.archives.uploads import import_upload
from kb.services.rate_limits import UPLOAD


@extend_schema_view(
    get=extend_schema(
        operation_id="knowledge_bases_export",
        summary="Export a whole knowledge base as one archive",
        description="For its editors: documents with their files, chunks, edits, judgments and profiles, as they are at "
        "this moment.",
        parameters=[ArchiveExportSerializer],
        responses=answers({(200, "application/zip"): OpenApiResponse(OpenApiTypes.BINARY, "The file.")}, 400, 403, 404),
    )
)
class KnowledgeBaseExportView(ApiView):
    content_negotiation_class = AnyAccept

    def get(self, request: Request, pk: int) -> FileResponse:
        kb = one(KnowledgeBase.objects.visible_to(self.principal), pk)
        given = ArchiveExportSerializer(data=request.query_params)
        given.is_valid(raise_exception=True)
        return FileResponse(
            export_open(self.principal, kb, vectors=given.validated_data["vectors"]),
            as_attachment=True,
            filename=archive_name(kb),
            content_type="application/zip",
            headers={"X-Content-Type-Options": "nosniff"},
        )


@extend_schema_view(
    post=extend_schema(
        operation_id="knowledge_bases_import",
        summary="Make a knowledge base of an archive",
        description="The caller becomes its owner. It is made whole or not at all. An archive that takes too long is "
        "refused with 413: `manage.py import_kb` imports it on the server.",
        request={"multipart/form-data": ArchiveImportSerializer},
        responses=answers({201: ImportedArchiveSerializer}, 400, 403, 413, 415),
    )
)
class KnowledgeBaseImportView(ApiView):
    rate_limit_kind = UPLOAD
    parser_classes = [MultiPartParser]

    def post(self, request: Request) -> Response:
        fields = self.checked(ArchiveImportSerializer)
        done = import_upload(self.principal, user_of(request), fields["file"], fields.get("name", ""))
        return Response(ImportedArchiveSerializer(done).data, status=status.HTTP_201_CREATED)
