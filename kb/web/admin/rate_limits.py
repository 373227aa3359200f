"""The limits of requests hold in the admin as they do for API and MCP: for what searches, asks a model or brings files in.

A view says of which kind its requests are: `rate_limit_kind`.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

from django.contrib import admin
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from kb.access.models.accounts import User
from kb.access.services.rate_limits import GENERAL, UPLOAD, request_spend
from kb.base.errors import DATABASE_OUT_OF_REACH
from kb.base.files import largest_upload_bytes

V = TypeVar("V", bound=Callable[..., Any])


def brings_files(view: V) -> V:
    """Marks a view whose POST brings in documents or archives of them."""
    view.rate_limit_kind = UPLOAD  # type: ignore[attr-defined]
    view.most_form_bytes = largest_upload_bytes  # type: ignore[attr-defined]
    return view


class RateLimits:
    """Middleware; who calls is known by then."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:  # noqa: ARG002
        kind = getattr(getattr(view, "view_class", view), "rate_limit_kind", None)
        is_counted_by_itself = hasattr(view, "cls")  # a view of the API
        if kind is None or is_counted_by_itself or not _counts(request, kind):
            return None
        try:
            spent = request_spend(request.user, kind=kind) if isinstance(request.user, User) else None
        except DATABASE_OUT_OF_REACH:  # the view meets the same, and is answered for
            return None
        return None if spent is None or spent.allowed else _refusal(request, spent.resets_in_s)


def _counts(request: HttpRequest, kind: str) -> bool:
    """Pages that search do so by their URL; the others do something when they are sent a form."""
    return bool(request.GET) if kind == GENERAL else request.method == "POST"


def _refusal(request: HttpRequest, seconds: int) -> HttpResponse:
    detail = _("Too many requests: try again in %(seconds)d seconds.") % {"seconds": seconds}
    if "text/html" not in request.headers.get("Accept", ""):  # a script of a page asks
        response: HttpResponse = JsonResponse({"detail": detail, "message": detail})
    else:
        context = {**admin.site.each_context(request), "title": _("Too many requests"), "detail": detail}
        response = render(request, "web/try_again.html", context)
    response.status_code = HTTPStatus.TOO_MANY_REQUESTS
    response.headers["Retry-After"] = str(seconds)
    return response
