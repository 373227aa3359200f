"""Who calls, how often they may, and how long a body they may send: what is asked before any view."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

from django.conf import settings
from django.contrib.auth import get_user
from django.core.handlers.wsgi import WSGIRequest
from django.db import DatabaseError, connections
from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, resolve
from django.utils.deprecation import MiddlewareMixin
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _, gettext_lazy
from rest_framework import status
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import APIException, AuthenticationFailed, Throttled
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from kb.access.models import ApiKey, Principal, User
from kb.access.services.api_keys import api_key_use
from kb.access.services.attribution import How, acting, caller_is
from kb.access.services.rate_limits import FAILURES, GENERAL, Spent, attempt_spend, request_spend
from kb.base.net.client_address import client_address, client_network
from kb.base.telemetry import logs
from kb.web.api.errors import PROGRAMS, ApiError, answer, problem_of

SCHEME = "Bearer"
WRONG_KEY = gettext_lazy("This API key is unknown, revoked or expired: ask for a new one.")


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer <key>`; `request.auth` is then the key."""

    def authenticate(self, request: Request) -> tuple[User, ApiKey] | None:
        scheme, _separator, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != SCHEME.lower():
            return None
        key = api_key_use(secret.strip())
        if key is None:
            raise AuthenticationFailed(WRONG_KEY)
        caller_is(key.user, key)
        return key.user, key

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002 - the framework's interface
        """Being the first authenticator's, it makes 401, not 403, the answer to a caller without credentials."""
        return SCHEME


def principal_of(request: Request) -> Principal:
    """The caller of an authenticated request, under the scope of the key in use; read once a request."""
    if not hasattr(request, "principal"):
        principal = request.auth.principal() if isinstance(request.auth, ApiKey) else Principal(user=request.user)
        request.principal = principal  # type: ignore[attr-defined]
    return cast(Principal, request.principal)  # type: ignore[attr-defined]


def user_of(request: Request) -> User:
    """The user behind an authenticated request; the permission has turned anonymous ones away."""
    return cast(User, request.user)


class PrincipalPermission(BasePermission):
    """Callers are known, and may use a writing method if they can write, or the POST only reads (`post_reads`)."""

    def has_permission(self, request: Request, view: Any) -> bool:
        reads = request.method in SAFE_METHODS or (request.method == "POST" and getattr(view, "post_reads", False))
        return bool(request.user.is_authenticated and (reads or principal_of(request).can_write))


# -- How often -------------------------------------------------------------------------------------------------------------
class CallerThrottle(BaseThrottle):
    """Counts each request of a known caller once. A view names another kind for its POST and PUT: `rate_limit_kind`."""

    def allow_request(self, request: Request, view: Any) -> bool:
        if not request.user.is_authenticated:
            return True
        kind = getattr(view, "rate_limit_kind", GENERAL) if request.method in {"POST", "PUT"} else GENERAL
        spent = _spend(request, kind=kind)
        return spent is None or spent.allowed


def spend_more(request: Request, cost: int, refusal: str) -> None:
    """Counts a request as so many more than it was counted as; raises Throttled with the refusal if fewer are left."""
    spent = _spend(request, cost=cost) if cost else None
    if spent and not spent.allowed:
        raise too_many(spent, refusal)


def _spend(request: Request, **how: Any) -> Spent | None:
    """Counts a request; the response says what is left, see `ApiView.finalize_response`."""
    spent = request_spend(user_of(request), request.auth if isinstance(request.auth, ApiKey) else None, **how)
    request.rate_limit = spent or getattr(request, "rate_limit", None)  # type: ignore[attr-defined]
    return spent


def too_many(spent: Spent | None, detail: str = "") -> Throttled:
    return Throttled(
        wait=spent.resets_in_s if spent else None, detail=detail or _("Too many requests: wait as Retry-After says.")
    )


def count_failure(request: HttpRequest) -> None:
    """Counts a request whose caller is not known; raises Throttled where there were too many from its address."""
    spent = attempt_spend(FAILURES, client_network(request))
    if spent is not None and not spent.allowed:
        raise too_many(spent)


# -- How much --------------------------------------------------------------------------------------------------------------
FORM_OVERHEAD_BYTES = 1024**2


