"""What stands in front of the admin's views: pages for errors, also while DEBUG is on, and limits of requests."""

import logging
from collections.abc import Callable, Mapping
from functools import wraps
from http import HTTPStatus
from typing import Any, TypeVar

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
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


def error_page(
    request: HttpRequest,
    status: HTTPStatus,
    template: str,
    title: str,
    headers: Mapping[str, str] | None = None,
    **context: Any,
) -> HttpResponse:
    context = {**admin.site.each_context(request), "title": title, **context}
    return HttpResponse(render_to_string(template, context, request), status=status, headers=headers)


class ErrorPages(MiddlewareMixin):
    """Middleware that answers with pages that lead back, and with 503 and Retry-After what may go well later.

    The API does so by itself.
    """

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, DATABASE_OUT_OF_REACH):
            logger.error("the database could not answer", exc_info=exception)
            # Without the request: what the theme's pages show beside their own matter comes from the database.
            page = render_to_string("web/unavailable.html", {"seconds": RETRY_AFTER_S})
            return HttpResponse(page, status=HTTPStatus.SERVICE_UNAVAILABLE, headers=_later(RETRY_AFTER_S))
        if not request.path.startswith(reverse("admin:index")):
            return None
        if isinstance(exception, Http404):
            return error_page(request, HTTPStatus.NOT_FOUND, "web/not_found.html", _("This page does not exist"))
        if isinstance(exception, PermissionDenied):
            return error_page(request, HTTPStatus.FORBIDDEN, "web/forbidden.html", _("You may not open this page"))
        if isinstance(exception, FilesUnavailable):
            logger.error("uploads cannot be reached: %s", exception)
            seconds, detail = RETRY_AFTER_S, _("The store of the files cannot be reached: try again in a moment.")
        elif is_collision(exception):
            logger.warning("a row was deleted while another came to point to it", exc_info=exception)
            detail = _("Something that this belongs to was deleted at the same moment, and nothing was changed.")
            seconds = COLLISION_SECONDS
        else:
            return None
        status, title = HTTPStatus.SERVICE_UNAVAILABLE, _("This did not work just now")
        return error_page(request, status, "web/try_again.html", title, _later(seconds), detail=detail)


def _later(seconds: int) -> dict[str, str]:
    return {"Retry-After": str(seconds), "Cache-Control": "no-store"}


V = TypeVar("V", bound=Callable[..., Any])


def brings_files(view: V) -> V:
    """Marks a view whose POST brings in documents or archives of them."""
    view.rate_limit_kind = UPLOAD  # type: ignore[attr-defined]
    view.most_form_bytes = largest_upload_bytes  # type: ignore[attr-defined]
    return view


def limited(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """A view of the admin within the rate limit of its user, where it names one: `rate_limit_kind`."""
    kind = getattr(getattr(view, "view_class", view), "rate_limit_kind", None)
    if kind is None:
        return view

    @wraps(view)
    def counted(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        # Pages that search do so by their URL; the others do something when they are sent a form.
        is_counted = bool(request.GET) if kind == GENERAL else request.method == "POST"
        if is_counted and isinstance(request.user, User):
            try:
                spent = request_spend(request.user, kind=kind)
            except DATABASE_OUT_OF_REACH:  # the view meets the same, and is answered for
                spent = None
            if spent and not spent.allowed:
                return _refusal(request, spent.resets_in_s)
        return view(request, *args, **kwargs)

    return counted


def _refusal(request: HttpRequest, seconds: int) -> HttpResponse:
    detail = _("Too many requests: try again in %(seconds)d seconds.") % {"seconds": seconds}
    status, headers = HTTPStatus.TOO_MANY_REQUESTS, {"Retry-After": str(seconds)}
    if "text/html" not in request.headers.get("Accept", ""):  # a script of a page asks
        return JsonResponse({"detail": detail, "message": detail}, status=status, headers=headers)
    return error_page(request, status, "web/try_again.html", _("Too many requests"), headers, detail=detail)
