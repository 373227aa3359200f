"""The provider that people sign in with: the environment's, else the one that superusers have entered."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse

from kb.base.encryption import SecretsUnreadable, decrypted
from kb.base.net.addresses import AllowList, FetchError, Guard, parse_url
from kb.signin.models import ONLY, SignInProvider

CLIENT_SECRET: Final = "client_secret"  # noqa: S105 - the name of one
"""Of the secrets of a row."""


@dataclass(frozen=True, slots=True)
class Provider:
    """An OpenID Connect provider, and who of its users may do what here.

    Attributes:
        scopes: asked for, separated by spaces.
        groups_claim: where the names of a user's groups are: a claim, or a path of claims within claims.
        allowed_groups: who may sign in; empty: all of its users.
        staff_groups: who may use the admin; empty: all who may sign in.
        admin_groups: who is a superuser; empty: it makes nobody one, and takes it from nobody.
        links_email: whether a verified e-mail address opens the account here that has it.
        hours: after which a session ends, and the provider is asked again.
        allows_private: whether it may have a private address, as an operator's own servers may.
    """

    issuer: str
    client_id: str
    secret: str = field(repr=False)
    name: str
    scopes: str
    groups_claim: str
    allowed_groups: frozenset[str]
    staff_groups: frozenset[str]
    admin_groups: frozenset[str]
    links_email: bool
    hours: float
    allows_private: bool = False

    @property
    def discovery_url(self) -> str:
        return f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"

    @property
    def guard(self) -> Guard:
        """Which addresses it may have; a cloud's metadata never."""
        return Guard(AllowList(any_private=self.allows_private), ports=range(1, 65_536))


def current_provider() -> Provider | None:
    """The provider in force; None where people only have passwords."""
    if settings.OIDC_ISSUER:
        issuer: str = settings.OIDC_ISSUER
        return Provider(
            issuer=issuer,
            client_id=settings.OIDC_CLIENT_ID,
            secret=settings.OIDC_CLIENT_SECRET,
            name=settings.OIDC_NAME or host_of(issuer),
            scopes=settings.OIDC_SCOPES,
            groups_claim=settings.OIDC_GROUPS_CLAIM,
            allowed_groups=frozenset(settings.OIDC_ALLOWED_GROUPS),
            staff_groups=frozenset(settings.OIDC_STAFF_GROUPS),
            admin_groups=frozenset(settings.OIDC_ADMIN_GROUPS),
            links_email=settings.OIDC_LINK_EMAIL,
            hours=settings.OIDC_SESSION_HOURS,
            allows_private=True,  # whoever sets an environment variable may name any server of theirs
        )
    row = SignInProvider.objects.filter(pk=ONLY).first()
    return provider_of(row) if row else None


def provider_of(row: SignInProvider) -> Provider:
    """The provider of a row, saved or not; its secret is blank where none of the keys opens it."""
    try:
        secrets = row.secrets if isinstance(row.secrets, Mapping) else decrypted(row.secrets)
    except SecretsUnreadable:
        secrets = {}
    return Provider(
        issuer=row.issuer,
        client_id=row.client_id,
        secret=secrets.get(CLIENT_SECRET, ""),
        name=row.name or host_of(row.issuer),
        scopes=row.scopes,
        groups_claim=row.groups_claim,
        allowed_groups=_names(row.allowed_groups),
        staff_groups=_names(row.staff_groups),
        admin_groups=_names(row.admin_groups),
        links_email=row.links_email,
        hours=row.hours,
        allows_private=row.allows_private,
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(filter(None, map(str.strip, text.split(","))))


def callback_url(request: HttpRequest) -> str:
    """Where the provider sends people back to, which has to be entered there."""
    return request.build_absolute_uri(reverse("signin_callback"))


def host_of(issuer: str) -> str:
    try:
        return parse_url(issuer).host
    except FetchError:
        return issuer
