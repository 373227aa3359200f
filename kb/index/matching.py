"""Conditions on a document's fields and metadata, joined by and or or, that take values as people and other programs write them.

Where `kb.index.filters.Condition` compares JSON with JSON, here a value and what it is compared with are brought to one
type first: "2024" and 2024 are the same number, "2026年3月1日" and "2026-03-01T00:00:00" the same moment. A list or an object
is compared by the values that it holds at any depth, and it suffices that one of them fits.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Self

from django.utils import timezone
from django.utils.dateparse import parse_date
from django.utils.translation import gettext as _

from kb.base.filter_values import (
    MAX_CONDITIONS,
    InvalidFilter,
    Scalar,
    read_each,
    read_list,
    read_scalar,
    read_text,
    read_time,
)

MAX_NAMES = 20
MOST_SECONDS: Final = 100_000_000_000
"""Of a time that is given as a number of seconds since 1970: beyond the year 5000 it is none."""

Clause = tuple[str, list[Any]]


class Comparison(StrEnum):
    """How a field is compared; `not_contains`, `is_not`, `not_in`, `ne` and `empty` find all that their opposite does not."""

    CONTAINS = "contains"
    NOT_CONTAINS = "not_contains"
    STARTS_WITH = "starts_with"
    ENDS_WITH = "ends_with"
    IS = "is"
    IS_NOT = "is_not"
    IN = "in"
    NOT_IN = "not_in"
    EMPTY = "empty"
    NOT_EMPTY = "not_empty"
    EQ = "eq"
    NE = "ne"
    GT = "gt"
    LT = "lt"
    GTE = "gte"
    LTE = "lte"
    BEFORE = "before"
    AFTER = "after"


class Logic(StrEnum):
    AND = "and"
    OR = "or"


NEGATIONS: Final[Mapping[Comparison, Comparison]] = {
    Comparison.NOT_CONTAINS: Comparison.CONTAINS,
    Comparison.IS_NOT: Comparison.IS,
    Comparison.NOT_IN: Comparison.IN,
    Comparison.NE: Comparison.EQ,
    Comparison.EMPTY: Comparison.NOT_EMPTY,
}
NEEDS_NO_VALUE: Final = frozenset({Comparison.EMPTY, Comparison.NOT_EMPTY})
ORDERINGS: Final[Mapping[Comparison, str]] = {
    Comparison.GT: ">",
    Comparison.LT: "<",
    Comparison.GTE: ">=",
    Comparison.LTE: "<=",
}
OF_TIME: Final[Mapping[Comparison, Comparison]] = {Comparison.BEFORE: Comparison.LT, Comparison.AFTER: Comparison.GT}

FIELDS: Final[Mapping[str, str]] = {
    "document_id": "d.id",
    "title": "d.title",
    "document_name": "d.title",
    "source": "d.source",
    "path": "d.source",
    "source_type": "d.source_type",
    "tags": "d.tags",
    "created_at": "d.created_at",
    "upload_date": "d.created_at",
    "updated_at": "d.updated_at",
    "last_update_date": "d.updated_at",
}
"""Fields of every document by name, and by the names that Dify has for them; a document's own metadata come first."""


@dataclass(frozen=True, slots=True)
class Match:
    """A condition.

    Attributes:
        names: keys of the metadata or of FIELDS; it suffices that the condition holds for one of them.
        value: one value, or several of which one suffices; None where the comparison needs none.
    """

    names: tuple[str, ...]
    comparison: Comparison
    value: Scalar | tuple[Scalar, ...] = None


