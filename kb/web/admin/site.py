"""The admin's site: pages that features add to it, limits of logins and requests, and pages for errors."""

import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from axes.handlers.proxy import AxesProxyHandler
from django.conf import settings
from django.contrib import admin
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.forms import AuthenticationForm as PlainAuthenticationForm
from django.core import signing
from django.core.exceptions import BadRequest, ObjectDoesNotExist, PermissionDenied
from django.db.models import Model
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.urls import URLPattern, path, reverse
from django.utils.deprecation import MiddlewareMixin
from django.utils.functional import SimpleLazyObject
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.generic import RedirectView, TemplateView
from unfold.forms import AuthenticationForm
from unfold.sites import UnfoldAdminSite

from kb.access.models import User
from kb.access.services.rate_limits import GENERAL, LOGIN, UPLOAD, attempt_spend, name_digest, name_spend, request_spend
from kb.base.disk import is_disk_full
from kb.base.errors import COLLISION_SECONDS, DATABASE_OUT_OF_REACH, NotAllowed, NotVisible, is_collision
from kb.base.files import FilesUnavailable, largest_upload_bytes
from kb.base.net.client_address import client_network
from kb.base.waits import RETRY_SECONDS, TooManyWaits

Registered = TypeVar("Registered")

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 30
LONGEST_NAME: Final = 150
DEVICE_SECONDS: Final = 180 * 24 * 60 * 60
_SALT: Final = "kb.web.admin.login.device"


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
    """Middleware for errors outside of the API: pages that lead back; 503 with Retry-After for what may work later.

    Of a full disk `server_error` says so, as where no view was reached.
    """

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if isinstance(exception, DATABASE_OUT_OF_REACH) and not is_disk_full(exception):
            logger.error("the database could not answer", exc_info=exception)
            # Without the request: what the theme's pages show beside their own matter comes from the database.
            page = render_to_string("web/unavailable.html", {"seconds": RETRY_AFTER_S})
            return HttpResponse(page, status=HTTPStatus.SERVICE_UNAVAILABLE, headers=_later(RETRY_AFTER_S))
        if not request.path.startswith(reverse("admin:index")):
            return None
        # As the API: a row may be deleted, and a right end, after the page has looked for them
        if isinstance(exception, Http404 | NotVisible | ObjectDoesNotExist):
            return error_page(request, HTTPStatus.NOT_FOUND, "web/not_found.html", _("This page does not exist"))
        if isinstance(exception, PermissionDenied | NotAllowed):
            return error_page(request, HTTPStatus.FORBIDDEN, "web/forbidden.html", _("You may not open this page"))
        if isinstance(exception, FilesUnavailable):
            logger.error("uploads cannot be reached: %s", exception)
            seconds, detail = RETRY_AFTER_S, _("The store of the files cannot be reached: try again in a moment.")
        elif isinstance(exception, TooManyWaits):
            seconds, detail = RETRY_SECONDS, str(exception)
        elif is_collision(exception):
            logger.warning("a row was deleted while another came to point to it", exc_info=exception)
            detail = _("Something that this belongs to was deleted at the same moment, and nothing was changed.")
            seconds = COLLISION_SECONDS
        else:
            return None
        return _not_now(request, seconds, detail)


def _not_now(request: HttpRequest, seconds: int, detail: str) -> HttpResponse:
    status, headers = HTTPStatus.SERVICE_UNAVAILABLE, _later(seconds)
    if "HX-Request" in request.headers:  # for a part of a page, which frame.js puts there
        part = format_html('<p class="kb-notice warning" role="alert">{}</p>', detail)
        return HttpResponse(part, status=status, headers={**headers, "HX-Reswap": "innerHTML"})
    return error_page(request, status, "web/try_again.html", _("This did not work just now"), headers, detail=detail)


def _later(seconds: int) -> dict[str, str]:
    return {"Retry-After": str(seconds), "Cache-Control": "no-store"}


def brings_files(view: Registered) -> Registered:
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
                return _slow_down(request, spent.resets_in_s)
        return view(request, *args, **kwargs)

    return counted


def _slow_down(request: HttpRequest, seconds: int) -> HttpResponse:
    detail = _("Too many requests: try again in %(seconds)d seconds.") % {"seconds": seconds}
    status, headers = HTTPStatus.TOO_MANY_REQUESTS, {"Retry-After": str(seconds)}
    if "text/html" not in request.headers.get("Accept", ""):  # a script of a page asks
        return JsonResponse({"detail": detail, "message": detail}, status=status, headers=headers)
    return error_page(request, status, "web/try_again.html", _("Too many requests"), headers, detail=detail)


class LoginForm(AuthenticationForm):  # type: ignore[misc]
    """Lets everybody in whose password is right; who is no staff only where the login leads to another page than the admin's."""

    def confirm_login_allowed(self, user: Any) -> None:
        if self.request is None or leads_into_admin(safe_next(self.request)):
            super().confirm_login_allowed(user)
        else:
            PlainAuthenticationForm.confirm_login_allowed(self, user)


