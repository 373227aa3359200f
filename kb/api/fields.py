"""Fields that take the JSON type they name and nothing that could be turned into it, and a serializer to match."""

import json
import math
from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

MAX_ID = 2**63 - 1
MAX_METADATA_CHARS = 32_000
MAX_METADATA_DEPTH = 10


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses what it does not know: a misspelt option must not pass for the default."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            known = {name for name, field in self.fields.items() if not field.read_only}
            unknown = [name for name in data if name not in known]
            if unknown:
                message = _("Unknown field: choose from %(known)s.") % {"known": ", ".join(sorted(known))}
                raise serializers.ValidationError({str(name)[:100]: [message] for name in unknown})
        return super().to_internal_value(data)


class StrictCharField(serializers.CharField):
    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class StrictIntegerField(serializers.IntegerField):
    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int | float) or data != data // 1:
            self.fail("invalid")
        return int(data)


class StrictFloatField(serializers.FloatField):
    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid")
        try:
            return float(data)
        except OverflowError:
            self.fail("invalid")


class StrictBooleanField(serializers.BooleanField):
    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


@extend_schema_field(OpenApiTypes.OBJECT)
class JsonObjectField(serializers.JSONField):
    """A JSON object that PostgreSQL can hold; in a form, its text."""

    default_error_messages = {
        "not_object": _("Give a JSON object."),
        "not_storable": _("It holds a number or a character that cannot be stored."),
        "too_deep": _("It is nested deeper than {depth} levels."),
        "too_long": _("It is longer than {length} characters."),
    }

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        try:
            value = super().to_internal_value(data)
        except RecursionError:
            self.fail("too_deep", depth=MAX_METADATA_DEPTH)
        if not isinstance(value, dict):
            self.fail("not_object")
        self._check(value, depth=1)
        if len(json.dumps(value, ensure_ascii=False)) > MAX_METADATA_CHARS:
            self.fail("too_long", length=MAX_METADATA_CHARS)
        return value

    def _check(self, value: Any, depth: int) -> None:
        if depth > MAX_METADATA_DEPTH:
            self.fail("too_deep", depth=MAX_METADATA_DEPTH)
        if isinstance(value, dict):
            self._check(list(value.keys()), depth)
            self._check(list(value.values()), depth)
        elif isinstance(value, list):
            for each in value:
                self._check(each, depth + 1)
        elif (isinstance(value, float) and not math.isfinite(value)) or (
            isinstance(value, str) and not _is_storable(value)
        ):
            self.fail("not_storable")


def _is_storable(text: str) -> bool:
    """PostgreSQL stores no NUL, and UTF-8 has no lone surrogates."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


class KnowledgeBaseIdsField(serializers.ListField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=StrictIntegerField(min_value=1, max_value=MAX_ID), **kwargs)


class TagsField(serializers.ListField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=StrictCharField(max_length=60), max_length=50, **kwargs)
