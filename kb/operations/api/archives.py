from typing import Any

from django.http import FileResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import KnowledgeBase
from kb.access.services.rate_limits import UPLOAD
from kb.operations.services.archives.export import archive_name, export_open
from kb.operations.services.archives.restore import import_upload
from kb.web.api.authentication import user_of
from kb.web.api.fields import StrictCharField, StrictSerializer
from kb.web.api.schema import answers
from kb.web.api.views import AnyAccept, ApiView, one


class ArchiveExportSerializer(serializers.Serializer[Any]):
    vectors = serializers.BooleanField(
        default=False, help_text="With its vectors, so that the importing installation need not embed."
    )


class ArchiveImportSerializer(StrictSerializer):
    file = serializers.FileField(allow_empty_file=True, help_text="An archive that an export has written.")
    name = StrictCharField(max_length=120, required=False, allow_blank=True, help_text="Left out: the name in it.")


class ImportedArchiveSerializer(serializers.Serializer[Any]):
    knowledge_base_id = serializers.IntegerField(source="knowledge_base.pk")
    name = serializers.CharField(source="knowledge_base.name")
    rows = serializers.DictField(child=serializers.IntegerField(), help_text="How many rows of each kind were made.")
    notes = serializers.ListField(
        child=serializers.CharField(), help_text="What differs from where the archive was made, or needs a look."
    )


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
