from typing import ClassVar

from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import AuditEntry
from kb.web.api.lists import ListFilters, Moment, OneOf, Text, Whole
from kb.web.api.schema import answers
from kb.web.api.views import ApiViewSet, one


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
    queryset = AuditEntry.objects.none()

    def list(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(AuditEntry.objects.visible_to(self.principal), AuditEntrySerializer, AuditFilters)

    def retrieve(self, request: Request, pk: int) -> Response:  # noqa: ARG002 - the framework's interface
        return Response(AuditEntrySerializer(one(AuditEntry.objects.visible_to(self.principal), pk)).data)
