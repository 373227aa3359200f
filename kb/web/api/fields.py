"""Fields that take the JSON type they name and nothing that could be turned into it, and a serializer to match."""

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from django.utils.translation import gettext_lazy as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from kb.base.validators import validate_metadata

MAX_ID = 2**63 - 1


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

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        try:
            value: Any = super().to_internal_value(data)
            validate_metadata(value)
        except RecursionError as error:
            raise serializers.ValidationError(_("It is nested too deeply.")) from error
        except DjangoValidationError as error:
            raise serializers.ValidationError(error.messages) from error
        return dict(value)


class KnowledgeBaseIdsField(serializers.ListField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=StrictIntegerField(min_value=1, max_value=MAX_ID), **kwargs)


class TagsField(serializers.ListField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=StrictCharField(max_length=60), max_length=50, **kwargs)
