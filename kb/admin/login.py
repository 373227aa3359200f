"""What a reader sees who has failed to log in too often."""

from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _


def locked_out(
    request: HttpRequest, _original: HttpResponse | None, _credentials: dict[str, Any] | None
) -> HttpResponse:
    """The page instead of the login's, until the wait is over; 429 with Retry-After."""
    context = {
        **admin.site.each_context(request),
        "title": _("Too many failed logins"),
        "minutes": settings.LOGIN_LOCK_MINUTES,
        "attempts": settings.LOGIN_ATTEMPTS,
    }
    response = render(request, "admin/locked_out.html", context, status=HTTPStatus.TOO_MANY_REQUESTS)
    response["Retry-After"] = str(settings.LOGIN_LOCK_MINUTES * 60)
    return response
