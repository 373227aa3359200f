from uuid import UUID

from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.schema import answers
from kb.api.serializers.feedback import FeedbackSerializer
from kb.api.views.base import ApiView, one
from kb.models import SearchLog
from kb.services.failed_queries import feedback

EXAMPLES = [OpenApiExample("It did not help", value={"value": -1})]


@extend_schema_view(
    post=extend_schema(
        operation_id="feedback",
        summary="Say whether a search was of help",
        description="The last to say so counts. What was not of help goes into the curators’ inbox of failed queries. A key "
        "with the scope read suffices.",
        request=FeedbackSerializer,
        responses=answers({200: FeedbackSerializer}, 400, 404, 413, 415),
        examples=EXAMPLES,
    )
)
class FeedbackView(ApiView):
    post_reads = True

    def post(self, request: Request, trace_id: UUID) -> Response:  # noqa: ARG002 - the framework's interface
        one(SearchLog.objects.visible_to(self.principal).only("pk"), trace_id)  # 404 comes first
        fields = self.checked(FeedbackSerializer)
        feedback(self.principal, trace_id, fields["value"])
        return Response(fields)
