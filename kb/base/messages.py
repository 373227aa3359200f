"""Messages of rows and responses, in the language of whoever reads them."""

import json
from collections.abc import Iterable
from typing import Any

from django.db import models
from django.utils.translation import gettext

from retrieval.errors import Message, Message as _

# No sentence begins so, and PostgreSQL stores it in a column of text.
_MARK = "\x1fmessage:"


def shown(text: str) -> str:
    """A message in the language in force; a sentence that was stored as such, where its translation is known."""
    if isinstance(text, Message):
        return text.translated(gettext)
    return gettext(text) if text else ""


def joined(messages: Iterable[str]) -> str:
    """Messages after one another, of which each stays one; there is at least one."""
    first, *rest = messages
    for each in rest:
        first = _("{first}; {second}", first=first, second=each)
    return first


def stored(text: str) -> str:
    """A message as plain text that keeps its template and arguments; any other text as it is."""
    return _MARK + json.dumps(text.as_dict(), ensure_ascii=False) if isinstance(text, Message) else text


def restored(text: str) -> str:
    """What `stored` was given."""
    return Message.from_dict(json.loads(text.removeprefix(_MARK))) if text.startswith(_MARK) else text


class MessageField(models.TextField):  # type: ignore[type-arg]
    """Text that may be a `Message`: stored with its template and arguments, so that each reader gets their own language.

    To the database and to migrations it is a column of text. Rows of earlier versions hold plain sentences.
    """

    def deconstruct(self) -> tuple[str, str, list[Any], dict[str, Any]]:
        name, _path, positional, named = super().deconstruct()
        return name, "django.db.models.TextField", list(positional), named

    def from_db_value(self, value: str | None, *_: Any) -> str | None:
        return None if value is None else restored(value)

    def get_prep_value(self, value: Any) -> Any:
        return super().get_prep_value(stored(value) if isinstance(value, Message) else value)
