"""The admin's site: Unfold's, with limits of requests, and with pages that features add to it and to each other's models."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path
from django.views.generic import TemplateView
from unfold.sites import UnfoldAdminSite

from kb.web.admin.login import log_in
from kb.web.admin.middleware import limited

Registered = TypeVar("Registered")

_PAGES: list[tuple[str, Any, str]] = []


def page(route: str, name: str) -> Callable[[Registered], Registered]:
    """Registers a view, a class or a function, as a page of the admin, behind its login.

    Args:
        route: below the admin's address.
        name: in the namespace `admin`.
    """

    def register(view: Registered) -> Registered:
        _PAGES.append((route, view, name))
        return view

    return register


class AdminPage(TemplateView):
    """A page with the admin's frame. Whoever may open the admin may open it; it shows what that user may see."""

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**admin.site.each_context(self.request), **super().get_context_data(**kwargs)}


Pages = Callable[[Any], Sequence[URLPattern]]
Context = Callable[[HttpRequest, Any], Mapping[str, Any]]

_ADDED_PAGES: dict[type[Model], list[Pages]] = defaultdict(list)
_ADDED_CONTEXTS: dict[type[Model], list[Context]] = defaultdict(list)


def add_part(model: type[Model], *, pages: Pages | None = None, context: Context | None = None) -> None:
    """Adds a feature's part to the pages of a model, whose admin is a `ScopedModelAdmin`.

    Args:
        model: whose pages they are.
        pages: pages below the model's own, given its admin.
        context: what the templates around the form of a row need, given the request and the row.
    """
    if pages is not None:
        _ADDED_PAGES[model].append(pages)
    if context is not None:
        _ADDED_CONTEXTS[model].append(context)


def added_pages(model_admin: Any) -> list[URLPattern]:
    return [page for pages in _ADDED_PAGES[model_admin.model] for page in pages(model_admin)]


def added_context(request: HttpRequest, row: Model) -> dict[str, Any]:
    return {name: value for context in _ADDED_CONTEXTS[type(row)] for name, value in context(request, row).items()}


class ZhikuAdminSite(UnfoldAdminSite):  # type: ignore[misc]
    def get_urls(self) -> list[URLPattern]:
        pages = [
            path(route, self.admin_view(view.as_view() if hasattr(view, "as_view") else view), name=name)
            for route, view, name in _PAGES
        ]
        return [*pages, *super().get_urls()]

    def admin_view(self, view: Callable[..., HttpResponseBase], cacheable: bool = False) -> Any:  # noqa: FBT001, FBT002
        return limited(super().admin_view(view, cacheable))

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return log_in(request, lambda: super(ZhikuAdminSite, self).login(request, extra_context))
