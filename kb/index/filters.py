"""Which chunks a search may find: conditions on documents, as a request states them and as PostgreSQL answers them."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Self

import numpy as np
from django.utils.translation import gettext as _
from numpy.typing import NDArray

from kb.access.models import Principal, visible_knowledge_bases
from kb.base.db.transactions import binary_cursor, fetch_all
from kb.base.text import (
    InvalidFilter,
    normalized_key,
    read_choice,
    read_each,
    read_id,
    read_id_or_text,
    read_text,
    read_time,
)
from kb.content.models import Document
from kb.index.conditions import Clause, Condition, Logic, Matching, Operator, joined, parse_conditions

_PARSERS: Mapping[str, Callable[[str, Any], Any]] = {
    "document_ids": read_each(read_id),
    "folder_ids": read_each(read_id),
    "tags": read_each(read_text),
    "concepts": read_each(read_id_or_text),
    "source_types": read_each(lambda field, value: read_choice(field, value, Document.SourceType.values)),
    "metadata": parse_conditions,
    "created_after": read_time,
    "created_before": read_time,
    "matching": Matching.parse,
}

# -- Asking ------------------------------------------------------------------------------------------------------------
# One value of all ids: rows would take as long to fetch as to find.
CHUNK_IDS = """
{named}
SELECT string_agg(int8send(c.id), '')
FROM kb_chunk c JOIN kb_document d ON d.id = c.document_id
WHERE c.knowledge_base_id = %s AND c.enabled AND c.knowledge_base_id = ANY(ARRAY({visible}))
    AND {conditions}
"""
CONCEPTS = """concept AS (
    SELECT id FROM kb_concept WHERE knowledge_base_id = %s AND (
        id = ANY(%s::bigint[])
        OR id IN (SELECT concept_id FROM kb_conceptterm WHERE knowledge_base_id = %s AND key = ANY(%s::varchar[])))
    UNION
    SELECT narrower.id FROM kb_concept narrower JOIN concept ON narrower.parent_id = concept.id
)"""
FOLDERS = """folder AS (
    SELECT id FROM kb_folder WHERE knowledge_base_id = %s AND id = ANY(%s::bigint[])
    UNION
    SELECT within.id FROM kb_folder within JOIN folder ON within.parent_id = folder.id
)"""
CLAUSES: Mapping[str, str] = {
    "document_ids": "d.id = ANY(%s::bigint[])",
    "tags": "d.tags && %s::varchar[]",
    "source_types": "d.source_type = ANY(%s::varchar[])",
    "created_after": "d.created_at >= %s",
    "created_before": "d.created_at < %s",
}


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions that a chunk's document must meet, all of them; None and the empty tuple of metadata demand nothing.

    The document lies in any of the folders or in one within, has any of the tags, any of the concepts (by id or name) or one that is narrower, and was created at
    `created_after` or later, and earlier than `created_before`. `matching` takes values as people write them.
    """

    document_ids: tuple[int, ...] | None = None
    folder_ids: tuple[int, ...] | None = None
    tags: tuple[str, ...] | None = None
    concepts: tuple[int | str, ...] | None = None
    source_types: tuple[str, ...] | None = None
    metadata: tuple[Condition, ...] = ()
    created_after: datetime | None = None
    created_before: datetime | None = None
    matching: Matching | None = None

    @classmethod
    def parse(cls, mapping: Mapping[str, Any]) -> Self:
        """Reads filters: fields by name, `metadata` a list of {"key", "op", "value"}; raises InvalidFilter."""
        if not isinstance(mapping, Mapping):
            raise InvalidFilter("filters", _("Give an object of filters by name."))
        for name in mapping:
            if name not in _PARSERS:
                message = _("There is no filter “%(name)s”: choose from %(names)s.")
                raise InvalidFilter(str(name), message, name=name, names=", ".join(_PARSERS))
        return cls(**{name: _PARSERS[name](name, value) for name, value in mapping.items() if value is not None})

    @property
    def is_empty(self) -> bool:
        return self == type(self)()

    def as_dict(self) -> dict[str, Any]:
        """What `parse` reads again, of JSON's types."""
        written: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        written["metadata"] = [each.as_dict() for each in self.metadata]
        written["matching"] = self.matching and self.matching.as_dict()
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in written.items()
            if value
        }


