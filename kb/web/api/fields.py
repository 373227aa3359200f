"""Strict fields and serializers, which take the JSON type they name only, and the responses of the published schema."""

import functools
from collections.abc import Mapping
from functools import cached_property
from typing import IO, Any, get_args, get_type_hints

from django.core.exceptions import ValidationError as DjangoValidationError
from django.utils.translation import get_language, gettext_lazy as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema_field
from msgspec import UnsetType
from rest_framework import serializers
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser
from rest_framework.utils.serializer_helpers import BindingDict
from rest_framework_dataclasses.field_utils import TypeInfo, get_type_info
from rest_framework_dataclasses.serializers import DataclassSerializer
from typing_extensions import Doc

from kb.base.shapes import AS_TEXT, as_values
from kb.base.text import validate_metadata
from retrieval.errors import Degradation

MAX_ID = 2**63 - 1
MOST_UNKNOWN = 20  # fields that an error names


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses what it does not know: a misspelt option must not pass for the default."""

    @cached_property
    def fields(self) -> BindingDict:
        """Those of the class where nothing can change them, since to copy them takes longer than to validate a request."""
        if self.instance is not None or self.partial or self.parent is not None or self._context:
            return super().fields
        return _shared_fields(type(self), get_language())

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping):
            known = {name for name, field in self.fields.items() if not field.read_only}
            unknown = [name for name in data if name not in known][:MOST_UNKNOWN]
            if unknown:
                message = _("Unknown field: choose from %(known)s.") % {"known": ", ".join(sorted(known))}
                raise serializers.ValidationError({str(name)[:100]: [message] for name in unknown})
        return super().to_internal_value(data)


@functools.cache
def _shared_fields(serializer_class: type[StrictSerializer], _language: str | None) -> BindingDict:
    """Of a language: the messages of limits are formatted once (`lazy_format`), in the language of that moment."""
    return super(StrictSerializer, serializer_class()).fields


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


class IdField(StrictIntegerField):
    """The id of a row, as a number or by its digits, which is what a form has."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"min_value": 1, "max_value": MAX_ID, **kwargs})

    def to_internal_value(self, data: Any) -> int:
        is_digits = isinstance(data, str) and data.isascii() and data.isdigit() and len(data) < len(str(MAX_ID))
        return super().to_internal_value(int(data) if is_digits else data)


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


class ListField(serializers.ListField):
    """Is measured before its items are looked at, since of a million that takes seconds."""

    def to_internal_value(self, data: Any) -> list[Any]:
        if self.max_length is not None and isinstance(data, list) and len(data) > self.max_length:
            self.fail("max_length", max_length=self.max_length)
        return super().to_internal_value(data)


class KnowledgeBaseIdsField(ListField):
    child = StrictIntegerField(min_value=1, max_value=MAX_ID)


class TagsField(ListField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=StrictCharField(max_length=60), max_length=50, **kwargs)


class ProblemSerializer(serializers.Serializer[Any]):
    code = serializers.CharField(help_text="Stable, for programs.")
    detail = serializers.CharField(help_text="What is wrong, as a sentence for people.")
    remedy = serializers.CharField(help_text="What the caller can do, as a sentence for people.")


class InvalidSerializer(ProblemSerializer):
    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        """Adds `fields`, a name that no class attribute of a serializer can have."""
        messages = serializers.ListField(child=serializers.CharField())
        by_path = serializers.DictField(
            child=messages, required=False, help_text="What is wrong with each field, by dotted path."
        )
        return {**super().get_fields(), "fields": by_path}


class ConflictSerializer(ProblemSerializer):
    document_id = serializers.IntegerField(required=False, help_text="The document that holds the same bytes.")


class StaleSerializer(ProblemSerializer):
    etag = serializers.CharField(required=False, help_text="Of what it is now.")


class FaultSerializer(ProblemSerializer):
    request_id = serializers.CharField(required=False, help_text="That the server’s log knows the request by.")


