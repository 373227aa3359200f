"""Conditions on a document's metadata: one set of operators, read from requests and written as SQL on a document `d`.

A condition compares JSON with JSON, so that "2024" and 2024 differ and neither is before the other. A lenient one takes
values as people and other programs write them: a value and what it is compared with are brought to one type first, so that
"2024" and 2024 are the same number, "2026年3月1日" and "2026-03-01T00:00:00" the same moment. A list or an object is then
compared by the values that it holds at any depth, and it suffices that one of them fits.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Self

from django.utils import timezone
from django.utils.dateparse import parse_date
from django.utils.translation import gettext as _

from kb.base.text import (
    MAX_CONDITIONS,
    InvalidFilter,
    Scalar,
    read_choice,
    read_each,
    read_list,
    read_scalar,
    read_text,
    read_time,
)

MAX_NAMES = 20
MOST_SECONDS: Final = 100_000_000_000  # of a time that is given as seconds since 1970: beyond the year 5000 it is none

Clause = tuple[str, list[Any]]


class Operator(StrEnum):
    """How a value is compared; `not_contains`, `is_not`, `not_in`, `ne` and `empty` find all that their opposite does not.

    `contains` looks into a list for an element, into a text for a part; `exists` takes true or false.
    """

    EQ = "eq"
    NE = "ne"
    GT = "gt"
    GTE = "gte"
    LT = "lt"
    LTE = "lte"
    IN = "in"
    CONTAINS = "contains"
    EXISTS = "exists"
    NOT_CONTAINS = "not_contains"
    STARTS_WITH = "starts_with"
    ENDS_WITH = "ends_with"
    IS = "is"
    IS_NOT = "is_not"
    NOT_IN = "not_in"
    EMPTY = "empty"
    NOT_EMPTY = "not_empty"
    BEFORE = "before"
    AFTER = "after"


class Logic(StrEnum):
    AND = "and"
    OR = "or"


STRICT_OPERATORS: Final = tuple(Operator)[:9]
LENIENT_OPERATORS: Final = tuple(each for each in Operator if each is not Operator.EXISTS)
NEGATIONS: Final[Mapping[Operator, Operator]] = {
    Operator.NOT_CONTAINS: Operator.CONTAINS,
    Operator.IS_NOT: Operator.IS,
    Operator.NOT_IN: Operator.IN,
    Operator.NE: Operator.EQ,
    Operator.EMPTY: Operator.NOT_EMPTY,
}
ORDERINGS: Final[Mapping[Operator, str]] = {Operator.GT: ">", Operator.GTE: ">=", Operator.LT: "<", Operator.LTE: "<="}
OF_TIME: Final[Mapping[Operator, Operator]] = {Operator.BEFORE: Operator.LT, Operator.AFTER: Operator.GT}

# Fields of every document by name, and by the names that Dify has for them; a document's own metadata come first.
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


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that one of the keys of the metadata has to meet, by one of the values.

    A strict condition has one key. A lenient one compares values of different types, and may name FIELDS.
    """

    names: tuple[str, ...]
    operator: Operator
    value: Scalar | tuple[Scalar, ...] = None
    is_lenient: bool = False

    @classmethod
    def parse(cls, field: str, value: Any, *, lenient: bool) -> Self:
        """Reads {"key", "op", "value"}, or if lenient {"names", "comparison", "value"}; raises InvalidFilter."""
        names, operator = ("names", "comparison") if lenient else ("key", "op")
        if not isinstance(value, Mapping) or not {names, operator} <= set(value) <= {names, operator, "value"}:
            message = _("“%(field)s”: give an object with “key”, “op” and “value”.")
            if lenient:
                message = _("“%(field)s”: give an object with “names”, “comparison” and “value”.")
            raise InvalidFilter(field, message)
        choices = LENIENT_OPERATORS if lenient else STRICT_OPERATORS
        op = Operator(read_choice(f"{field}.{operator}", value[operator], choices))
        place, given = f"{field}.value", value.get("value")
        if not lenient:
            return cls((read_text(f"{field}.key", value["key"]),), op, _strict_value(place, op, given))
        keys = read_each(read_text)(f"{field}.names", read_list(f"{field}.names", value["names"], MAX_NAMES))
        condition = cls(keys, op, _lenient_value(place, op, given), is_lenient=True)
        condition._test(place)  # says now, and not in the search, that a value is no number and no time
        return condition

    def as_dict(self) -> dict[str, Any]:
        """What `parse` reads again."""
        if self.is_lenient:
            return {"names": self.names, "comparison": self.operator, "value": self.value}
        return {"key": self.names[0], "op": self.operator, "value": self.value}

    def clause(self) -> Clause:
        if not self.is_lenient:
            return self._strict_clause()
        test, values = self._test("value")
        fields = [
            (name, f"COALESCE(d.metadata -> %s, to_jsonb({FIELDS[name]}))" if name in FIELDS else "d.metadata -> %s")
            for name in self.names
        ]
        clauses = [(_HOLDS.format(field=field, test=test), [name, _LEAVES, *values]) for name, field in fields]
        clause, given = joined(clauses, Logic.OR)
        return (f"NOT {clause}" if self.operator in NEGATIONS else clause), given

    def _strict_clause(self) -> Clause:
        """Values are compared as JSON, which orders numbers as numbers and texts as texts and casts nothing."""
        [key], value = self.names, self.value
        match self.operator:
            case Operator.EXISTS:
                return "(d.metadata ? %s) = %s", [key, value]
            case Operator.IN:
                return "d.metadata -> %s = ANY(%s::jsonb[])", [key, [_json(each) for each in _several(value)]]
            case Operator.CONTAINS if isinstance(value, str):
                return f"({_HAS_ELEMENT} OR {_HAS_STRING_PART})", [key, key, _json(value), key, key, value]
            case Operator.CONTAINS:
                return _HAS_ELEMENT, [key, key, _json(value)]
            case Operator.EQ | Operator.NE:
                sign = "=" if self.operator is Operator.EQ else "IS DISTINCT FROM"
                return f"d.metadata -> %s {sign} %s::jsonb", [key, _json(value)]
        kind = "string" if isinstance(value, str) else "number"
        return _IN_ORDER.format(operator=ORDERINGS[self.operator]), [key, kind, key, _json(value)]

    def _test(self, field: str) -> Clause:
        """What a leaf is to fulfil; of a negation, what it is not to. Raises InvalidFilter where the types do not fit."""
        operator, values = NEGATIONS.get(self.operator, self.operator), _several(self.value)
        if operator is Operator.NOT_EMPTY:
            return f"{_TEXT} <> ''", []
        if operator in _HAS_PART:
            return _ANY_PART.format(test=_HAS_PART[operator]), [_texts(values)]
        if operator is Operator.IS:
            return _equals(values)
        if operator is Operator.IN:
            # A list may also be one text with commas, which may be a part of its only element too.
            parts = [part.strip() for value in values if isinstance(value, str) for part in re.split("[,，]", value)]
            return _equals((*values, *filter(None, parts)))
        return joined([_compared(field, operator, value) for value in values], Logic.OR)


