from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.filters import AuditFilters
from kb.api.schema import answers
from kb.api.serializers.audit import AuditEntrySerializer
from kb.api.views.base import ApiViewSet, one
from kb.models import AuditEntry


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
    queryset = AuditEntry.objects.none()

    def list(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(AuditEntry.objects.visible_to(self.principal), AuditEntrySerializer, AuditFilters)

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(AuditEntrySerializer(one(AuditEntry.objects.visible_to(self.principal), pk)).data)
