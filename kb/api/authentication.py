"""Who is calling: an API key in the Authorization header, or a session."""

import re
from datetime import timedelta
from typing import cast

from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from kb.models import ApiKey, Principal, User

SCHEME = "Bearer"
LAST_USE_EVERY = timedelta(minutes=1)

_KEY = re.compile(r"(?P<prefix>[A-Za-z0-9]{8})\.[A-Za-z0-9]{40}")


class ApiKeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer <key>`; `request.auth` is then the key."""

    def authenticate(self, request: Request) -> tuple[User, ApiKey] | None:
        scheme, _separator, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != SCHEME.lower():
            return None
        key = _usable_key(secret.strip())
        if key is None:
            raise AuthenticationFailed(_("This API key is unknown, revoked or expired: ask for a new one."))
        _note_use(key)
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


def _usable_key(secret: str) -> ApiKey | None:
    shape = _KEY.fullmatch(secret)
    if shape is None:
        return None
    key = ApiKey.objects.get_usable_keys().select_related("user").filter(prefix=shape["prefix"]).first()
    if not isinstance(key, ApiKey) or not key.is_valid(secret) or key.has_expired or not key.user.is_active:
        return None
    return key


def _note_use(key: ApiKey) -> None:
    """Keeps the time of use, at most once a minute however many processes see the key at once."""
    now = timezone.now()
    stale = now - LAST_USE_EVERY
    if key.last_used_at is None or key.last_used_at < stale:
        due = Q(last_used_at=None) | Q(last_used_at__lt=stale)
        ApiKey.objects.filter(due, pk=key.pk).update(last_used_at=now)
