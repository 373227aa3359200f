"""Texts that people and programs give: compared as names, and checked for what PostgreSQL can store."""

import json
import math
from typing import Any

from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from retrieval.tokenize import normalize

KEY_CHARACTERS = 300
# By so many of a name's first characters the indexes find the names that may stand in a text.
PREFIX_CHARACTERS = 4


def normalized_key(text: str) -> str:
    """The form in which two spellings of a name are equal: NFKC, case folded, white space collapsed."""
    return " ".join(normalize(text).casefold().split())[:KEY_CHARACTERS]


MAX_METADATA_CHARS = 32_000
MAX_METADATA_DEPTH = 10


def validate_metadata(value: Any) -> None:
    """Metadata are a JSON object, bounded, of what PostgreSQL can store.

    Raises:
        ValidationError: they are not.
    """
    if not isinstance(value, dict):
        raise ValidationError(_("Give a JSON object."), code="not_object")
    _check(value, depth=1)
    if len(json.dumps(value, ensure_ascii=False)) > MAX_METADATA_CHARS:
        message = _("It is longer than %(length)s characters.") % {"length": MAX_METADATA_CHARS}
        raise ValidationError(message, code="too_long")


def is_storable(text: str) -> bool:
    """PostgreSQL stores no NUL, and UTF-8 has no lone surrogates."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def storable(text: str) -> str:
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def _check(value: Any, depth: int) -> None:
    if depth > MAX_METADATA_DEPTH:
        message = _("It is nested deeper than %(depth)s levels.") % {"depth": MAX_METADATA_DEPTH}
        raise ValidationError(message, code="too_deep")
    if isinstance(value, dict):
        _check(list(value.keys()), depth)
        _check(list(value.values()), depth)
    elif isinstance(value, list):
        for each in value:
            _check(each, depth + 1)
    elif (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, str) and not is_storable(value)):
        raise ValidationError(_("It holds a number or a character that cannot be stored."), code="not_storable")
