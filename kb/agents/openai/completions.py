"""An answer of an assistant, whole or in pieces, as clients of OpenAI's protocol read it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from uuid import uuid4

from django.utils import timezone
from typing_extensions import Doc

from kb.agents.openai.errors import AnswerUnwritten, error_body
from kb.answers.models import Message
from kb.answers.selectors import model_failure
from kb.assistants.models import Assistant
from kb.base.shapes import as_values
from retrieval.answer import check_citations

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Model:
    id: Annotated[str, Doc("The address of the assistant, to be given as `model`.")]
    created: Annotated[int, Doc("Seconds since 1970.")]
    object: Literal["model"] = "model"
    owned_by: str = "zhiku"

    @classmethod
    def of(cls, assistant: Assistant) -> "Model":
        return cls(assistant.slug, int(assistant.created_at.timestamp()))


@dataclass(frozen=True, slots=True)
class Models:
    data: list[Model]
    object: Literal["list"] = "list"


@dataclass(frozen=True, slots=True)
class Citation:
    """A source that the answer names by its number in brackets, such as [1]."""

    number: int
    label: Annotated[str, Doc("Where it stands, for readers: source or title, and page, or time in a recording.")]
    title: str
    source: str
    page: int | None
    seconds: int | None
    text: Annotated[str, Doc("As the chat model was given it.")]


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    message: AnswerMessage
    finish_reason: Annotated[Finish, Doc("`length` where the answer is not whole.")]
    index: int = 0
    logprobs: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletion:
    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    citations: Annotated[list[Citation], Doc("Empty also where the assistant shows no sources.")]
    object: Literal["chat.completion"] = "chat.completion"


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of an assistant, which all of its chunks share the id of."""

    assistant: Assistant
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(timezone.now().timestamp()))

    def whole(self, answer: Mapping[str, Any]) -> ChatCompletion:
        """Raises AnswerUnwritten."""
        if model_failure(answer["degraded"]):
            raise AnswerUnwritten
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.assistant.slug,
            choices=[Choice(AnswerMessage(answer["answer"]), _finish(answer))],
            usage=_usage(answer),
            citations=self._citations(answer),
        )

    def encoder(self, *, with_usage: bool) -> Callable[[str, Mapping[str, Any]], str]:
        """The function that writes the events of `stream_ask` as chunks."""

        def encoded(name: str, data: Mapping[str, Any]) -> str:
            match name:
                case "sources":
                    return _data(self._chunk({"role": "assistant", "content": ""}))
                case "delta":
                    return _data(self._chunk({"content": data["text"]}))
                case "error":
                    return _data(data)
            if model_failure(data["degraded"]):
                return _data(
                    error_body(str(AnswerUnwritten.default_detail), "server_error", AnswerUnwritten.default_code)
                )
            end = self._chunk({}, _finish(data)) | {"citations": as_values(self._citations(data))}
            usage = {**self._chunk({}), "choices": [], "usage": as_values(_usage(data))}
            return _data(end) + (_data(usage) if with_usage else "") + "data: [DONE]\n\n"

        return encoded

    def _chunk(self, delta: Mapping[str, Any], finish: Finish | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        common = {"id": self.id, "created": self.created, "model": self.assistant.slug}
        return {**common, "object": "chat.completion.chunk", "choices": [choice]}

    def _citations(self, answer: Mapping[str, Any]) -> list[Citation]:
        """The sources that the text cites, as far as the assistant shows sources at all."""
        if self.assistant.published_settings.shows == "nothing":
            return []
        by_number = {source["number"]: source for source in answer["sources"]}
        shown = Citation.__slots__
        cited = sorted(check_citations(answer["answer"], by_number).cited)
        return [Citation(**{name: by_number[number][name] for name in shown}) for number in cited]


def _finish(answer: Mapping[str, Any]) -> Finish:
    return "stop" if answer["status"] == Message.Status.DONE else "length"


def _usage(answer: Mapping[str, Any]) -> Usage:
    read, wrote = answer["input_tokens"], answer["output_tokens"]
    return Usage(read, wrote, read + wrote)


def _data(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
