"""Who is calling: an API key in the Authorization header, or a session."""

from typing import cast

from django.utils.translation import gettext_lazy as _
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from kb.access.models.accounts import ApiKey, Principal, User
from kb.access.services.api_keys import api_key_use
from kb.access.services.attribution import caller_is

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