class ShapeSerializer(DataclassSerializer[Any]):
    """What the schema says of an answer that is declared as a dataclass; all of its fields are there, but for what may be UNSET."""

    serializer_field_mapping = {
        **DataclassSerializer.serializer_field_mapping,
        Any: serializers.JSONField,
        list: serializers.ListField,
        dict: serializers.DictField,
    }

    @property
    def serializer_dataclass_field(self) -> type[DataclassSerializer[Any]]:
        return ShapeSerializer

    @cached_property
    def _remarks(self) -> dict[str, Any]:
        hints = get_type_hints(self.dataclass_definition.dataclass_type, include_extras=True)
        return {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}

    def create_field(self, field_name: str, extra_kwargs: dict[str, Any]) -> Any:
        said = next((each.documentation for each in self._remarks[field_name] if isinstance(each, Doc)), None)
        return super().create_field(field_name, extra_kwargs if said is None else {**extra_kwargs, "help_text": said})

    def build_typed_field(self, field_name: str, type_info: TypeInfo, extra_kwargs: dict[str, Any]) -> tuple[Any, Any]:
        field, options = super().build_typed_field(field_name, type_info, extra_kwargs)
        options = {name: value for name, value in options.items() if name not in ("container", "required")}
        return field, options | ({"required": False} if UnsetType in get_args(type_info.base_type) else {})

    def build_standard_field(self, field_name: str, type_info: TypeInfo) -> tuple[Any, Any]:
        field, options = super().build_standard_field(field_name, type_info)
        return field, options | ({"allow_null": True} if type_info.base_type is Any else {})

    def build_union_field(self, field_name: str, type_info: TypeInfo, extra_kwargs: dict[str, Any]) -> tuple[Any, Any]:
        (given,) = (each for each in get_args(type_info.base_type) if each is not UnsetType)
        return self.build_typed_field(field_name, get_type_info(given), extra_kwargs)

    def build_enum_field(self, field_name: str, type_info: TypeInfo) -> tuple[Any, Any]:
        if AS_TEXT in self._remarks[field_name]:
            return serializers.CharField, {}
        members: Any = type_info.base_type
        choices = getattr(members, "choices", None) or [(each.value, each.value) for each in members]
        return serializers.ChoiceField, {"choices": choices}


@functools.cache
def shape(answer: type, name: str = "") -> type[ShapeSerializer]:
    """The serializer of an answer's dataclass; the schema's component is named as that, or by `name`."""
    name = name or answer.__name__
    meta = type("Meta", (), {"dataclass": answer, "ref_name": name})
    return type(f"{name}Serializer", (ShapeSerializer,), {"Meta": meta})


class DegradationSerializer(shape(Degradation)):  # type: ignore[misc]
    """Of a row, which keeps what a degradation is made of."""

    def to_representation(self, instance: Mapping[str, Any]) -> Any:
        return as_values(Degradation.from_dict(instance))


class UnavailableSerializer(ProblemSerializer):
    degraded = DegradationSerializer(many=True, required=False)


PROBLEMS = {
    400: OpenApiResponse(InvalidSerializer, "The request is not valid."),
    401: OpenApiResponse(ProblemSerializer, "No API key and no session, or one that is not valid."),
    403: OpenApiResponse(ProblemSerializer, "The caller may see this, but not do it."),
    404: OpenApiResponse(ProblemSerializer, "It does not exist, or the caller may not see it."),
    406: OpenApiResponse(ProblemSerializer, "The Accept header names nothing that the endpoint can send."),
    409: OpenApiResponse(ConflictSerializer, "It is there already, or was changed meanwhile."),
    411: OpenApiResponse(ProblemSerializer, "The body has no length."),
    412: OpenApiResponse(StaleSerializer, "It has changed since it was read: If-Match names another ETag."),
    413: OpenApiResponse(ProblemSerializer, "The body is too large."),
    415: OpenApiResponse(ProblemSerializer, "The type of the body or of the file is not supported."),
    422: OpenApiResponse(ProblemSerializer, "The Idempotency-Key was sent with another request before."),
    429: OpenApiResponse(ProblemSerializer, "Too many requests: Retry-After says when to go on."),
    500: OpenApiResponse(FaultSerializer, "A fault of the server."),
    503: OpenApiResponse(UnavailableSerializer, "Not now: Retry-After says when to try again."),
}

NOT_MODIFIED = OpenApiResponse(description="It is as If-None-Match says.")
# What any operation for callers may answer. 500 is no answer that a caller can plan for.
ALWAYS = (401, 406, 429, 503)


def answers(success: dict[Any, Any], *problems: int) -> dict[Any, Any]:
    return success | {status: PROBLEMS[status] for status in sorted({*ALWAYS, *problems})}


MAX_JSON_DEPTH = 32


class ShallowJSONParser(JSONParser):
    """JSON whose nesting cannot exhaust the interpreter's stack, nor that of what reads the values."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            value = super().parse(stream, media_type, parser_context)
        except RecursionError as error:
            raise _too_deep() from error
        if _is_deeper(value, MAX_JSON_DEPTH):
            raise _too_deep()
        return value


def _is_deeper(value: Any, most: int) -> bool:
    """Whether lists and objects are nested more than so many levels deep; goes level by level, without recursion."""
    level = [value]
    for _depth in range(most):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not any(isinstance(each, dict | list) for each in level):
            return False
    return True


def _too_deep() -> ParseError:
    message = _("The JSON is nested too deeply: at most %(depth)d levels are read.")
    return ParseError(message % {"depth": MAX_JSON_DEPTH})
