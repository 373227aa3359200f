"""Errors as Dify reads them: {"error_code", "error_msg"}."""

import re
from collections.abc import Mapping
from typing import Any, Final

from django.utils.translation import gettext_lazy as _
from rest_framework import exceptions, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from kb.access.models import ApiKey, User
from kb.base.errors import NotVisible
from kb.base.shapes import as_values
from kb.base.text import MAX_CHARS, MAX_CONDITIONS, InvalidFilter
from kb.index.conditions import MAX_NAMES, Logic, Operator
from kb.index.filters import Filters
from kb.search.services.search import MAX_QUERY_CHARS, SearchRequest, respond
from kb.web.api.callers import ApiKeyAuthentication
from kb.web.api.errors import exception_handler
from kb.web.api.fields import MAX_ID, ListField, StrictCharField, StrictFloatField, StrictIntegerField
from kb.web.api.views import AnyAccept, ApiView, valid
from retrieval.packing import inert
from retrieval.selection import ScoreScale

MALFORMED_AUTHORIZATION = 1001
OWN_CODES = {status.HTTP_403_FORBIDDEN: 1002, status.HTTP_404_NOT_FOUND: 2001}


class MalformedAuthorization(exceptions.AuthenticationFailed):
    """The header holds no key at all, whereas one that opens nothing is an AuthenticationFailed."""


def dify_exception_handler(error: Exception, context: Mapping[str, Any]) -> Response:
    """The API's own answer to an error in Dify's form.

    Dify has codes for a key and for a knowledge base that are not there; any other error has its HTTP status for a code. It
    takes 403, and not 401, for a key that does not open.
    """
    response = exception_handler(error, context)
    if response.status_code == status.HTTP_401_UNAUTHORIZED:
        response.status_code = status.HTTP_403_FORBIDDEN
        del response.headers["WWW-Authenticate"]
    # One sentence: Dify shows nothing else.
    fields = "; ".join(f"{name}: {' '.join(messages)}" for name, messages in response.data.get("fields", {}).items())
    is_malformed = isinstance(error, MalformedAuthorization)
    code = MALFORMED_AUTHORIZATION if is_malformed else OWN_CODES.get(response.status_code, response.status_code)
    response.data = {"error_code": code, "error_msg": fields or response.data["detail"]}
    return response


class DifyAuthentication(ApiKeyAuthentication):
    """An API key and nothing else; Dify tells a header that it cannot read from a key that does not open."""

    def authenticate(self, request: Request) -> tuple[User, ApiKey] | None:
        if not re.fullmatch(r"(?i:bearer) +\S+", request.headers.get("Authorization", "").strip()):
            raise MalformedAuthorization(
                _("Invalid Authorization header: send “Bearer ”, with a space, and an API key of this server.")
            )
        return super().authenticate(request)


# What a document has that is first in one list of reciprocal ranks with k = 60, which is worth a half.
RRF_HALF = 1 / 61


def unit_score(score: float, scale: str) -> float:
    """A score from 0 to 1, in the same order as those of its scale.

    The scales that a threshold applies to are from 0 to 1 as they are, but for cosines below 0, which are 0 here. Fused
    scores have no upper end: x / (x + 1/61) takes them there.
    """
    score = max(0.0, score)
    return score / (score + RRF_HALF) if scale == ScoreScale.RRF else min(1.0, score)


def _record(result: Mapping[str, Any], notes: Mapping[str, Any]) -> dict[str, Any]:
    source, document_id = result["source"], result["document_id"]
    return {
        "content": inert(result["text"]),
        "score": unit_score(result["score"], result["score_scale"]),
        "title": inert(result["title"] or source),
        "metadata": {
            **result["metadata"],
            # What a live or external source has found is no document here; its address tells it from others.
            "document_id": str(document_id) if document_id is not None else f"external:{source}",
            "chunk_id": str(result["chunk_id"]) if result["chunk_id"] is not None else "",
            "knowledge_base_id": str(result["knowledge_base_id"]),
            "path": source,
            "source": source,
            "page": result["page"],
            "score_scale": result["score_scale"],
            "relevance": result["relevance"],
            **notes,
        },
    }


# Dify's comparisons, some of which its documents write in two ways.
COMPARISONS: Final[Mapping[str, Operator]] = {
    "contains": Operator.CONTAINS,
    "not contains": Operator.NOT_CONTAINS,
    "start with": Operator.STARTS_WITH,
    "end with": Operator.ENDS_WITH,
    "is": Operator.IS,
    "is not": Operator.IS_NOT,
    "in": Operator.IN,
    "not in": Operator.NOT_IN,
    "empty": Operator.EMPTY,
    "null": Operator.EMPTY,
    "not empty": Operator.NOT_EMPTY,
    "not null": Operator.NOT_EMPTY,
    "=": Operator.EQ,
    "≠": Operator.NE,
    "!=": Operator.NE,
    ">": Operator.GT,
    "\u203a": Operator.GT,
    "<": Operator.LT,
    "\u2039": Operator.LT,
    "≥": Operator.GTE,
    ">=": Operator.GTE,
    "≤": Operator.LTE,
    "<=": Operator.LTE,
    "before": Operator.BEFORE,
    "after": Operator.AFTER,
}


