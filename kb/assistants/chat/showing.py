"""What an assistant lets its visitors see of answers."""

from collections.abc import Iterable, Mapping
from typing import Any

from kb.answers.models import Message
from kb.answers.selectors import model_failure
from kb.assistants.chat.shapes import SentAnswer, SentSource
from kb.assistants.models import Assistant
from kb.assistants.services.asking import reader_of
from kb.assistants.services.visitors import follow_ups
from kb.base.text import web_address
from retrieval.errors import DegradationCode
from retrieval.highlight import without_rules


class Showing:
    """What an assistant lets its visitors see of answers now, however they were stored."""

    def __init__(self, assistant: Assistant) -> None:
        self.settings = assistant.published_settings
        self.reader = reader_of(assistant, assistant.publisher)

    def sources(self, stored: Iterable[Mapping[str, Any]]) -> list[SentSource]:
        return [self._source(each) for each in stored]

    def near_misses(self, stored: Iterable[Mapping[str, Any]]) -> list[SentSource]:
        return self.sources(stored) if self.settings.near_misses and self.settings.shows != "nothing" else []

    def answer(self, data: Mapping[str, Any], **more: Any) -> SentAnswer:
        """Of the data of the event `done`, or what `stored_answer` makes of a message."""
        failure = model_failure(data["degraded"]) if data["status"] == Message.Status.DONE else None
        unwritten = failure and ("listed" if failure["code"] == DegradationCode.LLM_NOT_CONFIGURED else "unwritten")
        return SentAnswer(
            message_id=data["message_id"],
            conversation_id=data["conversation_id"],
            status=unwritten or data["status"],
            answer="" if unwritten else data["answer"],
            sources=self.sources(data["sources"]),
            near_misses=() if data["hit"] else self.near_misses(data["near_misses"]),
            **more,
        )

    def follow_ups(self, message: Message) -> list[str]:
        return follow_ups(self.reader, self.settings, message)

    def _source(self, stored: Mapping[str, Any]) -> SentSource:
        number = stored["number"]
        if self.settings.shows == "nothing" or stored["knowledge_base_id"] not in (self.reader.kb_ids or ()):
            return SentSource(number=number)
        return SentSource(
            number=number,
            label=stored["label"],
            title=stored["title"],
            text=without_rules(stored["text"]),
            url=web_address(stored.get("source", "")),
            has_page=self.settings.shows == "page" and stored["chunk_id"] is not None,
        )
