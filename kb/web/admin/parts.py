"""What features add to the admin pages of rows that belong to features below them."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db.models import Model
from django.http import HttpRequest
from django.urls import URLPattern

Pages = Callable[[Any], Sequence[URLPattern]]
Context = Callable[[HttpRequest, Any], Mapping[str, Any]]

_PAGES: dict[type[Model], list[Pages]] = defaultdict(list)
_CONTEXTS: dict[type[Model], list[Context]] = defaultdict(list)


def add_part(model: type[Model], *, pages: Pages | None = None, context: Context | None = None) -> None:
    """Adds a feature's part to the pages of a model, whose admin is a `ScopedModelAdmin`.

    Args:
        model: whose pages they are.
        pages: pages below the model's own, given its admin.
        context: what the templates around the form of a row need, given the request and the row.
    """
    if pages is not None:
        _PAGES[model].append(pages)
    if context is not None:
        _CONTEXTS[model].append(context)


def added_pages(model_admin: Any) -> list[URLPattern]:
    return [page for pages in _PAGES[model_admin.model] for page in pages(model_admin)]


def added_context(request: HttpRequest, row: Model) -> dict[str, Any]:
    return {name: value for context in _CONTEXTS[type(row)] for name, value in context(request, row).items()}
