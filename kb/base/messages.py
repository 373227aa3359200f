"""Messages of rows and responses, in the language of whoever reads them."""

import json
from typing import Any

from django.db import models
from django.utils.translation import gettext

from retrieval.errors import Message

# No sentence begins so, and PostgreSQL stores it in a column of text.
_MARK = "\x1fmessage:"


def shown(text: str) -> str:
    """A message in the language in force; a sentence that was stored as such, where its translation is known."""
    if isinstance(text, Message):
        return text.translated(gettext)
    return gettext(text) if text else ""


class MessageField(models.TextField):  # type: ignore[type-arg]
    """Text that may be a `Message`: stored with its template and arguments, so that each reader gets their own language.

    To the database and to migrations it is a column of text. Rows of earlier versions hold plain sentences.
    """

    def deconstruct(self) -> tuple[str, str, list[Any], dict[str, Any]]:
        name, _path, positional, named = super().deconstruct()
        return name, "django.db.models.TextField", list(positional), named

    def from_db_value(self, value: str | None, *_: Any) -> str | None:
        if value is None or not value.startswith(_MARK):
            return value
        return Message.from_dict(json.loads(value.removeprefix(_MARK)))

    def get_prep_value(self, value: Any) -> Any:
        if isinstance(value, Message):
            return _MARK + json.dumps(value.as_dict(), ensure_ascii=False)
        return super().get_prep_value(value)
