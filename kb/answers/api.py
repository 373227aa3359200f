import dataclasses
from typing import Any, ClassVar
from uuid import UUID

from django.db.models import QuerySet
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema, extend_schema_view
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.services.rate_limits import ASK
from kb.answers.models import Conversation, Message
from kb.answers.services.answers import (
    Answer,
    AskRequest,
    Source,
    answer,
    stream_answer,
)
from kb.answers.services.conversations import conversation_get, conversation_overview
from kb.answers.sse import event_stream, fault_of
from kb.base.shapes import as_values
from kb.search.api import SearchRequestSerializer
from kb.search.services.search import SearchRequest
from kb.web.api.errors import remedy_of
from kb.web.api.fields import DegradationSerializer, KnowledgeBaseIdsField, StrictBooleanField, answers, shape
from kb.web.api.views import AnyAccept, ApiView, ApiViewSet, Created, ListFilters, Text, Whole, one, valid
from retrieval.packing import inert


class StrictUUIDField(serializers.UUIDField):
    """Takes a string; the framework's own takes an integer too."""

    def to_internal_value(self, data: Any) -> UUID:
        if not isinstance(data, str):
            self.fail("invalid", value=data)
        return super().to_internal_value(data)


class AskRequestSerializer(SearchRequestSerializer):
    """The scope of a search, and which conversation it belongs to."""

    knowledge_base_ids = KnowledgeBaseIdsField(
        min_length=1,
        max_length=20,
        required=False,
        help_text="Their order breaks ties between equal scores. May be left out with a `conversation_id`: a conversation "
        "keeps the knowledge bases that it began with.",
    )
    conversation_id = StrictUUIDField(
        required=False,
        allow_null=True,
        help_text="Continues a conversation of the caller's: its last turns help to understand the question, and the "
        "question and the answer are kept in it.",
    )
    remember = StrictBooleanField(
        required=False,
        help_text="Begins a conversation with this question; the answer's `conversation_id` continues it. False by default: "
        "nothing is kept. Without a meaning where `conversation_id` is given.",
    )
    stream = StrictBooleanField(
        required=False,
        help_text="Sends the answer as server-sent events while it is written: `sources` (what was found), `delta` (further "
        "`text`), and `done` (the whole answer, which counts where it differs from the pieces); `error` where it cannot be "
        "finished.",
    )
    explain = None  # type: ignore[assignment]

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """An answer has knowledge bases, its own or its conversation's."""
        if not attrs.get("knowledge_base_ids") and not attrs.get("conversation_id"):
            message = _("Name at least one knowledge base, or the conversation that the question continues.")
            raise serializers.ValidationError({"knowledge_base_ids": [message]})
        return {"knowledge_base_ids": [], **super().validate(attrs)}

    def to_request(self, **given: Any) -> AskRequest:
        found, data = super().to_request(**given), self.validated_data
        scope = {field.name: getattr(found, field.name) for field in dataclasses.fields(SearchRequest)}
        return AskRequest(**scope, conversation_id=data.get("conversation_id"), remember=data.get("remember", False))


class MessageSerializer(serializers.ModelSerializer[Message]):
    sources = shape(Source)(many=True, read_only=True)
    near_misses = shape(Source)(many=True, read_only=True)
    degraded = DegradationSerializer(many=True, read_only=True)

    class Meta:
        model = Message
        fields = ("role", "text", "sources", "near_misses", "hit", "confidence", "trace_id", "degraded", "created_at")
        read_only_fields = fields

    def to_representation(self, message: Message) -> dict[str, Any]:
        """Answers of earlier versions may hold links and images still, and their sources no regions."""
        for source in (*message.sources, *message.near_misses):
            source.setdefault("regions", [])
        row = super().to_representation(message)
        return row | {"text": inert(row["text"])} if message.role == Message.Role.ASSISTANT else row


class ConversationSerializer(serializers.ModelSerializer[Conversation]):
    message_count = serializers.IntegerField(read_only=True)
    knowledge_base_ids = serializers.ListField(child=serializers.IntegerField(), read_only=True)

    class Meta:
        model = Conversation
        fields: tuple[str, ...] = ("id", "title", "knowledge_base_ids", "message_count", "created_at", "updated_at")
        read_only_fields = fields


class ConversationDetailSerializer(ConversationSerializer):
    messages = MessageSerializer(many=True, read_only=True)

    class Meta(ConversationSerializer.Meta):
        fields = (*ConversationSerializer.Meta.fields, "messages")
        read_only_fields = fields


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
ANSWERS = {
    (200, "application/json"): shape(Answer),
    (200, "text/event-stream"): OpenApiResponse(OpenApiTypes.STR, STREAM),
}
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
        description="An answer that a chat model writes from what a search finds, and only from that, with citations. "
        "Where nothing reaches the cut, no chat model is asked: `hit` is false, and `near_misses` holds what lies just "
        "below. A key with the scope read suffices.",
        request=AskRequestSerializer,
        responses=answers(ANSWERS, 400, 404, 413, 415),
        examples=EXAMPLES,
    )
)
class AskView(ApiView):
    """What fails before the first event is a status of its own, as of any request; what fails later is an event."""

    post_reads = True
    rate_limit_kind = ASK
    content_negotiation_class = AnyAccept

    def post(self, request: Request) -> HttpResponseBase:
        serializer = valid(AskRequestSerializer, request.data)
        if serializer.validated_data.get("stream"):
            events = stream_answer(self.principal, serializer.to_request())
            return event_stream(events, fault=fault_event)
        return Response(as_values(answer(self.principal, serializer.to_request())))


def fault_event(error: Exception) -> dict[str, Any]:
    """What the event `error` holds: the keys of any error of the API."""
    fault = fault_of(error)
    return {**fault, "remedy": remedy_of(str(fault["code"]), status.HTTP_503_SERVICE_UNAVAILABLE)}


class ConversationFilters(Created, ListFilters):
    orders: ClassVar = ("-updated_at", "updated_at", "-created_at", "created_at")
    q = Text(field_name="title", lookup_expr="icontains", help_text="Stands in the title.")
    knowledge_base_id = Whole(method="about", help_text="Over this knowledge base, among others.")

    def about(self, rows: QuerySet[Any], _name: str, value: int) -> QuerySet[Any]:
        return rows.filter(knowledge_base_ids__contains=[value])


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
    def list(self, request: Request) -> Response:  # noqa: ARG002 - the framework's interface
        return self.page(conversation_overview(self.principal), ConversationSerializer, ConversationFilters)

    def retrieve(self, request: Request, pk: UUID) -> Response:  # noqa: ARG002 - the framework's interface
        found = one(conversation_overview(self.principal).prefetch_related("messages"), pk)
        return Response(ConversationDetailSerializer(found).data)

    def destroy(self, request: Request, pk: UUID) -> Response:  # noqa: ARG002 - the framework's interface
        conversation_get(self.principal, pk).delete()
        return Response(status=status.HTTP_204_NO_CONTENT)
