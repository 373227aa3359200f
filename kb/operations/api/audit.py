from typing import Any, ClassVar

from django.http import FileResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import AuditEntry, KnowledgeBase
from kb.access.services.rate_limits import UPLOAD
from kb.operations.services.archives.export import export_download
from kb.operations.services.archives.restore import import_upload
from kb.web.api.callers import user_of
from kb.web.api.fields import StrictCharField, StrictSerializer, answers
from kb.web.api.views import AnyAccept, ApiView, ApiViewSet, ListFilters, Moment, OneOf, Text, Whole, one


class AuditEntrySerializer(serializers.ModelSerializer[AuditEntry]):
    # No enumerations: other fields are named so in other schemas, and two of one name would need names of their own.
    how = serializers.CharField(help_text=f"One of: {', '.join(AuditEntry.How.values)}.")
    action = serializers.CharField(help_text=f"One of: {', '.join(AuditEntry.Action.values)}.")
    user_id = serializers.IntegerField(allow_null=True, help_text="null: not known.")
    knowledge_base_id = serializers.IntegerField(allow_null=True, help_text="It may be gone.")
    changes = serializers.DictField(
        child=serializers.ListField(), help_text="By field: before and after. Two nulls: changed, and not kept."
    )

    class Meta:
        model = AuditEntry
        fields = (
            "id",
            "at",
            "user_id",
            "username",
            "api_key",
            "how",
            "via",
            "address",
            "request_id",
            "knowledge_base_id",
            "knowledge_base_name",
            "action",
            "object_type",
            "object_id",
            "object_name",
            "amount",
            "changes",
        )
        read_only_fields = fields


class AuditFilters(ListFilters):
    orders: ClassVar = ("-id", "id")
    knowledge_base_id = Whole(help_text="Which may be gone.")
    username = Text()
    how = OneOf(AuditEntry.How.values)
    action = OneOf(AuditEntry.Action.values)
    object_type = Text()
    object_id = Text()
    since = Moment(field_name="at", lookup_expr="gte", help_text="Entries from then on.")
    until = Moment(field_name="at", lookup_expr="lt", help_text="Entries before that.")


@extend_schema_view(
    list=extend_schema(
        operation_id="audit_list",
        summary="List who changed what, the newest first",
        description="Of the knowledge bases that the caller owns, and what a user has done beside these; superusers see all.",
        parameters=AuditFilters.parameters(),
        responses=answers({200: AuditEntrySerializer(many=True)}, 400, 404),
    ),
    retrieve=extend_schema(
        operation_id="audit_retrieve",
        summary="Read an entry of the audit log",
        responses=answers({200: AuditEntrySerializer}, 404),
    ),
)
class AuditViewSet(ApiViewSet):
    def list(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(AuditEntry.objects.visible_to(self.principal), AuditEntrySerializer, AuditFilters)

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(AuditEntrySerializer(one(AuditEntry.objects.visible_to(self.principal), pk)).data)


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
        return export_download(self.principal, kb, vectors=given.validated_data["vectors"])


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
