"""Answers as dataclasses: each is declared once, and its JSON and the schema of the API are made of that."""

from collections.abc import Mapping
from typing import Any

import msgspec
from django.utils.translation import gettext

from retrieval.errors import Message

# Marks an enumeration that the schema shows as a text, since others of that name have other members.
AS_TEXT = "text"


def as_values(answer: Any) -> Any:
    """An answer as the dictionaries, lists and texts that its JSON holds."""
    return msgspec.json.decode(as_json(answer))


def as_json(answer: Any) -> bytes:
    return msgspec.json.encode(answer, enc_hook=_plain)


def _plain(value: Any) -> Any:
    """What msgspec does not know: messages and other translations, mappings and NumPy's numbers."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Message):
        return value.translated(gettext)
    return value.item() if hasattr(value, "item") else str(value)
