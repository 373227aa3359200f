from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.schema import answers
from kb.api.serializers.why_not import WhyNotRequestSerializer, WhyNotSerializer
from kb.api.views.base import ApiView
from kb.services.why_not import why_not_found
from kb.services.why_not.as_json import why_not_as_json
from kb.services.why_not.finding import the_chunk

EXAMPLES = [
    OpenApiExample(
        "A chunk by its id",
        value={"query": "年假可以休几天？", "knowledge_base_ids": [1], "chunk_id": 7},
        request_only=True,
    ),
    OpenApiExample(
        "A chunk by its text",
        value={"query": "年假可以休几天？", "knowledge_base_ids": [1], "text": "每年享有五天带薪年假"},
        request_only=True,
    ),
]


@extend_schema_view(
    post=extend_schema(
        operation_id="why_not",
        summary="Say why a search does not find a chunk",
        description="Runs the search, without logging it, and names the first stage that lost the chunk, with exact ranks "
        "however deep it stands, and what would help. A key with the scope read suffices.",
        request=WhyNotRequestSerializer,
        responses=answers({200: WhyNotSerializer}, 400, 404, 413, 415, 503),
        examples=EXAMPLES,
    )
)
class WhyNotView(ApiView):
    post_reads = True

    def post(self, request: Request) -> Response:
        serializer = WhyNotRequestSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        search = serializer.to_request()
        chunk_id = serializer.validated_data.get("chunk_id")
        if chunk_id is None:
            chunk_id = the_chunk(self.principal, search.knowledge_base_ids, serializer.validated_data["text"])
        return Response(why_not_as_json(why_not_found(self.principal, search, chunk_id)))