class BodyLimit(MiddlewareMixin):
    """Middleware before all that reads a form, the check of its token included; refuses by the stated length alone."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        try:
            check_body(request)
        except APIException as error:
            if isinstance(error, AuthenticationFailed):
                error.auth_header = SCHEME  # type: ignore[attr-defined]
                try:
                    count_failure(request)
                except Throttled as throttled:
                    error = throttled
            if request.path.startswith((*PROGRAMS, "/chat/")):
                return answer(problem_of(error), request)
            return HttpResponse(str(error.detail), status=error.status_code, content_type="text/plain; charset=utf-8")
        return None


def check_body(request: HttpRequest) -> None:
    """Asks the database only for a body that is too large for a caller without a session or key.

    Raises:
        ApiError: 411 for chunks of unknown number, which would be read as an empty body; 413 for more than this caller
            may send.
        AuthenticationFailed: it is long, and comes with an API key that opens nothing.
    """
    if "Transfer-Encoding" in request.headers:
        raise ApiError(
            status.HTTP_411_LENGTH_REQUIRED,
            "length_required",
            _("Send the body with a Content-Length, not in chunks of unknown number."),
        )
    try:  # as the framework does, which takes what is no number for none
        length = int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        length = 0
    if length <= settings.ANONYMOUS_BODY_BYTES:
        return
    if not _is_known(request):
        message = _("Without a session or an API key a request’s body has at most %(kilobytes)s KB.")
        raise ApiError(
            status.HTTP_413_REQUEST_ENTITY_TOO_LARGE,
            "too_large",
            message % {"kilobytes": settings.ANONYMOUS_BODY_BYTES // 1024},
        )
    is_form = (request.content_type or "").startswith("multipart/")
    most = _most_form_bytes(request) + FORM_OVERHEAD_BYTES if is_form else settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    if length > most:
        advice = _("split the file") if is_form else _("upload long texts as a file")
        message = _("The body is larger than %(megabytes)s MB: %(advice)s.")
        raise ApiError(
            status.HTTP_413_REQUEST_ENTITY_TOO_LARGE,
            "too_large",
            message % {"megabytes": most // 1024**2, "advice": advice},
        )


def may_send(environ: dict[str, Any]) -> bool:
    """Whether the body that a request states may be taken in, asked before it has arrived; False also where nobody can say."""
    request = WSGIRequest(environ)
    request.session = import_string(f"{settings.SESSION_ENGINE}.SessionStore")(
        request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    )
    try:
        check_body(request)
    except (APIException, DatabaseError):
        return False
    finally:
        connections.close_all()
    return True


def _is_known(request: HttpRequest) -> bool:
    scheme, _separator, secret = request.headers.get("Authorization", "").partition(" ")
    if request.path.startswith(PROGRAMS) and scheme.lower() == SCHEME.lower():
        if api_key_use(secret.strip()) is None:
            raise AuthenticationFailed(WRONG_KEY)
        return True
    return settings.SESSION_COOKIE_NAME in request.COOKIES and get_user(request).is_authenticated


def _most_form_bytes(request: HttpRequest) -> int:
    """How long the files of a form may be together: a view that takes archives says so (`most_form_bytes`)."""
    try:
        view = resolve(request.path_info).func
    except Resolver404:
        return 0
    most = getattr(getattr(view, "cls", None) or getattr(view, "view_class", view), "most_form_bytes", None)
    return int(most() if most else settings.MAX_UPLOAD_BYTES)


# -- For the audit log -----------------------------------------------------------------------------------------------------
class AttributionMiddleware:
    """Sets the audit actor of requests that may write. Views whose POST only reads (`post_reads`) are left alone, as are safe methods."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with ExitStack() as stack:
            request.__dict__["attribution"] = stack
            return self.get_response(request)

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """Of a caller with an API key the view learns later than this who it is, and sets it (`caller_is`)."""
        if request.method in (*SAFE_METHODS, "TRACE") or getattr(getattr(view, "cls", None), "post_reads", False):
            return
        route = request.resolver_match.route if request.resolver_match else ""
        is_api = route.startswith("api/")
        user = getattr(request, "user", None)
        request.__dict__["attribution"].enter_context(
            acting(
                How.API if is_api else How.ADMIN,
                via=f"{request.method} {route}",
                user=user if isinstance(user, User) else None,
                address=client_address(request),
                request_id=str(logs.fields().get("request_id", "")),
            )
        )
