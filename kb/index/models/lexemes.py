"""A chunk's tokens and character n-grams as PostgreSQL's full-text search holds them."""

from collections.abc import Iterable
from typing import Any

from django.contrib.postgres.search import SearchVectorField
from django.db.models import Value

NGRAM_PREFIX = "~"
MAX_LEXEMES = 20_000
MAX_LEXEME_BYTES = 2_046
MAX_BYTES = 1_000_000
"""PostgreSQL holds at most 2,046 bytes of a lexeme and 1 MiB of all of them together."""


def storable_lexemes(lexemes: Iterable[str]) -> list[str]:
    """The first ones, each once, that PostgreSQL takes; too long ones are left out."""
    kept: dict[str, None] = {}
    room = MAX_BYTES
    for lexeme in lexemes:
        size = len(lexeme.encode())
        if lexeme in kept or not 0 < size <= MAX_LEXEME_BYTES or "\0" in lexeme:
            continue
        room -= size
        if room < 0 or len(kept) == MAX_LEXEMES:
            break
        kept[lexeme] = None
    return list(kept)


class LexemesField(SearchVectorField):  # type: ignore[type-arg]
    """A tsvector without positions, written from and read as a list of lexemes; no parser and no dictionary touch them."""

    def get_prep_value(self, value: Any) -> Any:
        return value if hasattr(value, "as_sql") else storable_lexemes(value)

    def get_placeholder(self, value: Any, compiler: Any, connection: Any) -> str:  # noqa: ARG002 - Django's interface
        return "%s" if hasattr(value, "as_sql") else "array_to_tsvector(%s::text[])"

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:  # noqa: ARG002 - Django's interface
        return f"tsvector_to_array({sql})", params


def no_lexemes() -> Value:
    """The default of the column, for rows that were there before it."""
    return Value([], output_field=LexemesField())
