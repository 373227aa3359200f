import dataclasses
from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _
from rest_framework import serializers

from kb.api.fields import KnowledgeBaseIdsField, StrictBooleanField
from kb.api.serializers.search import DegradationSerializer, SearchRequestSerializer, UsedProfileSerializer
from kb.models import Conversation, Message
from kb.services.answers.types import AskRequest
from kb.services.search import SearchRequest
from retrieval.gate import ScoreScale
from retrieval.inert import inert


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

    def to_request(self) -> AskRequest:
        """The validated request."""
        found = super().to_request()
        scope = {field.name: getattr(found, field.name) for field in dataclasses.fields(SearchRequest)}
        return AskRequest(
            **scope,
            conversation_id=self.validated_data.get("conversation_id"),
            remember=self.validated_data.get("remember", False),
        )


class SourceSerializer(serializers.Serializer[Any]):
    number = serializers.IntegerField(help_text="What the answer cites it by.")
    label = serializers.CharField(  # type: ignore[assignment]
        help_text="Where it stands, for readers: source or title, and page."
    )
    title = serializers.CharField(allow_blank=True)
    source = serializers.CharField(allow_blank=True)  # type: ignore[assignment]
    page = serializers.IntegerField(allow_null=True)
    chunk_id = serializers.IntegerField(allow_null=True, help_text="null: of a live or external source.")
    document_id = serializers.IntegerField(allow_null=True)
    knowledge_base_id = serializers.IntegerField()
    text = serializers.CharField(help_text="As the language model was given it; long passages are cut.")
    score = serializers.FloatField(help_text="On the scale that `score_scale` names.")
    score_scale = serializers.ChoiceField([(scale.value, scale.value) for scale in ScoreScale])


class AnswerSerializer(serializers.Serializer[Any]):
    answer = serializers.CharField(
        help_text="With citations such as [1] and, as its last line, the names of the sources. Where nothing relevant was "
        "found, the knowledge base's sentence for that; where no language model answered, the passages found."
    )
    sources = SourceSerializer(many=True)
    hit = serializers.BooleanField(help_text="Whether something relevant was found.")
    confidence = serializers.FloatField(
        allow_null=True, help_text="0 to 1, on the scale of the best source; null where the scores have no scale."
    )
    trace_id = serializers.UUIDField(help_text="Of the search's entry in the search log: see traces/{trace_id}/.")
    conversation_id = serializers.UUIDField(allow_null=True, help_text="Of the conversation that it was kept in.")
    profile = UsedProfileSerializer()
    degraded = DegradationSerializer(many=True)
    facts = serializers.ListField(child=serializers.DictField(), help_text="Of the graph; never cited.")
    timings_ms = serializers.DictField(
        child=serializers.FloatField(), help_text="Milliseconds by stage of the search, of the answer, and in total."
    )
    removed_citations = serializers.ListField(
        child=serializers.IntegerField(),
        help_text="Numbers that the language model cited and that name no source; they were taken out of the answer.",
    )
    model = serializers.CharField(allow_null=True, help_text="The language model; null where none wrote the answer.")


class MessageSerializer(serializers.ModelSerializer[Message]):
    sources = SourceSerializer(many=True, read_only=True)
    degraded = DegradationSerializer(many=True, read_only=True)

    class Meta:
        model = Message
        fields = ("role", "text", "sources", "hit", "confidence", "trace_id", "degraded", "created_at")
        read_only_fields = fields

    def to_representation(self, message: Message) -> dict[str, Any]:
        """Answers of earlier versions may hold links and images still."""
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
