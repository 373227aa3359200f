"""Conditions on metadata as people type them, such as `year >= 2023` and `department = sales`."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.utils.translation import gettext as _

from kb.base.filter_values import InvalidFilter
from kb.index.filters import Operator

SIGNS: Final[Mapping[str, Operator]] = {
    ">=": Operator.GTE,
    "≥": Operator.GTE,
    "<=": Operator.LTE,
    "≤": Operator.LTE,
    "!=": Operator.NE,
    "≠": Operator.NE,
    "=": Operator.EQ,
    ">": Operator.GT,
    "<": Operator.LT,
    "~": Operator.CONTAINS,
}
_WRITTEN: Final = {operator: sign for sign, operator in SIGNS.items() if sign.isascii()}
# Nothing here is tried in two ways: a text that was made for that would take hours.
_SIGN = re.compile("|".join(map(re.escape, SIGNS)))
# A comma inside quotation marks is a part of the text.
_PART = re.compile(r'(?>"(?:[^"\\]|\\.)*+"|[^,，;；\n])++')


def read_conditions(text: str) -> list[dict[str, Any]]:
    """Conditions with commas, semicolons or line breaks between them, as `Filters.parse` takes them.

    Raises:
        InvalidFilter: one of them has no sign that compares.
    """
    return [read_condition(part) for part in _PART.findall(text) if part.strip()]


def read_condition(text: str) -> dict[str, Any]:
    """A key, a sign of SIGNS and a value: a number, true, false, null, or a text; `"2024"` is the text.

    Raises:
        InvalidFilter: there is no sign, or nothing before it.
    """
    sign = _SIGN.search(text)
    key = text[: sign.start()].strip() if sign else ""
    if sign is None or not key:
        message = _("“%(text)s” is no condition: write a key, one of %(signs)s, and a value, such as year >= 2023.")
        raise InvalidFilter("metadata", message % {"text": text.strip()[:100], "signs": " ".join(_WRITTEN.values())})
    return {"key": key, "op": SIGNS[sign[0]].value, "value": _value(text[sign.end() :].strip())}


def write_conditions(conditions: Iterable[Mapping[str, Any]]) -> str:
    """What `read_conditions` reads again, as far as there is a sign for it."""
    signs = [(each["key"], _WRITTEN.get(each["op"]), each.get("value")) for each in conditions]
    return ", ".join(f"{key} {sign} {_text_of(value)}" for key, sign, value in signs if sign)


def _value(text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, list | dict) else value


def _refuse(_constant: str) -> None:
    raise ValueError  # NaN and the infinities are texts


def _text_of(value: Any) -> str:
    is_plain = isinstance(value, str) and value != "" and value == value.strip() and _PART.fullmatch(value)
    return (
        str(value)
        if is_plain and '"' not in value and _value(value) == value
        else json.dumps(value, ensure_ascii=False)
    )