@dataclass(frozen=True, slots=True)
class Matching:
    """Lenient conditions of which all (`and`) or any (`or`) are to hold."""

    conditions: tuple[Condition, ...]
    logic: Logic = Logic.AND

    @classmethod
    def parse(cls, field: str, value: Any) -> Self | None:
        """Reads {"logic", "conditions": [{"names", "comparison", "value"}]}; None without any. Raises InvalidFilter."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping) or not set(value) <= {"logic", "conditions"}:
            raise InvalidFilter(field, _("“%(field)s”: give an object with “logic” and “conditions”."))
        logic = read_choice(f"{field}.logic", value.get("logic") or Logic.AND, list(Logic))
        conditions = parse_conditions(f"{field}.conditions", value.get("conditions") or (), lenient=True)
        return cls(conditions, Logic(logic)) if conditions else None

    def as_dict(self) -> dict[str, Any]:
        return {"conditions": [each.as_dict() for each in self.conditions], "logic": self.logic}


def parse_conditions(field: str, value: Any, *, lenient: bool = False) -> tuple[Condition, ...]:
    return tuple(
        Condition.parse(f"{field}[{place}]", each, lenient=lenient)
        for place, each in enumerate(read_list(field, value, MAX_CONDITIONS))
    )


def joined(clauses: list[Clause], logic: Logic) -> Clause:
    written = f" {logic.value.upper()} ".join(clause for clause, _values in clauses)
    return f"({written})", [value for _clause, values in clauses for value in values]


def _strict_value(field: str, operator: Operator, value: Any) -> Scalar | tuple[Scalar, ...]:
    if operator is Operator.IN:
        return read_each(read_scalar)(field, value)
    if operator is Operator.EXISTS:
        if value is not None and not isinstance(value, bool):
            raise InvalidFilter(field, _("“%(field)s”: give true or false."))
        return value is not False
    if operator in ORDERINGS and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        raise InvalidFilter(field, _("“%(field)s”: give a number or a text to compare with."))
    return read_scalar(field, value)


def _lenient_value(field: str, operator: Operator, value: Any) -> Scalar | tuple[Scalar, ...]:
    if operator in (Operator.EMPTY, Operator.NOT_EMPTY):
        return None
    if value is None:
        raise InvalidFilter(field, _("“%(field)s”: give a value to compare with."))
    return read_each(read_scalar)(field, value) if isinstance(value, list | tuple) else read_scalar(field, value)


def _several(value: Scalar | tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    return value if isinstance(value, tuple) else (value,)


def _json(value: Scalar | tuple[Scalar, ...]) -> str:
    return json.dumps(value, ensure_ascii=False)


_HAS_ELEMENT = "(jsonb_typeof(d.metadata -> %s) = 'array' AND d.metadata -> %s @> %s::jsonb)"
_HAS_STRING_PART = "(jsonb_typeof(d.metadata -> %s) = 'string' AND strpos(d.metadata ->> %s, %s) > 0)"
_IN_ORDER = "(jsonb_typeof(d.metadata -> %s) = %s AND d.metadata -> %s {operator} %s::jsonb)"

# -- Lenient tests of a leaf ---------------------------------------------------------------------------------------------
_LEAVES = """strict $.** ? (@.type() != "array" && @.type() != "object" && @.type() != "null")"""
_HOLDS = "EXISTS (SELECT 1 FROM jsonb_path_query({field}, %s::jsonpath) AS leaf WHERE {test})"
_ANY_PART = "EXISTS (SELECT 1 FROM unnest(%s::text[]) AS part WHERE {test})"
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
_SAME = f"({_TEXT} = ANY(%s::text[]) OR (jsonb_typeof(leaf) = 'number' AND {_TEXT}::numeric = ANY(%s::numeric[])))"
_HAS_PART: Final[Mapping[Operator, str]] = {
    Operator.CONTAINS: f"strpos({_TEXT}, part) > 0",
    Operator.STARTS_WITH: f"starts_with({_TEXT}, part)",
    Operator.ENDS_WITH: f"right({_TEXT}, length(part)) = part",
}
_DECIMAL = re.compile(r"\s*[-+]?[0-9]{1,40}(\.[0-9]{1,40})?\s*")
_STROKES = str.maketrans({"年": "-", "月": "-", "/": "-", "日": ""})
_MICROSECOND = timedelta(microseconds=1)  # PostgreSQL's times are no finer


def _equals(values: tuple[Scalar, ...]) -> Clause:
    """The same text, or where the field holds a number, the same number."""
    return _SAME, [_texts(values), [number for number in map(_number, values) if number is not None]]


def _compared(field: str, operator: Operator, value: Scalar) -> Clause:
    number = _number(value)
    if operator in OF_TIME or (number is None and operator is not Operator.EQ):
        return _in_time(OF_TIME.get(operator, operator), *_moments(field, value))
    if operator is not Operator.EQ:
        return f"{_NUMBER} {ORDERINGS[operator]} %s::numeric", [number]
    same = _equals((value,))
    if number is not None:
        return joined([same, (f"{_NUMBER} = %s::numeric", [number])], Logic.OR)
    try:
        return joined([same, _in_time(operator, *_moments(field, value))], Logic.OR)
    except InvalidFilter:  # neither a number nor a time: a text
        return same


def _in_time(operator: Operator, begin: datetime, end: datetime) -> Clause:
    """A comparison with the times from `begin` to before `end`: after them is from `end` on, and equal is each of them."""
    zone = timezone.get_default_timezone_name()
    bounds = {
        Operator.EQ: [(">=", begin), ("<", end)],
        Operator.LT: [("<", begin)],
        Operator.GTE: [(">=", begin)],
        Operator.GT: [(">=", end)],
        Operator.LTE: [("<", end)],
    }
    return joined([(f"{_TIME} {sign} %s", [zone, moment]) for sign, moment in bounds[operator]], Logic.AND)


def _moments(field: str, value: Scalar) -> tuple[datetime, datetime]:
    """The first moment of a day and of the next one, or a moment and the next; a number counts seconds since 1970."""
    if isinstance(value, str) and re.fullmatch("[0-9]{9,11}", value.strip()):
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST_SECONDS:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value)
        return moment, moment + _MICROSECOND
    text = value.strip().translate(_STROKES) if isinstance(value, str) else ""
    message = _(
        "“%(field)s”: give a date or a time, such as 2026-03-01 or 2026-03-01T08:00:00Z, seconds since 1970, or for "
        "=, ≠, >, <, ≥ and ≤ a number."
    )
    try:
        begin = read_time(field, text)
    except InvalidFilter as error:
        raise InvalidFilter(field, message) from error
    if not 1 < begin.year < 9999:  # the years beside them may be none elsewhere
        raise InvalidFilter(field, message)
    if parse_date(text):
        return begin, read_time(field, (begin + timedelta(days=1)).date().isoformat())
    return begin, begin + _MICROSECOND


def _texts(values: tuple[Scalar, ...]) -> list[str]:
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def _number(value: Scalar) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value.strip() if isinstance(value, str) and _DECIMAL.fullmatch(value) else None
