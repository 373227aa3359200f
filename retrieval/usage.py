"""How much of a model is used: whoever has asked one reports it, and whoever counts listens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Role = Literal["chat", "embedding", "rerank"]


@dataclass(frozen=True, slots=True)
class Use:
    """What one answered request took; tokens are as the server counts them, or by the length of the texts (`is_estimated`)."""

    role: Role
    model: str  # the id by which the caller knows it
    input_tokens: int = 0
    output_tokens: int = 0
    is_estimated: bool = False


Listener = Callable[[Use], None]

_listeners: list[Listener] = []


def listen(listener: Listener) -> Listener:
    """Has a function called with every use, in the thread and the context of the request; it must be quick and not raise."""
    _listeners.append(listener)
    return listener


def report(use: Use) -> None:
    for listener in _listeners:
        listener(use)
