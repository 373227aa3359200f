from typing import Any

from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from kb.quality.why_not.services import why_not_found
from kb.quality.why_not.services.places import MOST_CHARACTERS, PlaceState, Reason, RemedyCode, Stage, State, the_chunk
from kb.quality.why_not.services.words import why_not_as_json
from kb.search.api import SearchRequestSerializer, UsedProfileSerializer
from kb.web.api.fields import MAX_ID, DegradationSerializer, StrictCharField, StrictIntegerField
from kb.web.api.schema import answers
from kb.web.api.views import ApiView


def _values(codes: Any) -> list[tuple[str, str]]:
    return [(each.value, each.value) for each in codes]


# No enumerations: other answers have stages and states of their own, and two of one name would need names of their own.
STAGES = ", ".join(Stage)
STATES = ", ".join(State)
PLACE_STATES = ", ".join(PlaceState)


class WhyNotRequestSerializer(SearchRequestSerializer):
    """A search, and the chunk that it was expected to find."""

    explain = None  # type: ignore[assignment]
    chunk_id = StrictIntegerField(
        min_value=1, max_value=MAX_ID, required=False, allow_null=True, help_text="Either this or `text`."
    )
    text = StrictCharField(
        max_length=MOST_CHARACTERS,
        required=False,
        allow_blank=True,
        help_text="Any part of the chunk’s text, if it stands in no other one; white space and case do not count.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """One way of naming the chunk, not both."""
        if (attrs.get("chunk_id") is None) == (not attrs.get("text")):
            message = _("Name the chunk: give either “chunk_id” or “text”.")
            raise serializers.ValidationError({"chunk_id": [message]})
        return super().validate(attrs)


class WhyNotChunkSerializer(serializers.Serializer[Any]):
    chunk_id = serializers.IntegerField()
    document_id = serializers.IntegerField()
    knowledge_base_id = serializers.IntegerField()
    title = serializers.CharField(allow_blank=True)
    source = serializers.CharField(allow_blank=True)  # type: ignore[assignment]
    page = serializers.IntegerField(allow_null=True)
    text = serializers.CharField()
    enabled = serializers.BooleanField()


class VerdictSerializer(serializers.Serializer[Any]):
    stage = serializers.CharField(
        help_text=f"The first stage that lost the chunk, or `found`, where none has: {STAGES}."
    )
    reason = serializers.ChoiceField(_values(Reason), allow_null=True)
    sentence = serializers.CharField()


class StepSerializer(serializers.Serializer[Any]):
    stage = serializers.CharField(help_text=f"In this order: {STAGES}.")
    state = serializers.CharField(
        help_text=f"One of {STATES}. `weakened`: it went on, with less than it could have; `not_asked`: it was lost before."
    )
    reason = serializers.ChoiceField(_values(Reason), allow_null=True)
    sentence = serializers.CharField()
    figures = serializers.DictField(help_text="What the sentence is made of.")


class PlaceSerializer(serializers.Serializer[Any]):
    channel = serializers.CharField()
    query = serializers.IntegerField(help_text="0: the query itself; then its sub-queries.")
    state = serializers.CharField(help_text=f"One of {PLACE_STATES}.")
    rank = serializers.IntegerField(allow_null=True, help_text="Exact, among all that the search may find, from 1.")
    channel_rank = serializers.IntegerField(
        allow_null=True, help_text="As the channel gives it; an approximate index may miss the chunk."
    )
    score = serializers.FloatField(allow_null=True)
    total = serializers.IntegerField(allow_null=True)
    depth = serializers.IntegerField(help_text="The first so many become candidates.")
    is_indexed = serializers.BooleanField(help_text="An approximate index answers the channel.")
    error = serializers.CharField(allow_blank=True, help_text="A code, where the channel has failed.")


class TermSerializer(serializers.Serializer[Any]):
    term = serializers.CharField()
    in_query = serializers.IntegerField()
    is_other = serializers.BooleanField(help_text="It stands in another name of a concept, not in the query.")
    idf = serializers.FloatField()
    in_chunks = serializers.IntegerField()
    in_chunk = serializers.IntegerField()
    contribution = serializers.FloatField()
    is_written = serializers.BooleanField(help_text="The chunk’s text holds it, cut into other terms.")


class ChunkTermSerializer(serializers.Serializer[Any]):
    term = serializers.CharField()
    count = serializers.IntegerField()


class TermsSerializer(serializers.Serializer[Any]):
    query = TermSerializer(many=True)
    missing = serializers.ListField(child=serializers.CharField())
    chunk = ChunkTermSerializer(many=True)
    words = serializers.ListField(
        child=serializers.CharField(), help_text="In the dictionary, they would be terms of query and chunk."
    )


class RemedySerializer(serializers.Serializer[Any]):
    code = serializers.ChoiceField(_values(RemedyCode))
    about = serializers.CharField(allow_blank=True)
    settings = serializers.DictField(help_text="For a draft of the profile, or the next search’s `overrides`.")
    suggestions = serializers.ListField(child=serializers.CharField())
    chunk_id = serializers.IntegerField(allow_null=True)
    command = serializers.CharField(allow_blank=True)
    request = serializers.DictField(allow_null=True, help_text="What to search for instead.")


class WhyNotSerializer(serializers.Serializer[Any]):
    query = serializers.CharField()
    chunk = WhyNotChunkSerializer()
    found = serializers.BooleanField()
    rank = serializers.IntegerField(allow_null=True)
    verdict = VerdictSerializer()
    stages = StepSerializer(many=True)
    places = PlaceSerializer(many=True)
    terms = TermsSerializer(allow_null=True)
    remedies = RemedySerializer(many=True)
    profile = UsedProfileSerializer()
    degraded = DegradationSerializer(many=True)


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