def safe_next(request: HttpRequest) -> str:
    """Where a login leads to, an address of this site; blank where none is named, or one elsewhere."""
    asked = request.POST.get(REDIRECT_FIELD_NAME, "") or request.GET.get(REDIRECT_FIELD_NAME, "")
    is_here = url_has_allowed_host_and_scheme(
        asked, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return asked if is_here else ""


def leads_into_admin(address: str) -> bool:
    return not address or urlsplit(address).path.startswith(reverse("admin:index"))


@sensitive_post_parameters()
@never_cache
def log_in(request: HttpRequest, proceed: Callable[[], HttpResponse]) -> HttpResponse:
    """The admin's login, which `proceed` is, with limits that hold before a password is looked at."""
    if request.method != "POST":
        address = safe_next(request)
        if request.user.is_authenticated and not leads_into_admin(address):
            return HttpResponseRedirect(address)
        return proceed()
    if not settings.PASSWORD_LOGIN:
        return not_signed_in(
            request,
            HTTPStatus.FORBIDDEN,
            _("Nobody logs in with a password here. Go back and sign in with the button."),
        )
    name = request.POST.get("username", "")
    if len(name) > LONGEST_NAME:
        raise BadRequest("no account has so long a name")
    device = _device(request, name)
    spent = attempt_spend(LOGIN, client_network(request))
    if spent is None or spent.allowed:
        # What is locked already uses up nothing of the name's limit, or one address could keep the name out everywhere.
        if settings.AXES_ENABLED and not AxesProxyHandler.is_allowed(request, {"username": name}):
            return locked_out(request, None, None)
        spent = name_spend(name, device)
    if spent is not None and not spent.allowed:
        return refused_login(request, spent.resets_in_s, seconds=spent.resets_in_s)
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
    return refused_login(request, minutes * 60, minutes=minutes, attempts=settings.LOGIN_ATTEMPTS)


def refused_login(request: HttpRequest, wait_s: int, **about: int) -> HttpResponse:
    status, headers = HTTPStatus.TOO_MANY_REQUESTS, {"Retry-After": str(wait_s)}
    return error_page(request, status, "web/locked_out.html", _("Too many failed logins"), headers, **about)


def not_signed_in(request: HttpRequest, status: HTTPStatus, text: str, detail: str = "") -> HttpResponse:
    """The page that says why, and what to do about it."""
    return error_page(request, status, "web/not_signed_in.html", _("You are not signed in"), text=text, detail=detail)


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


_PAGES: list[tuple[str, Any, str]] = []


def admin_page(route: str, name: str) -> Callable[[Registered], Registered]:
    """Registers a view, a class or a function, as a page of the admin, behind its login."""

    def register(view: Registered) -> Registered:
        _PAGES.append((route, view, name))
        return view

    return register


class AdminPage(TemplateView):
    """A page with the admin's frame. Whoever may open the admin may open it; it shows what that user may see."""

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**admin.site.each_context(self.request), **super().get_context_data(**kwargs)}


Around = Callable[[HttpRequest], Mapping[str, Any]]
Pages = Callable[[Any], Sequence[URLPattern]]
Context = Callable[[HttpRequest, Any], Mapping[str, Any]]

ADDED_PAGES: dict[type[Model], list[Pages]] = defaultdict(list)
ADDED_CONTEXTS: dict[type[Model], list[Context]] = defaultdict(list)


def add_part(model: type[Model], *, pages: Pages | None = None, context: Context | None = None) -> None:
    """Adds pages below a model's, given its `ScopedModelAdmin`, and context around its form, given request and row."""
    if pages is not None:
        ADDED_PAGES[model].append(pages)
    if context is not None:
        ADDED_CONTEXTS[model].append(context)


# Addresses that pages had before, and the names of those that they have now. Parameters come along.
MOVED: dict[str, str] = {"kb/": "index", "kb/websource/": "kb_source_changelist"}


_LOGINS: list[tuple[Around, Around]] = []


def add_login(before: Around, after: Around) -> None:
    """Adds another way to sign in: context of the login page, and of the page after a logout, asked while there is a session."""
    _LOGINS.append((before, after))


class ZhikuAdminSite(UnfoldAdminSite):  # type: ignore[misc]
    login_form = LoginForm
    logout_template = "web/logged_out.html"

    def get_urls(self) -> list[URLPattern]:
        pages = [
            path(route, self.admin_view(view.as_view() if hasattr(view, "as_view") else view), name=name)
            for route, view, name in _PAGES
        ]
        moved = [
            path(route, RedirectView.as_view(pattern_name=f"admin:{name}", query_string=True))
            for route, name in MOVED.items()
        ]
        return [*pages, *moved, *super().get_urls()]

    def admin_view(self, view: Callable[..., HttpResponseBase], cacheable: bool = False) -> Any:  # noqa: FBT001, FBT002
        return limited(super().admin_view(view, cacheable))

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        return {**super().each_context(request), "password_login": settings.PASSWORD_LOGIN}

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> Any:
        """Lazy: it is in the context of every page, and our templates do not use it."""
        return SimpleLazyObject(partial(super().get_app_list, request, app_label))

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        context = {**(extra_context or {})}
        for before, _after in _LOGINS:
            context |= before(request)
        return log_in(request, lambda: super(ZhikuAdminSite, self).login(request, context))

    def logout(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        context = {**(extra_context or {})}
        for _before, after in _LOGINS:
            context |= after(request)
        answer: HttpResponse = super().logout(request, context)
        return answer

    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not settings.PASSWORD_LOGIN:
            raise PermissionDenied
        answer: HttpResponse = super().password_change(request, extra_context)
        return answer
