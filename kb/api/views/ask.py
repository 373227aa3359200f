from typing import Any
from uuid import UUID

from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.filters import ConversationFilters
from kb.api.remedies import remedy_of
from kb.api.schema import answers
from kb.api.serializers.ask import (
    AnswerSerializer,
    AskRequestSerializer,
    ConversationDetailSerializer,
    ConversationSerializer,
)
from kb.api.views.base import AnyAccept, ApiView, ApiViewSet, one
from kb.models import Conversation
from kb.services.answers.writing import answer, stream_answer
from kb.services.conversations import conversation_delete, conversation_get, conversation_overview
from kb.services.rate_limits import ASK
from kb.sse import event_stream, fault_of

STREAM = """With `stream`: server-sent events, each a line `event:` with its name and a line `data:` with JSON.

- `sources`, first and at once: `sources`, `hit`, `trace_id`, `degraded` and `facts` of what was found.
- `delta`, any number of times: `text`, the next piece of the answer.
- `done`, last: the whole answer as it is without `stream`; it counts where it differs from the pieces.
- `error`, in place of `done`, where the answer breaks off: `code`, `detail` and `remedy`, as of any error.

What fails before the first event has a status of its own, and JSON. A stream cannot be resumed: ask again."""
STREAM_EXAMPLE = """event: sources
data: {"sources": [{"number": 1, "label": "handbook.pdf, p. 12", "chunk_id": 7, "...": "..."}], "hit": true}

event: delta
data: {"text": "工作满一年的员工每年享有"}

event: delta
data: {"text": "五天带薪年假。[1]"}

event: done
data: {"answer": "工作满一年的员工每年享有五天带薪年假。[1]", "hit": true, "...": "..."}

"""
EXAMPLES = [
    OpenApiExample(
        "A streamed answer",
        value=STREAM_EXAMPLE,
        response_only=True,
        media_type="text/event-stream",
        status_codes=["200"],
    ),
    OpenApiExample(
        "A question that begins a conversation",
        value={"query": "年假可以休几天？", "knowledge_base_ids": [1, 2], "top_k": 5, "remember": True},
        request_only=True,
    ),
    OpenApiExample(
        "A question that continues one, streamed",
        value={"query": "那病假呢？", "conversation_id": "2f1c6a52-5b0e-4f0e-8d0c-1c6ad4f2b7aa", "stream": True},
        request_only=True,
    ),
]


@extend_schema_view(
    post=extend_schema(
        operation_id="ask",
        summary="Answer a question from knowledge bases",
        description="An answer that a language model writes from what a search finds, and only from that, with citations. "
        "Where nothing relevant is found, no language model is asked. A key with the scope read suffices.",
        request=AskRequestSerializer,
        responses=answers(
            {
                (200, "application/json"): AnswerSerializer,
                (200, "text/event-stream"): OpenApiResponse(OpenApiTypes.STR, STREAM),
            },
            400,
            404,
            413,
            415,
            503,
        ),
        examples=EXAMPLES,
    )
)
class AskView(ApiView):
    """What fails before the first event is a status of its own, as of any request; what fails later is an event."""

    post_reads = True
    rate_limit_kind = ASK
    content_negotiation_class = AnyAccept

    def post(self, request: Request) -> HttpResponseBase:
        serializer = AskRequestSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        if serializer.validated_data.get("stream"):
            events = stream_answer(self.principal, serializer.to_request())
            return event_stream(events, fault=told_fault)
        return Response(answer(self.principal, serializer.to_request()).as_dict())


def told_fault(error: Exception) -> dict[str, Any]:
    """What the event `error` holds: the keys of any error of the API."""
    fault = fault_of(error)
    return {**fault, "remedy": remedy_of(str(fault["code"]), status.HTTP_503_SERVICE_UNAVAILABLE)}


@extend_schema_view(
    list=extend_schema(
        summary="List the caller's own conversations, the one continued last first",
        description="One that holds a knowledge base which the caller may no longer see is not there.",
        parameters=ConversationFilters.parameters(),
        responses=answers({200: ConversationSerializer(many=True)}, 400, 404),
    ),
    retrieve=extend_schema(
        summary="Read a conversation with its messages", responses=answers({200: ConversationDetailSerializer}, 404)
    ),
    destroy=extend_schema(
        summary="Delete a conversation and its messages",
        description="Needs a key with the scope write.",
        responses=answers({204: None}, 403, 404),
    ),
)
class ConversationViewSet(ApiViewSet):
    queryset = Conversation.objects.none()

    def list(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(conversation_overview(self.principal), ConversationSerializer, ConversationFilters)

    def retrieve(self, request: Request, pk: UUID) -> Response:  # noqa: ARG002 - the framework's interface
        found = one(conversation_overview(self.principal).prefetch_related("messages"), pk)
        return Response(ConversationDetailSerializer(found).data)

    def destroy(self, request: Request, pk: UUID) -> Response:  # noqa: ARG002 - the framework's interface
        conversation_delete(conversation_get(self.principal, pk))
        return Response(status=status.HTTP_204_NO_CONTENT)
