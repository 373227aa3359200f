"""How far this process is with loading its models."""

from dataclasses import dataclass
from enum import StrEnum
from threading import Lock


class Stage(StrEnum):
    """`COLD`: this process loads models only when a search wants them, as commands do."""

    COLD = "cold"
    LOADING = "loading"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Warmth:
    """Where the loading stands.

    Attributes:
        failed: ids of models that could not be loaded; searches do without them, and say so.
    """

    stage: Stage = Stage.COLD
    failed: tuple[str, ...] = ()


_lock = Lock()
_now = Warmth()


def warmth() -> Warmth:
    with _lock:
        return _now


def note(stage: Stage, failed: tuple[str, ...] = ()) -> None:
    global _now  # noqa: PLW0603 - one a process, as the models are
    with _lock:
        _now = Warmth(stage, failed)
