"""The addresses of signing in without a password: to the provider and back, and a link from the command line."""

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.auth import login
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_variables
from django.views.decorators.http import require_GET, require_http_methods

from kb.access.models import User
from kb.access.services.attribution import How, acting
from kb.access.services.rate_limits import LOGIN, attempt_spend
from kb.base.net.client_address import client_address, client_network
from kb.base.telemetry import logs
from kb.signin.backends import BACKEND
from kb.signin.errors import SignInRefused
from kb.signin.provider import Provider, current_provider
from kb.signin.services import link_opened
from kb.web.admin.site import not_signed_in, refused_login, safe_next

logger = logging.getLogger(__name__)

SESSION_KEY: Final = "signin"
"""In a session that the provider has begun: how it is ended there."""

View = Callable[..., HttpResponseBase]


def bounded(view: View) -> View:
    """A view within the limit of logins of an address, whose refusals are pages."""

    @wraps(view)
    def counted(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        spent = attempt_spend(LOGIN, client_network(request))
        if spent is not None and not spent.allowed:
            return refused_login(request, spent.resets_in_s, seconds=spent.resets_in_s)
        via = f"{request.method} {request.resolver_match.route}" if request.resolver_match else ""
        request_id = str(logs.fields().get("request_id", ""))
        try:
            with acting(How.ADMIN, via=via, address=client_address(request), request_id=request_id):
                return view(request, *args, **kwargs)
        except SignInRefused as error:
            logger.warning("nobody was signed in (%s): %s %s", error.code, error, error.detail)
            is_fault_of_provider = error.code in {"unreachable", "bad_answer"}
            status = HTTPStatus.BAD_GATEWAY if is_fault_of_provider else HTTPStatus.FORBIDDEN
            return not_signed_in(request, status, error.text, error.detail)

    return never_cache(counted)


@require_GET
@bounded
def begin(request: HttpRequest) -> HttpResponseBase:
    """Leads to the provider; a link does, since browsers hold the policy for forms against where they lead."""
    from kb.signin.protocol import AllauthProvider  # noqa: PLC0415 - and with it a client of HTTP

    return AllauthProvider(request, _provider()).begin(request, safe_next(request))


@require_GET
@bounded
def callback(request: HttpRequest) -> HttpResponseBase:
    from kb.signin.protocol import Callback, Flow  # noqa: PLC0415

    provider = _provider()
    flow = Flow(request, provider)
    response: HttpResponseBase = Callback(request, flow).dispatch(request)
    if isinstance(request.user, User) and flow.id_token:
        # From the beginning, and not from its last use: rights that ended at the provider end here by then.
        request.session.set_expiry(timezone.now() + timedelta(hours=provider.hours))
        request.session[SESSION_KEY] = {
            "name": provider.name,
            "client_id": provider.client_id,
            "id_token": flow.id_token,
            "end": flow.openid_config.get("end_session_endpoint", ""),
        }
    return response


@require_http_methods(["GET", "POST"])
@bounded
@sensitive_variables("token")
def link(request: HttpRequest) -> HttpResponse:
    """Asks once more, since programs that look at links in messages would use it up."""
    token = request.GET.get("token", "")
    with link_opened(token) as user:
        if request.method == "POST":
            login(request, user, backend=BACKEND)
            return HttpResponseRedirect(reverse("admin:index"))
    context = {**admin.site.each_context(request), "title": _("Sign-in link"), "name": user.get_username()}
    return render(request, "signin/link.html", context)


def login_context(request: HttpRequest) -> dict[str, Any]:
    """What the login page shows of the provider."""
    provider = current_provider()
    if provider is None:
        return {}
    address, next_url = reverse("signin_begin"), safe_next(request)
    return {
        "provider_name": provider.name,
        "provider_url": f"{address}?{urlencode({'next': next_url})}" if next_url else address,
    }


def logout_context(request: HttpRequest) -> dict[str, Any]:
    """What the page after a logout shows: where the session of the provider is ended, if it says where.

    Read before the session ends. A link leads there, since somebody who shares this machine may want to end both, and others
    only this one.
    """
    begun = request.session.get(SESSION_KEY)
    if not begun or not str(begun["end"]).startswith(("https://", "http://")):
        return {}
    back = request.build_absolute_uri(reverse("admin:login"))
    parameters = {"id_token_hint": begun["id_token"], "client_id": begun["client_id"], "post_logout_redirect_uri": back}
    separator = "&" if "?" in begun["end"] else "?"
    return {"provider_name": begun["name"], "provider_logout_url": f"{begun['end']}{separator}{urlencode(parameters)}"}


def _provider() -> Provider:
    provider = current_provider()
    if provider is None:
        raise Http404
    return provider
