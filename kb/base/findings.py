"""What an examination says of one thing that was looked at."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        detail: what was found.
        remedy: what to do about it; empty where nothing is.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        return {"name": self.name, "state": self.state.value, "detail": self.detail, "remedy": self.remedy}


def listed(names: Iterable[str], shown: int = 5) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(repr(name) for name in names[:shown]) + rest


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
