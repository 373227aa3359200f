from typing import Any
from uuid import UUID

from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_field, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from kb.quality.failed_queries.services import feedback
from kb.search.models import SearchLog
from kb.web.api.fields import StrictIntegerField, StrictSerializer, answers
from kb.web.api.views import ApiView, one


@extend_schema_field({"anyOf": [*({"const": each} for each in SearchLog.Feedback.values), {"type": "null"}]})
class FeedbackField(StrictIntegerField):
    default_error_messages = {
        "unknown": _("Say 1 where it was helpful, -1 where it was not, or null to take that back.")
    }

    def to_internal_value(self, data: Any) -> int:
        value = super().to_internal_value(data)
        if value not in SearchLog.Feedback.values:
            self.fail("unknown")
        return value


class FeedbackSerializer(StrictSerializer):
    value = FeedbackField(
        allow_null=True, help_text="1: helpful; -1: not helpful; null takes back what was said before."
    )


@extend_schema_view(
    post=extend_schema(
        operation_id="feedback",
        summary="Say whether a search was of help",
        description="The last to say so counts. What was not of help goes into the curators’ inbox of failed queries. A key "
        "with the scope read suffices.",
        request=FeedbackSerializer,
        responses=answers({200: FeedbackSerializer}, 400, 404, 413, 415),
        examples=[OpenApiExample("It did not help", value={"value": -1})],
    )
)
class FeedbackView(ApiView):
    post_reads = True

    def post(self, request: Request, trace_id: UUID) -> Response:  # noqa: ARG002 - the framework's interface
        one(SearchLog.objects.visible_to(self.principal).only("pk"), trace_id)  # 404 comes first
        fields = self.checked(FeedbackSerializer)
        feedback(self.principal, trace_id, fields["value"])
        return Response(fields)
