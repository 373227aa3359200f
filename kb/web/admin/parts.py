"""What features add to the admin pages of rows that belong to features below them."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Model
from django.http import HttpRequest
from django.urls import URLPattern

Pages = Callable[[Any], Sequence[URLPattern]]
Context = Callable[[HttpRequest, Any], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Part:
    """A feature's part of a model's pages.

    Attributes:
        pages: pages below the model's own, given its admin.
        context: what the templates around the form of a row need, given the request and the row.
    """

    pages: Pages | None
    context: Context | None


_PARTS: dict[type[Model], list[Part]] = defaultdict(list)


def add_part(model: type[Model], *, pages: Pages | None = None, context: Context | None = None) -> None:
    """Adds a part to the pages of a model, whose admin is a `ScopedModelAdmin`."""
    _PARTS[model].append(Part(pages, context))


def added_pages(model_admin: Any) -> list[URLPattern]:
    """The pages that features add to those of a model."""
    return [page for part in _PARTS[model_admin.model] if part.pages for page in part.pages(model_admin)]


def added_context(request: HttpRequest, row: Model) -> dict[str, Any]:
    """What features add to the context of a row's form."""
    parts = [part.context(request, row) for part in _PARTS[type(row)] if part.context]
    return {name: value for part in parts for name, value in part.items()}
