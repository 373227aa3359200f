"""What Dify sends. It leaves out keys or sends null where something is not set up, and may send keys that are new."""

import re
from collections.abc import Mapping
from typing import Any, Final

from django.utils.translation import gettext_lazy as _
from rest_framework import serializers

from kb.base.errors import NotVisible
from kb.base.filter_values import MAX_CHARS, MAX_CONDITIONS, InvalidFilter
from kb.index.filters import Filters
from kb.index.matching import MAX_NAMES, Comparison, Logic
from kb.search.services.search import SearchRequest
from kb.web.api.fields import MAX_ID, StrictCharField, StrictFloatField, StrictIntegerField

COMPARISONS: Final[Mapping[str, Comparison]] = {
    "contains": Comparison.CONTAINS,
    "not contains": Comparison.NOT_CONTAINS,
    "start with": Comparison.STARTS_WITH,
    "end with": Comparison.ENDS_WITH,
    "is": Comparison.IS,
    "is not": Comparison.IS_NOT,
    "in": Comparison.IN,
    "not in": Comparison.NOT_IN,
    "empty": Comparison.EMPTY,
    "null": Comparison.EMPTY,
    "not empty": Comparison.NOT_EMPTY,
    "not null": Comparison.NOT_EMPTY,
    "=": Comparison.EQ,
    "≠": Comparison.NE,
    "!=": Comparison.NE,
    ">": Comparison.GT,
    "\u203a": Comparison.GT,
    "<": Comparison.LT,
    "\u2039": Comparison.LT,
    "≥": Comparison.GTE,
    ">=": Comparison.GTE,
    "≤": Comparison.LTE,
    "<=": Comparison.LTE,
    "before": Comparison.BEFORE,
    "after": Comparison.AFTER,
}
"""Dify's comparisons, some of which its documents write in two ways."""

_ID = re.compile(r"0*[1-9][0-9]{0,18}")


class NamesField(serializers.Field[Any, Any, Any, Any]):
    """A name, or a list of names."""

    default_error_messages = {"invalid": _("Give the name of a metadata field, or a list of up to {most} names.")}

    def to_internal_value(self, data: Any) -> list[str]:
        names = [data] if isinstance(data, str) else data
        if not isinstance(names, list) or not 1 <= len(names) <= MAX_NAMES:
            self.fail("invalid", most=MAX_NAMES)
        if not all(isinstance(name, str) and 0 < len(name) <= MAX_CHARS for name in names):
            self.fail("invalid", most=MAX_NAMES)
        return names


class ComparisonField(serializers.Field[Any, Any, Any, Any]):
    default_error_messages = {"invalid": _("Choose from {names}.")}

    def to_internal_value(self, data: Any) -> Comparison:
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
    conditions = serializers.ListField(
        child=ConditionSerializer(), required=False, allow_null=True, max_length=MAX_CONDITIONS
    )

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
    query = StrictCharField(max_length=2_000)
    retrieval_setting = RetrievalSettingSerializer(required=False, allow_null=True)
    metadata_condition = MetadataConditionSerializer(required=False, allow_null=True)

    def to_request(self) -> SearchRequest:
        """The validated request.

        Raises:
            NotVisible: the id is none of this server's.
        """
        data: dict[str, Any] = self.validated_data
        setting = data.get("retrieval_setting") or {}
        filters: Filters | None = (data.get("metadata_condition") or {}).get("filters")
        return SearchRequest(
            query=data["query"],
            knowledge_base_ids=[_knowledge_base_id(data["knowledge_id"])],
            overrides={name: value for name, value in setting.items() if value is not None},
            filters=None if filters is None or filters.is_empty else filters,
        )


def _knowledge_base_id(text: str) -> int:
    number = int(text) if _ID.fullmatch(text.strip()) else 0
    if not 0 < number <= MAX_ID:
        raise NotVisible(_("There is no knowledge base with the id %(ids)s.") % {"ids": text})
    return number