def chunk_ids(kb_id: int, principal: Principal, filters: Filters) -> NDArray[np.int64] | None:
    """The enabled chunks that pass, ascending, as far as the principal may see them; None where all do."""
    if filters.is_empty:
        return None
    scope = visible_knowledge_bases(principal)
    if scope is None:
        return np.empty(0, dtype=np.int64)
    visible, visible_values = scope
    named: list[str] = []
    named_values: list[Any] = []
    if filters.folder_ids is not None:
        named.append(FOLDERS)
        named_values += [kb_id, list(filters.folder_ids)]
    if filters.concepts is not None:
        ids = [concept for concept in filters.concepts if isinstance(concept, int)]
        keys = [normalized_key(concept) for concept in filters.concepts if isinstance(concept, str)]
        named.append(CONCEPTS)
        named_values += [kb_id, ids, kb_id, keys]
    conditions, values = joined(list(_clauses(filters)), Logic.AND)
    tables = f"WITH RECURSIVE {', '.join(named)}" if named else ""
    statement = CHUNK_IDS.format(named=tables, visible=visible, conditions=conditions)
    [(found,)] = fetch_all(statement, [*named_values, kb_id, *visible_values, *values])
    return np.sort(np.frombuffer(found or b"", dtype=">i8").astype(np.int64))


def _clauses(filters: Filters) -> Iterable[Clause]:
    for name, clause in CLAUSES.items():
        value = getattr(filters, name)
        if value is not None:
            yield clause, [list(value) if isinstance(value, tuple) else value]
    if filters.folder_ids is not None:
        yield "d.folder_id IN (SELECT id FROM folder)", []
    if filters.concepts is not None:
        yield "d.id IN (SELECT document_id FROM kb_document_concepts WHERE concept_id IN (SELECT id FROM concept))", []
    for condition in filters.metadata:
        yield condition.clause()
    if filters.matching is not None:
        yield joined([condition.clause() for condition in filters.matching.conditions], filters.matching.logic)


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
    """Conditions between commas, semicolons or line breaks, as `Filters.parse` takes them; raises InvalidFilter."""
    return [read_condition(part) for part in _PART.findall(text) if part.strip()]


def read_condition(text: str) -> dict[str, Any]:
    """A key, a sign of SIGNS and a value: a number, true, false, null, or a text; `"2024"` is the text.

    Without a sign, or with nothing before it, InvalidFilter.
    """
    sign = _SIGN.search(text)
    key = text[: sign.start()].strip() if sign else ""
    if sign is None or not key:
        message = _("“%(text)s” is no condition: write a key, one of %(signs)s, and a value, such as year >= 2023.")
        raise InvalidFilter("metadata", message, text=text.strip()[:100], signs=" ".join(_WRITTEN.values()))
    return {"key": key, "op": SIGNS[sign[0]].value, "value": _value(text[sign.end() :].strip())}


def write_conditions(conditions: Iterable[Mapping[str, Any]]) -> str:
    """What `read_conditions` reads again, as far as there is a sign for it."""
    signs = [(each["key"], _WRITTEN.get(each["op"]), each.get("value")) for each in conditions]
    return ", ".join(f"{key} {sign} {_text_of(value)}" for key, sign, value in signs if sign)


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    is_scalar = value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_scalar else text  # NaN and the infinities are texts


def _text_of(value: Any) -> str:
    is_plain = isinstance(value, str) and value == value.strip() and _PART.fullmatch(value) and '"' not in value
    return value if is_plain and _value(value) == value else json.dumps(value, ensure_ascii=False)


def enabled_among(kb_id: int, chunk_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the chunks are enabled ones of the knowledge base, shape (n_chunks,)."""
    if not chunk_ids.size:
        return np.empty(0, dtype=bool)
    enabled = "SELECT id FROM kb_chunk WHERE knowledge_base_id = %s AND enabled AND id = ANY(%s::bigint[])"
    with binary_cursor() as cursor:
        rows = cursor.execute(enabled, [kb_id, chunk_ids.tolist()], binary=True).fetchall()
    return np.isin(chunk_ids, np.array(rows, dtype=np.int64))
