"""Ids that stand in addresses and forms, which anybody can write."""

from collections.abc import Iterable

ID_DIGITS = 18
"""What fits a bigint, whatever the digits are."""


def row_id(text: str) -> int | None:
    """The id of a row, as far as a text is one."""
    plain = text.strip()
    return int(plain) if plain.isascii() and plain.isdecimal() and len(plain) <= ID_DIGITS else None


def row_ids(texts: Iterable[str]) -> list[int]:
    """The ids among texts."""
    return [found for text in texts if (found := row_id(text)) is not None]
