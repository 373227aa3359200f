"""Values that people and programs give: names, metadata, and those of filters, read or refused; and files they get."""

import csv
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, time
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext as _

from retrieval.characters import normal_form
from retrieval.errors import RetrievalError
from retrieval.tokenize import normalize

KEY_CHARACTERS = 300
# By so many of a name's first characters the indexes find the names that may stand in a text.
PREFIX_CHARACTERS = 4
_WEB_ADDRESS = re.compile(r"https?://[^\s/?#@%\[\]]+(?:[/?#]\S*)?", re.IGNORECASE)


def normalized_key(text: str) -> str:
    """The form in which two spellings of a name are equal: NFKC, case folded, white space collapsed."""
    return " ".join(normalize(text).casefold().split())[:KEY_CHARACTERS]


def hash_content(text: str) -> str:
    """SHA-256 of the text in NFC with white space collapsed, in hexadecimal: equal for what reads the same."""
    return hashlib.sha256(" ".join(normal_form("NFC", text).split()).encode()).hexdigest()


MAX_METADATA_CHARS = 32_000
MAX_METADATA_DEPTH = 10


def validate_metadata(value: Any) -> None:
    """Raises ValidationError unless metadata are a JSON object, bounded, of what PostgreSQL can store."""
    if not isinstance(value, dict):
        raise ValidationError(_("Give a JSON object."), code="not_object")
    _check(value, depth=1)
    if len(json.dumps(value, ensure_ascii=False)) > MAX_METADATA_CHARS:
        raise ValidationError(
            _("It is longer than %(length)s characters.") % {"length": MAX_METADATA_CHARS}, code="too_long"
        )


def is_storable(text: str) -> bool:
    """PostgreSQL stores no NUL, and UTF-8 has no lone surrogates."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def storable(text: str) -> str:
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def _check(value: Any, depth: int) -> None:
    if depth > MAX_METADATA_DEPTH:
        raise ValidationError(
            _("It is nested deeper than %(depth)s levels.") % {"depth": MAX_METADATA_DEPTH}, code="too_deep"
        )
    if isinstance(value, dict):
        _check([*value, *value.values()], depth)
    elif isinstance(value, list):
        for each in value:
            _check(each, depth + 1)
    elif (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, str) and not is_storable(value)):
        raise ValidationError(_("It holds a number or a character that cannot be stored."), code="not_storable")


MAX_VALUES = 1_000
MAX_CONDITIONS = 50
MAX_CHARS = 1_000
MAX_NUMBER = 1e300
MAX_ID = 2**63 - 1

Scalar = str | int | float | bool | None


class InvalidFilter(RetrievalError):
    """A filter cannot be used; `field` is its part, such as `metadata[0].op`."""

    def __init__(self, field: str, message: str, **values: object) -> None:
        super().__init__(message % {"field": field, **values})
        self.field = field


def read_list(field: str, value: Any, most: int = MAX_VALUES) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidFilter(field, _("“%(field)s”: give a list."))
    if len(value) > most:
        raise InvalidFilter(field, _("“%(field)s” has more than %(most)s values: give fewer."), most=most)
    return value


def read_each(read: Callable[[str, Any], Any]) -> Callable[[str, Any], tuple[Any, ...]]:
    """Reads a list of values; an empty one is refused, since nothing could be found by it."""

    def read_all(field: str, value: Any) -> tuple[Any, ...]:
        if not read_list(field, value):
            raise InvalidFilter(field, _("“%(field)s” is empty: give at least one value, or leave it out."))
        return tuple(read(f"{field}[{place}]", each) for place, each in enumerate(value))

    return read_all


def read_choice(field: str, value: Any, choices: Sequence[str]) -> str:
    if value not in choices:
        raise InvalidFilter(field, _("“%(field)s”: choose from %(names)s."), names=", ".join(choices))
    return str(value)


def read_id(field: str, value: Any) -> int:
    if type(value) is not int or not 0 < value <= MAX_ID:
        raise InvalidFilter(field, _("“%(field)s”: give an id, a whole number from 1."))
    return value


def read_text(field: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_CHARS or not is_storable(value):
        raise InvalidFilter(field, _("“%(field)s”: give a text of 1 to %(most)s characters."), most=MAX_CHARS)
    return value


def read_id_or_text(field: str, value: Any) -> int | str:
    return read_text(field, value) if isinstance(value, str) else read_id(field, value)


def read_time(field: str, value: Any) -> datetime:
    """A time in the installation's zone, which is taken for one without a zone; a date is its first moment."""
    try:
        day = parse_date(value) if isinstance(value, str) else None
        moment = datetime.combine(day, time()) if day else parse_datetime(value) if isinstance(value, str) else value
        if isinstance(moment, datetime):
            return timezone.make_aware(moment) if timezone.is_naive(moment) else timezone.localtime(moment)
    except (ValueError, OverflowError):  # well formed, and no such day, or none in this zone
        pass
    raise InvalidFilter(field, _("“%(field)s”: give a date or a time, such as 2026-03-01 or 2026-03-01T08:00:00Z."))


def read_scalar(field: str, value: Any) -> Scalar:
    if value is None or (isinstance(value, str) and len(value) <= MAX_CHARS and is_storable(value)):
        return value
    if isinstance(value, int | float) and abs(value) < MAX_NUMBER:  # neither infinite nor NaN
        return value
    raise InvalidFilter(field, _("“%(field)s”: give a text, a number, true, false or null."))


def web_address(text: str) -> str:
    """The text where it is an address on the web, to which a browser may be led, and names no user; else blank."""
    try:
        port = urlsplit(text).port
    except ValueError:
        return ""
    return text if port != 0 and _WEB_ADDRESS.fullmatch(text) else ""


def file_name(name: str) -> str:
    """A name without what the names of files may not hold."""
    return re.sub(r'[/\\:*?"<>|]', "-", name)


class _Line:
    """A file that returns what is written to it, so that lines can be sent one by one."""

    def write(self, line: str) -> str:
        return line


def csv_lines(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Rows as CSV for spreadsheets: with a mark, so that they take it for UTF-8, and no text that they would run."""
    writer: Any = csv.writer(_Line())
    yield "\ufeff"
    for row in rows:
        is_formula = [isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row]
        yield writer.writerow([f"'{cell}" if runs else cell for cell, runs in zip(row, is_formula, strict=True)])
