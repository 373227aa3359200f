"""What a row of an imported file does."""

from dataclasses import dataclass
from enum import StrEnum


class Effect(StrEnum):
    NEW = "new"
    CHANGED = "changed"
    SAME = "same"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row of a file; `message` says what is wrong with it, or what it changes."""

    line: int
    text: str
    effect: Effect
    message: str = ""
