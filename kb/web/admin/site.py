"""The admin's site: Unfold's, with the limits of its login and with the pages that belong to no model."""

from collections.abc import Callable
from typing import Any, TypeVar

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.views.generic import TemplateView
from unfold.sites import UnfoldAdminSite

from kb.web.admin.login import log_in

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


class ZhikuAdminSite(UnfoldAdminSite):  # type: ignore[misc]
    def get_urls(self) -> list[URLPattern]:
        pages = [
            path(route, self.admin_view(view.as_view() if hasattr(view, "as_view") else view), name=name)
            for route, view, name in _PAGES
        ]
        return [*pages, *super().get_urls()]

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        return log_in(request, lambda: super(ZhikuAdminSite, self).login(request, extra_context))