class NamesField(serializers.Field[Any, Any, Any, Any]):
    default_error_messages = {"invalid": _("Give the name of a metadata field, or a list of up to {most} names.")}

    def to_internal_value(self, data: Any) -> list[str]:
        names = [data] if isinstance(data, str) else data
        if not isinstance(names, list) or not 1 <= len(names) <= MAX_NAMES:
            self.fail("invalid", most=MAX_NAMES)
        if not all(isinstance(each, str) and 0 < len(each) <= MAX_CHARS for each in names):
            self.fail("invalid", most=MAX_NAMES)
        return names


class ComparisonField(serializers.Field[Any, Any, Any, Any]):
    default_error_messages = {"invalid": _("Choose from {names}.")}

    def to_internal_value(self, data: Any) -> Operator:
        comparison = COMPARISONS.get(" ".join(data.lower().split())) if isinstance(data, str) else None
        if comparison is None:
            self.fail("invalid", names=", ".join(COMPARISONS))
        return comparison


class ConditionSerializer(serializers.Serializer[Any]):
    name = NamesField()
    comparison_operator = ComparisonField()
    value = serializers.JSONField(required=False, allow_null=True)


class MetadataConditionSerializer(serializers.Serializer[Any]):
    logical_operator = serializers.ChoiceField([logic.value for logic in Logic], required=False, allow_null=True)
    conditions = ListField(child=ConditionSerializer(), required=False, allow_null=True, max_length=MAX_CONDITIONS)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        conditions = [
            {"names": each["name"], "comparison": each["comparison_operator"], "value": each.get("value")}
            for each in attrs.get("conditions") or ()
        ]
        matching = {"logic": attrs.get("logical_operator"), "conditions": conditions}
        try:
            return {"filters": Filters.parse({"matching": matching})}
        except InvalidFilter as error:
            path = re.sub(r"\[(\d+)\]", r".\1", error.field.removeprefix("matching."))
            raise serializers.ValidationError({path: [str(error).replace("matching.", "")]}) from error


class RetrievalSettingSerializer(serializers.Serializer[Any]):
    top_k = StrictIntegerField(min_value=1, max_value=200, required=False, allow_null=True)
    score_threshold = StrictFloatField(min_value=0, max_value=1, required=False, allow_null=True)


class RetrievalSerializer(serializers.Serializer[Any]):
    knowledge_id = StrictCharField(max_length=200)
    query = StrictCharField(max_length=MAX_QUERY_CHARS)
    retrieval_setting = RetrievalSettingSerializer(required=False, allow_null=True)
    metadata_condition = MetadataConditionSerializer(required=False, allow_null=True)

    def to_request(self) -> SearchRequest:
        """The validated request; raises NotVisible where the id is none of this server's."""
        data: dict[str, Any] = self.validated_data
        text = data["knowledge_id"]
        number = int(text) if re.fullmatch(r"0*[1-9][0-9]{0,18}", text.strip()) else 0
        if not 0 < number <= MAX_ID:
            raise NotVisible(_("There is no knowledge base with the id %(ids)s.") % {"ids": text})
        setting = data.get("retrieval_setting") or {}
        filters: Filters | None = (data.get("metadata_condition") or {}).get("filters")
        return SearchRequest(
            query=data["query"],
            knowledge_base_ids=[number],
            overrides={name: value for name, value in setting.items() if value is not None},
            filters=None if filters is None or filters.is_empty else filters,
        )


class DifyRetrievalView(ApiView):
    """Dify's External Knowledge API: the same search as everywhere, in its form.

    It is no part of the OpenAPI description, for Dify has its own.
    """

    authentication_classes = [DifyAuthentication]
    content_negotiation_class = AnyAccept
    post_reads = True
    schema = None

    def get_exception_handler(self) -> Any:
        return dify_exception_handler

    def post(self, request: Request) -> Response:
        response = as_values(respond(self.principal, valid(RetrievalSerializer, request.data).to_request()))
        headers, notes = {"Zhiku-Trace-Id": response["trace_id"]}, {"trace_id": response["trace_id"]}
        if degraded := list(dict.fromkeys(each["code"] for each in response["degraded"])):
            headers["Zhiku-Degraded"] = ", ".join(degraded)
            notes["degraded"] = degraded
        return Response({"records": [_record(result, notes) for result in response["results"]]}, headers=headers)
