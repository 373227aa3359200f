"""Parts that features add to pages above them: chips and buttons at the head of a knowledge base, and things to do on the workbench."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from django.http import HttpRequest

from kb.access.models import KnowledgeBase


@dataclass(frozen=True, slots=True)
class Chip:
    """A short fact about a knowledge base; `tone` is blank, "good", "warning" or "bad". A link leads to what can be done about it."""

    text: str
    tone: str = ""
    url: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """A button at the head of a knowledge base; `icon` is the name of a sign of the theme's font."""

    text: str
    icon: str
    url: str


@dataclass(frozen=True, slots=True)
class Task:
    """Something that waits for the user, such as "2 documents failed", and the button that leads to where it is done.

    `count` is how many things that are: the menu shows the sum beside the entry that `url` belongs to.
    """

    text: str
    url: str
    action: str
    order: int = 50
    is_urgent: bool = False
    count: int = 1


Chips = Callable[[HttpRequest, KnowledgeBase], Iterable[Chip]]
Actions = Callable[[HttpRequest, KnowledgeBase], Iterable[Action]]
Tasks = Callable[[HttpRequest], Iterable[Task]]

_CHIPS: list[Chips] = []
_ACTIONS: list[Actions] = []
_TASKS: list[Tasks] = []


def add_chips(of: Chips) -> Chips:
    """Registers what a feature says of a knowledge base at the head of its pages."""
    _CHIPS.append(of)
    return of


def chips(request: HttpRequest, kb: KnowledgeBase) -> Iterator[Chip]:
    for of in _CHIPS:
        yield from of(request, kb)


def add_actions(of: Actions) -> Actions:
    """Registers what a feature lets users do with a knowledge base."""
    _ACTIONS.append(of)
    return of


def actions(request: HttpRequest, kb: KnowledgeBase) -> Iterator[Action]:
    for of in _ACTIONS:
        yield from of(request, kb)


def add_tasks(of: Tasks) -> Tasks:
    """Registers what a feature puts on the user's list of things to do."""
    _TASKS.append(of)
    return of


def tasks(request: HttpRequest) -> list[Task]:
    """All that waits for the user, the first to be done first; asked of the features once a request."""
    if "_tasks" not in request.__dict__:
        request.__dict__["_tasks"] = sorted(
            (task for of in _TASKS for task in of(request)), key=lambda task: task.order
        )
    found: list[Task] = request.__dict__["_tasks"]
    return found
