"""What pages offer above their rows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to look at the rows; `count` is None where it is not counted."""

    value: str
    label: str
    url: str
    is_chosen: bool
    count: int | None = None
