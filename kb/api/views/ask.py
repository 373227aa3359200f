from uuid import UUID

from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.api.schema import answers
from kb.api.serializers.ask import (
    AnswerSerializer,
    AskRequestSerializer,
    ConversationDetailSerializer,
    ConversationSerializer,
)
from kb.api.views.base import AnyAccept, ApiView, ApiViewSet, one
from kb.models import Conversation
from kb.services.answers import answer, stream_answer
from kb.services.conversations import conversation_delete, conversation_get, conversation_overview
from kb.sse import event_stream

EXAMPLES = [
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
                (200, "text/event-stream"): OpenApiResponse(OpenApiTypes.STR, "With `stream`: server-sent events."),
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
    post_reads = True
    content_negotiation_class = AnyAccept

    def post(self, request: Request) -> HttpResponseBase:
        serializer = AskRequestSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        if serializer.validated_data.get("stream"):
            return event_stream(stream_answer(self.principal, serializer.to_request()))
        return Response(answer(self.principal, serializer.to_request()).as_dict())


@extend_schema_view(
    list=extend_schema(
        summary="List the caller's own conversations, the one continued last first",
        description="One that holds a knowledge base which the caller may no longer see is not there.",
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
        return self.page(conversation_overview(self.principal), ConversationSerializer)

    def retrieve(self, request: Request, pk: UUID) -> Response:  # noqa: ARG002 - the framework's interface
        found = one(conversation_overview(self.principal).prefetch_related("messages"), pk)
        return Response(ConversationDetailSerializer(found).data)

    def destroy(self, request: Request, pk: UUID) -> Response:  # noqa: ARG002 - the framework's interface
        conversation_delete(conversation_get(self.principal, pk))
        return Response(status=status.HTTP_204_NO_CONTENT)
