"""What stands in front of the admin's views: pages for errors, also while DEBUG is on, and limits of requests."""

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeVar

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext as _

from kb.access.models import User
from kb.access.services.rate_limits import GENERAL, UPLOAD, request_spend
from kb.base.errors import COLLISION_SECONDS, DATABASE_OUT_OF_REACH, is_collision
from kb.base.files import FilesUnavailable, largest_upload_bytes

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 30


class ErrorPages(MiddlewareMixin):
    """Middleware that answers with pages that lead back, and with 503 and Retry-After what may go well later.

    The API does so by itself.
    """

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, DATABASE_OUT_OF_REACH):
            logger.error("the database could not answer", exc_info=exception)
            # Without the request: what the theme's pages show beside their own matter comes from the database.
            return _unavailable(render_to_string("web/unavailable.html", {"seconds": RETRY_AFTER_S}), RETRY_AFTER_S)
        if not request.path.startswith(reverse("admin:index")):
            return None
        if isinstance(exception, Http404 | PermissionDenied):
            return _refused(request, is_missing=isinstance(exception, Http404))
        if isinstance(exception, FilesUnavailable):
            logger.error("uploads cannot be reached: %s", exception)
            detail = _("The store of the files cannot be reached: try again in a moment.")
            return _unavailable(_try_again(request, detail), RETRY_AFTER_S)
        if is_collision(exception):
            logger.warning("a row was deleted while another came to point to it", exc_info=exception)
            detail = _("Something that this belongs to was deleted at the same moment, and nothing was changed.")
            return _unavailable(_try_again(request, detail), COLLISION_SECONDS)
        return None


def _refused(request: HttpRequest, *, is_missing: bool) -> HttpResponse:
    title = _("This page does not exist") if is_missing else _("You may not open this page")
    template = "web/not_found.html" if is_missing else "web/forbidden.html"
    status = HTTPStatus.NOT_FOUND if is_missing else HTTPStatus.FORBIDDEN
    return render(request, template, {**admin.site.each_context(request), "title": title}, status=status)


def _try_again(request: HttpRequest, detail: str) -> str:
    context = {**admin.site.each_context(request), "title": _("This did not work just now"), "detail": detail}
    return render_to_string("web/try_again.html", context, request)


def _unavailable(page: str, seconds: int) -> HttpResponse:
    headers = {"Retry-After": str(seconds), "Cache-Control": "no-store"}
    return HttpResponse(page, status=HTTPStatus.SERVICE_UNAVAILABLE, headers=headers)


V = TypeVar("V", bound=Callable[..., Any])


def brings_files(view: V) -> V:
    """Marks a view whose POST brings in documents or archives of them."""
    view.rate_limit_kind = UPLOAD  # type: ignore[attr-defined]
    view.most_form_bytes = largest_upload_bytes  # type: ignore[attr-defined]
    return view


class RateLimits(MiddlewareMixin):
    """Middleware; who calls is known by then."""

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:  # noqa: ARG002
        kind = getattr(getattr(view, "view_class", view), "rate_limit_kind", None)
        is_counted_by_itself = hasattr(view, "cls")  # a view of the API
        if kind is None or is_counted_by_itself:
            return None
        # Pages that search do so by their URL; the others do something when they are sent a form.
        is_counted = bool(request.GET) if kind == GENERAL else request.method == "POST"
        if not is_counted:
            return None
        try:
            spent = request_spend(request.user, kind=kind) if isinstance(request.user, User) else None
        except DATABASE_OUT_OF_REACH:  # the view meets the same, and is answered for
            return None
        return None if spent is None or spent.allowed else _refusal(request, spent.resets_in_s)


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
