"""What a provider says of a user: pure functions from claims to a name, groups and rights."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kb.access.services.groups import LONGEST_NAME
from kb.signin.provider import Provider

MOST_GROUPS: Final = 1_000

WIDEST_KEY: Final = 191  # of django-allauth, where a subject has up to 255 characters

Claims = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Identity:
    """A user at the provider.

    Attributes:
        subject: never changes, and is given to nobody else.
        email: blank: unknown, or as the provider says not verified, and thus perhaps of somebody else.
        groups: None where the provider does not say; none is an empty set.
    """

    subject: str
    username: str
    email: str
    email_is_verified: bool
    first_name: str
    last_name: str
    groups: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Rights:
    """What groups give; None: the provider has no say in it."""

    is_admitted: bool
    is_staff: bool | None
    is_superuser: bool | None


def identity_of(claims: Claims, provider: Provider) -> Identity:
    """The user that claims are about; `sub` has been looked at."""
    name = _text(claims, "name")
    first, _, last = name.partition(" ")
    email, is_verified = _text(claims, "email"), claims.get("email_verified")
    return Identity(
        subject=str(claims["sub"]),
        username=_text(claims, "preferred_username") or email or name or str(claims["sub"]),
        email=email if "@" in email and len(email) <= 254 and is_verified not in (False, "false", "False") else "",
        email_is_verified=is_verified in (True, "true", "True"),
        first_name=(_text(claims, "given_name") or first)[:150],
        last_name=(_text(claims, "family_name") or last)[:150],
        groups=groups_of(claims, provider.groups_claim),
    )


def account_key(subject: str) -> str:
    """What the table of accounts has in place of a subject: itself, or a digest where its column is too narrow."""
    return subject if len(subject) <= WIDEST_KEY else f"sha256:{hashlib.sha256(subject.encode()).hexdigest()}"


def groups_of(claims: Claims, claim: str) -> frozenset[str] | None:
    """The names in a claim, which may be one text or a list; None where there is no such claim.

    A path such as "realm_access.roles" leads into claims; a claim that has the whole path for its name comes first.
    Names that are too long to differ when they are cut are left out.
    """
    value: Any = claims
    for step in (claim,) if claim in claims else claim.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return None
    texts = (each.strip().replace("\0", "") for each in names if isinstance(each, str))
    return frozenset(sorted(each for each in texts if each and len(each) <= LONGEST_NAME)[:MOST_GROUPS])


def rights_of(groups: frozenset[str] | None, provider: Provider) -> Rights:
    """What the groups of a user give; a provider that names none gives nothing that asks for one."""
    groups = groups or frozenset()
    is_superuser = bool(groups & provider.admin_groups) if provider.admin_groups else None
    if is_superuser:  # who may also sign in, and use the admin
        return Rights(is_admitted=True, is_staff=True, is_superuser=True)
    return Rights(
        is_admitted=not provider.allowed_groups or bool(groups & provider.allowed_groups),
        is_staff=bool(groups & provider.staff_groups) if provider.staff_groups else None,
        is_superuser=is_superuser,
    )


def _text(claims: Claims, name: str) -> str:
    value = claims.get(name)
    return value.strip().replace("\0", "") if isinstance(value, str) else ""