@dataclass(frozen=True, slots=True)
class Matching:
    """Conditions of which all (`and`) or any (`or`) are to hold; none at all demand nothing."""

    conditions: tuple[Match, ...]
    logic: Logic = Logic.AND

    @classmethod
    def parse(cls, field: str, value: Any) -> Self | None:
        """Reads {"logic", "conditions": [{"names", "comparison", "value"}]}; None without a condition.

        Raises:
            InvalidFilter: a part of it is unknown or its value cannot be used.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or not set(value) <= {"logic", "conditions"}:
            raise InvalidFilter(
                field, _("“%(field)s”: give an object with “logic” and “conditions”.") % {"field": field}
            )
        logic = value.get("logic") or Logic.AND
        if logic not in list(Logic):
            message = _("“%(field)s”: choose from %(names)s.")
            raise InvalidFilter(f"{field}.logic", message % {"field": f"{field}.logic", "names": ", ".join(Logic)})
        given = read_list(f"{field}.conditions", value.get("conditions") or (), MAX_CONDITIONS)
        conditions = tuple(_match(f"{field}.conditions[{place}]", each) for place, each in enumerate(given))
        return cls(conditions, Logic(logic)) if conditions else None

    def clause(self) -> Clause:
        """A condition of SQL on a document `d`, with its values."""
        clauses = [_clause(each) for each in self.conditions]
        joined = f" {self.logic.value.upper()} ".join(clause for clause, _values in clauses)
        return f"({joined})", [value for _clause, values in clauses for value in values]


# -- Reading -----------------------------------------------------------------------------------------------------------
def _match(field: str, value: Any) -> Match:
    if not isinstance(value, Mapping) or not {"names", "comparison"} <= set(value) <= {"names", "comparison", "value"}:
        message = _("“%(field)s”: give an object with “names”, “comparison” and “value”.")
        raise InvalidFilter(field, message % {"field": field})
    if value["comparison"] not in list(Comparison):
        message = _("“%(field)s”: choose from %(names)s.")
        place = f"{field}.comparison"
        raise InvalidFilter(place, message % {"field": place, "names": ", ".join(Comparison)})
    comparison = Comparison(value["comparison"])
    names = read_each(read_text)(f"{field}.names", read_list(f"{field}.names", value["names"], MAX_NAMES))
    match = Match(names, comparison, _operand(f"{field}.value", comparison, value.get("value")))
    _test(f"{field}.value", match)  # says now, and not when it is asked, that a value is no number and no time
    return match


def _operand(field: str, comparison: Comparison, value: Any) -> Scalar | tuple[Scalar, ...]:
    if comparison in NEEDS_NO_VALUE:
        return None
    if value is None:
        raise InvalidFilter(field, _("“%(field)s”: give a value to compare with.") % {"field": field})
    if isinstance(value, list | tuple):
        return read_each(read_scalar)(field, value)
    return read_scalar(field, value)


# -- Asking ------------------------------------------------------------------------------------------------------------
_LEAVES = """strict $.** ? (@.type() != "array" && @.type() != "object" && @.type() != "null")"""
_HOLDS = "EXISTS (SELECT 1 FROM jsonb_path_query({field}, %s::jsonpath) AS leaf WHERE {test})"
_HAS_PART = "EXISTS (SELECT 1 FROM unnest(%s::text[]) AS part WHERE {test})"
_TEXT = "(leaf #>> '{}')"
_NUMBER = rf"""(CASE
    WHEN jsonb_typeof(leaf) = 'number' THEN {_TEXT}::numeric
    WHEN {_TEXT} ~ '^\s*[-+]?\d{{1,40}}(\.\d{{1,40}})?\s*$' THEN {_TEXT}::numeric
END)"""
# A date may be written with strokes or, in Chinese, with 年, 月 and 日. One without a zone is of the installation's.
_WRITTEN = f"translate({_TEXT}, '年月/日', '---')"
_TIME = rf"""(CASE
    WHEN jsonb_typeof(leaf) = 'number' THEN
        CASE WHEN abs({_TEXT}::numeric) < {MOST_SECONDS} THEN to_timestamp({_TEXT}::numeric::double precision) END
    WHEN {_WRITTEN} !~ '^\s*\d{{4}}-\d{{1,2}}-\d{{1,2}}' THEN NULL
    WHEN {_WRITTEN} ~* ':\d\d(\.\d+)?\s*(z|[-+]\d\d(:?\d\d)?)\s*$' THEN
        CASE WHEN pg_input_is_valid({_WRITTEN}, 'timestamptz') THEN {_WRITTEN}::timestamptz END
    WHEN pg_input_is_valid({_WRITTEN}, 'timestamp') THEN {_WRITTEN}::timestamp AT TIME ZONE %s
END)"""
_PART_OF: Final[Mapping[Comparison, str]] = {
    Comparison.CONTAINS: "strpos({text}, part) > 0",
    Comparison.STARTS_WITH: "starts_with({text}, part)",
    Comparison.ENDS_WITH: "right({text}, length(part)) = part",
}
_DECIMAL = re.compile(r"\s*[-+]?[0-9]{1,40}(\.[0-9]{1,40})?\s*")
_SECONDS = re.compile(r"[0-9]{9,11}")
_STROKES = str.maketrans({"年": "-", "月": "-", "/": "-", "日": ""})
_COMMA = re.compile("[,，]")


def _clause(match: Match) -> Clause:
    test, values = _test("value", match)
    clauses: list[str] = []
    given: list[Any] = []
    for name in match.names:
        field, named = _field(name)
        clauses.append(_HOLDS.format(field=field, test=test))
        given += [*named, _LEAVES, *values]
    clause = f"({' OR '.join(clauses)})"
    return (f"NOT {clause}" if match.comparison in NEGATIONS else clause), given


def _field(name: str) -> Clause:
    column = FIELDS.get(name)
    return (f"COALESCE(d.metadata -> %s, to_jsonb({column}))" if column else "d.metadata -> %s"), [name]


def _test(field: str, match: Match) -> Clause:
    """What a leaf is to fulfil; of a negation, what it is not to.

    Raises:
        InvalidFilter: the value is of no type that can be compared so.
    """
    comparison = NEGATIONS.get(match.comparison, match.comparison)
    values = match.value if isinstance(match.value, tuple) else (match.value,)
    if comparison is Comparison.NOT_EMPTY:
        return f"{_TEXT} <> ''", []
    if part := _PART_OF.get(comparison):
        return _HAS_PART.format(test=part.format(text=_TEXT)), [_texts(values)]
    if comparison in {Comparison.IS, Comparison.IN}:
        return _equals(_listed(values) if comparison is Comparison.IN else values)
    return _any_of([_compared(field, comparison, value) for value in values])


def _equals(values: tuple[Scalar, ...]) -> Clause:
    """The same text, or where the field holds a number, the same number."""
    numbers = [number for value in values if (number := _number(value)) is not None]
    test = f"({_TEXT} = ANY(%s::text[]) OR (jsonb_typeof(leaf) = 'number' AND {_TEXT}::numeric = ANY(%s::numeric[])))"
    return test, [_texts(values), numbers]


def _listed(values: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """A list may also be one text with commas, which may be a part of its only element too."""
    parts = [part.strip() for value in values if isinstance(value, str) for part in _COMMA.split(value)]
    return (*values, *filter(None, parts))


def _compared(field: str, comparison: Comparison, value: Scalar) -> Clause:
    number = _number(value)
    if comparison in OF_TIME:
        return _in_time(OF_TIME[comparison], *_moments(field, value))
    if comparison is Comparison.EQ:
        tests: list[Clause] = [_equals((value,))]
        if number is not None:
            tests.append((f"{_NUMBER} = %s::numeric", [number]))
        elif isinstance(value, str) and (moments := _or_none(_moments, field, value)):
            tests.append(_in_time(comparison, *moments))
        return _any_of(tests)
    if number is not None:
        return f"{_NUMBER} {ORDERINGS[comparison]} %s::numeric", [number]
    return _in_time(comparison, *_moments(field, value))


def _in_time(comparison: Comparison, begin: datetime, end: datetime) -> Clause:
    """A comparison with a moment, or with a day: after it is from the next day on, and it holds all of its moments."""
    zone = timezone.get_default_timezone_name()
    if comparison is Comparison.EQ:
        last = "<=" if begin == end else "<"
        return f"({_TIME} >= %s AND {_TIME} {last} %s)", [zone, begin, zone, end]
    of_day = begin != end
    sign, moment = {
        Comparison.LT: ("<", begin),
        Comparison.GTE: (">=", begin),
        Comparison.GT: (">=" if of_day else ">", end),
        Comparison.LTE: ("<" if of_day else "<=", end),
    }[comparison]
    return f"{_TIME} {sign} %s", [zone, moment]


def _moments(field: str, value: Scalar) -> tuple[datetime, datetime]:
    """A day's first moment and the next day's, or a moment twice; a number counts seconds since 1970.

    Raises:
        InvalidFilter: it is neither a time nor a number of seconds.
    """
    if isinstance(value, str) and _SECONDS.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST_SECONDS:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value)
        return moment, moment
    text = value.strip().translate(_STROKES) if isinstance(value, str) else ""
    begin = _or_none(read_time, field, text)
    if begin is None or not 1 < begin.year < 9999:  # the years beside them may be none elsewhere
        message = _(
            "“%(field)s”: give a date or a time, such as 2026-03-01 or 2026-03-01T08:00:00Z, seconds since 1970, or for "
            "=, ≠, >, <, ≥ and ≤ a number."
        )
        raise InvalidFilter(field, message % {"field": field})
    return begin, read_time(field, (begin + timedelta(days=1)).date().isoformat()) if parse_date(text) else begin


def _or_none(read: Callable[[str, Any], Any], field: str, value: Any) -> Any:
    try:
        return read(field, value)
    except InvalidFilter:
        return None


def _any_of(tests: list[Clause]) -> Clause:
    return f"({' OR '.join(test for test, _values in tests)})", [value for _test, values in tests for value in values]


def _texts(values: tuple[Scalar, ...]) -> list[str]:
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def _number(value: Scalar) -> str | None:
    """The digits of a number, which may be in a text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value.strip() if isinstance(value, str) and _DECIMAL.fullmatch(value) else None
