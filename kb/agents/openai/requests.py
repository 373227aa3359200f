"""What a chat completion asks for, and what of the protocol an assistant cannot do, which is refused by name."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.utils.translation import gettext_lazy as _
from rest_framework import serializers

from kb.assistants.services.asking import Asked
from kb.search.services.search import MAX_QUERY_CHARS
from kb.web.api.fields import ListField, StrictBooleanField, StrictCharField, StrictFloatField, StrictIntegerField
from retrieval.types import Turn

MOST_MESSAGES, MESSAGE_CHARACTERS = 500, 100_000
INSTRUCTIONS_CHARACTERS = 4_000

# What is refused, unless it is left out, null, or has a value of which the test says that it changes nothing.
REFUSED: Final[Mapping[str, Callable[[Any], bool]]] = {
    "tools": lambda value: value == [],
    "tool_choice": lambda value: value in ("none", "auto"),
    "functions": lambda value: value == [],
    "function_call": lambda value: value in ("none", "auto"),
    "n": lambda value: value == 1,
    "logprobs": lambda value: value is False,
    "top_logprobs": lambda value: value == 0,
    "response_format": lambda value: value == {"type": "text"},
    "modalities": lambda value: value == ["text"],
    "audio": lambda _value: False,
    "prediction": lambda _value: False,
    "web_search_options": lambda _value: False,
}


class TextField(serializers.Field[Any, Any, Any, Any]):
    """A text, or a list of parts that are texts."""

    default_error_messages = {
        "invalid": _("Give a text, or a list of parts of the type text."),
        "not_text": _("This assistant reads text only: leave out parts of the type {type}."),
        "max_length": _("Make this shorter: it has more than {most} characters."),
    }

    def to_internal_value(self, data: Any) -> str:
        parts = [{"type": "text", "text": data}] if isinstance(data, str) else data
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            self.fail("invalid")
        if len(parts) > MESSAGE_CHARACTERS:  # each is at least a line break
            self.fail("max_length", most=MESSAGE_CHARACTERS)
        for part in parts:
            if part.get("type") not in {"text", "input_text"}:
                self.fail("not_text", type=str(part.get("type"))[:40])
            if not isinstance(part.get("text"), str):
                self.fail("invalid")
        text = "\n".join(part["text"] for part in parts)
        if len(text) > MESSAGE_CHARACTERS:
            self.fail("max_length", most=MESSAGE_CHARACTERS)
        return text


class MessageSerializer(serializers.Serializer[Any]):
    role = serializers.ChoiceField(
        ["system", "developer", "user", "assistant"],
        error_messages={
            "invalid_choice": _("Messages of the role “{input}” cannot be read: an assistant calls no tools.")
        },
    )
    content = TextField()


class StreamOptionsSerializer(serializers.Serializer[Any]):
    include_usage = StrictBooleanField(required=False)


class CompletionSerializer(serializers.Serializer[Any]):
    """Further fields of the protocol, such as `top_p`, `seed` or `user`, change nothing here."""

    model = StrictCharField(max_length=60)
    messages = ListField(child=MessageSerializer(), min_length=1, max_length=MOST_MESSAGES)
    stream = StrictBooleanField(required=False, allow_null=True)
    stream_options = StreamOptionsSerializer(required=False, allow_null=True)
    temperature = StrictFloatField(min_value=0, max_value=2, required=False, allow_null=True)
    max_tokens = StrictIntegerField(min_value=1, max_value=1_000_000, required=False, allow_null=True)
    max_completion_tokens = StrictIntegerField(min_value=1, max_value=1_000_000, required=False, allow_null=True)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        for name, changes_nothing in REFUSED.items():
            value = self.initial_data.get(name)
            if value is not None and not changes_nothing(value):
                message = _("An assistant cannot do this: leave “%(name)s” out.") % {"name": name}
                raise serializers.ValidationError({name: [message]}, "unsupported_parameter")
        last = attrs["messages"][-1]
        if last["role"] != "user" or not last["content"].strip():
            raise serializers.ValidationError(
                {"messages": [_("The last message is the question: a text of the role user.")]}
            )
        _require_short("messages", last["content"], MAX_QUERY_CHARS)
        _require_short("messages", self._instructions(attrs), INSTRUCTIONS_CHARACTERS)
        return attrs

    @property
    def has_usage(self) -> bool:
        return bool((self.validated_data.get("stream_options") or {}).get("include_usage"))

    def to_asked(self) -> Asked:
        data = self.validated_data
        history = [
            Turn(each["role"], each["content"])
            for each in data["messages"][:-1]
            if each["role"] in {"user", "assistant"} and each["content"].strip()
        ]
        instructions = self._instructions(data)
        return Asked(
            question=data["messages"][-1]["content"],
            history=history,
            instructions=[instructions] if instructions else [],
            temperature=data.get("temperature"),
            answer_tokens=data.get("max_completion_tokens") or data.get("max_tokens"),
        )

    @staticmethod
    def _instructions(data: Mapping[str, Any]) -> str:
        texts = [each["content"].strip() for each in data["messages"] if each["role"] in {"system", "developer"}]
        return "\n\n".join(filter(None, texts))


def _require_short(name: str, text: str, most: int) -> None:
    if len(text) > most:
        message = TextField.default_error_messages["max_length"].format(most=most)
        raise serializers.ValidationError({name: [message]}, "string_above_max_length")
