"""The door of the admin: how often one may knock, and what a reader sees who has knocked too often."""

import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from django.conf import settings
from django.core import signing
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters

from kb.access.services.rate_limits import login_spend, name_digest
from kb.base.net.client_address import client_network
from kb.web.admin.middleware import error_page

LONGEST_NAME: Final = 150
DEVICE_SECONDS: Final = 180 * 24 * 60 * 60
_SALT: Final = "kb.web.admin.login.device"


@sensitive_post_parameters()
@never_cache
def log_in(request: HttpRequest, proceed: Callable[[], HttpResponse]) -> HttpResponse:
    """The admin's login, which `proceed` is, with limits that hold before a password is looked at."""
    if request.method != "POST":
        return proceed()
    name = request.POST.get("username", "")
    if len(name) > LONGEST_NAME:
        raise BadRequest("no account has so long a name")
    device = _device(request, name)
    spent = login_spend(client_network(request), name, device)
    if spent is not None and not spent.allowed:
        return _refused(request, spent.resets_in_s, seconds=spent.resets_in_s)
    response = proceed()
    if response.status_code == HTTPStatus.FOUND and request.user.is_authenticated:
        digest = name_digest(name)
        response.set_cookie(
            _cookie(digest),
            signing.dumps({"name": digest, "device": (device or secrets.token_hex(8))}, salt=_SALT),
            max_age=DEVICE_SECONDS,
            path=reverse("admin:login"),
            secure=settings.SESSION_COOKIE_SECURE,
            httponly=True,
            samesite="Strict",
        )
    return response


def locked_out(
    request: HttpRequest, _original: HttpResponse | None, _credentials: dict[str, Any] | None
) -> HttpResponse:
    """The page instead of the login's, until the wait is over; 429 with Retry-After."""
    minutes = settings.LOGIN_LOCK_MINUTES
    return _refused(request, minutes * 60, minutes=minutes, attempts=settings.LOGIN_ATTEMPTS)


def _refused(request: HttpRequest, wait_s: int, **about: int) -> HttpResponse:
    status, headers = HTTPStatus.TOO_MANY_REQUESTS, {"Retry-After": str(wait_s)}
    return error_page(request, status, "web/locked_out.html", _("Too many failed logins"), headers, **about)


def _device(request: HttpRequest, name: str) -> str:
    """That which an earlier login with this name has left its id on; blank: none."""
    digest = name_digest(name)
    signed = request.COOKIES.get(_cookie(digest), "")
    try:
        kept = signing.loads(signed, salt=_SALT, max_age=DEVICE_SECONDS)
    except signing.BadSignature:
        return ""
    return str(kept["device"]) if kept["name"] == digest else ""


def _cookie(digest: str) -> str:
    """One for each name, since several people may share a browser."""
    return f"device_{digest[:8]}"
