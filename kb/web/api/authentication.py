"""Who is calling: an API key in the Authorization header, or a session."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, cast

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from kb.access.models import ApiKey, Principal, User
from kb.access.services.api_keys import api_key_use
from kb.access.services.attribution import How, acting, caller_is
from kb.base.net.client_address import client_address
from kb.base.telemetry import logs

if TYPE_CHECKING:
    from rest_framework.views import APIView  # at run time it imports this module, which the settings name


SCHEME = "Bearer"
WRONG_KEY = _("This API key is unknown, revoked or expired: ask for a new one.")


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
    principal: Principal | None = getattr(request, "principal", None)
    if principal is None:
        principal = request.auth.principal() if isinstance(request.auth, ApiKey) else Principal(user=request.user)
        request.principal = principal  # type: ignore[attr-defined]
    return principal


def user_of(request: Request) -> User:
    """The user behind an authenticated request; the permission has turned anonymous ones away."""
    return cast(User, request.user)


class PrincipalPermission(BasePermission):
    """Callers are known, and only those that can write may use a writing method.

    A view whose POST only reads says so with `post_reads = True`.
    """

    def has_permission(self, request: Request, view: "APIView") -> bool:
        if not request.user.is_authenticated:
            return False
        reads = request.method in SAFE_METHODS or (request.method == "POST" and getattr(view, "post_reads", False))
        return reads or principal_of(request).can_write


SILENT_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


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
        if request.method in SILENT_METHODS or getattr(getattr(view, "cls", None), "post_reads", False):
            return
        route = request.resolver_match.route if request.resolver_match else ""
        is_api = route.startswith("api/")
        user = getattr(request, "user", None)
        stack: ExitStack = request.__dict__["attribution"]
        stack.enter_context(
            acting(
                How.API if is_api else How.ADMIN,
                via=f"{request.method} {route}",
                user=user if isinstance(user, User) else None,
                address=client_address(request),
                request_id=str(logs.fields().get("request_id", "")),
            )
        )
