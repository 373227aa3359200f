from typing import Any

from django.utils.translation import gettext, gettext_lazy as _
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from kb.base.shapes import as_values
from kb.quality.why_not.services.places import MOST_CHARACTERS, Stage, the_chunk
from kb.quality.why_not.services.remedies import WhyNotAnswer, answer_of
from kb.quality.why_not.services.trials import MOST_TRIALS
from kb.quality.why_not.services.walk import why_not_found
from kb.search.api import SearchRequestSerializer
from kb.web.api.callers import spend_more
from kb.web.api.fields import MAX_ID, StrictCharField, StrictIntegerField, answers, shape
from kb.web.api.views import ApiView, valid


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
        if (attrs.get("chunk_id") is None) == (not attrs.get("text")):
            raise serializers.ValidationError({"chunk_id": [_("Name the chunk: give either “chunk_id” or “text”.")]})
        return super().validate(attrs)


@extend_schema_view(
    post=extend_schema(
        operation_id="why_not",
        summary="Say why a search does not find a chunk",
        description="Runs the search, without logging it, and names the first stage that lost the chunk, with exact ranks "
        "however deep it stands, and what would help. A key with the scope read suffices. Against a rate limit a chunk that "
        f"was lost counts as {MOST_TRIALS} requests more, for the searches that try what would help.",
        request=WhyNotRequestSerializer,
        responses=answers({200: shape(WhyNotAnswer, "WhyNot")}, 400, 404, 413, 415, 503),
        examples=[
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
        ],
    )
)
class WhyNotView(ApiView):
    post_reads = True

    def post(self, request: Request) -> Response:
        serializer = valid(WhyNotRequestSerializer, request.data)
        search, asked = serializer.to_request(), serializer.validated_data
        chunk_id = asked.get("chunk_id") or the_chunk(self.principal, search.knowledge_base_ids, asked["text"])
        why = why_not_found(self.principal, search, chunk_id)
        if why.verdict.stage is not Stage.FOUND:
            refusal = gettext(
                "What would help is tried in up to %(trials)d searches, which count as as many requests, more than are "
                "left: wait as Retry-After says."
            )
            spend_more(request, MOST_TRIALS, refusal % {"trials": MOST_TRIALS})
        return Response(as_values(answer_of(why)))
