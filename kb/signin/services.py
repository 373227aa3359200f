"""Accounts here of people who sign in with a provider, brought in step with it at every sign-in."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import Group
from django.core import signing
from django.db import IntegrityError, transaction

from kb.access.models import GROUP_PREFIX, User
from kb.access.services.attribution import caller_is
from kb.signin.claims import Identity, Rights, account_key, rights_of
from kb.signin.errors import SignInRefused
from kb.signin.models import ONLY, SignInProvider
from kb.signin.provider import CLIENT_SECRET, Provider, host_of

LINK_MINUTES: Final = 10
_SALT: Final = "kb.signin.link"
_ATTEMPTS: Final = 3  # where another request of the same person, or of the same name, is first


def account_for(identity: Identity, provider: Provider) -> User:
    """The user that an identity is, made if there is none, with the groups and rights that it has now.

    Raises SignInRefused where it may not sign in: its groups, an account that is switched off, or an e-mail address that
    another account has.
    """
    rights = rights_of(identity.groups, provider)
    if identity.groups is None and provider.allowed_groups:
        raise SignInRefused("no_groups", name=provider.name, claim=provider.groups_claim)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with transaction.atomic():
                account = SocialAccount.objects.filter(
                    provider=provider.issuer, uid=account_key(identity.subject)
                ).first()
                user = User.objects.select_for_update(no_key=True).get(pk=account.user_id) if account else None
                if user is None and rights.is_admitted:
                    user = _linked(identity, provider) or _made(identity, provider)
                if user is not None:
                    _bring_in_step(user, identity, rights)
        except IntegrityError:
            if attempt == _ATTEMPTS:
                raise
            continue
        break
    # After the commit: who may not sign in any more has lost rights and groups too.
    if not rights.is_admitted:
        raise SignInRefused("not_admitted", name=provider.name)
    if user is None or not user.is_active:
        raise SignInRefused("inactive")
    return user


def _linked(identity: Identity, provider: Provider) -> User | None:
    """The account of the same e-mail address, where the operator lets the provider open it; None where there is none.

    Accounts of this provider are none: who writes the address of somebody else there neither shares an account with them
    nor keeps them out. Raises SignInRefused where there is one that is not to be opened.
    """
    if not identity.email:
        return None
    of_provider = SocialAccount.objects.filter(provider=provider.issuer).values("user")
    others = User.objects.filter(email__iexact=identity.email).exclude(pk__in=of_provider)
    found = list(others.select_for_update(no_key=True)[:2])
    if not found:
        return None
    of_another_provider = SocialAccount.objects.filter(user__in=found).exists()
    if len(found) > 1 or of_another_provider or not (provider.links_email and identity.email_is_verified):
        raise SignInRefused("email_taken", name=provider.name)
    _remember(found[0], identity, provider)
    return found[0]


def _made(identity: Identity, provider: Provider) -> User:
    user = User(username=_free_name(identity.username, host_of(provider.issuer)), is_staff=not provider.staff_groups)
    user.set_unusable_password()
    user.save()
    _remember(user, identity, provider)
    return user


def _remember(user: User, identity: Identity, provider: Provider) -> None:
    SocialAccount.objects.create(user=user, provider=provider.issuer, uid=account_key(identity.subject))


def _free_name(wanted: str, host: str) -> str:
    """The name at the provider, with the provider's where somebody here has it already: nobody takes one for the other."""
    name = User.normalize_username(wanted)[:150]
    stem = name[:70]
    taken = User.objects.filter(username__istartswith=stem).values_list("username", flat=True)
    folded = {each.casefold() for each in taken}
    number = 1
    while name.casefold() in folded:
        name = f"{stem}@{host[:70]}" + (f"-{number}" if number > 1 else "")
        number += 1
    return name


def _bring_in_step(user: User, identity: Identity, rights: Rights) -> None:
    """Writes what differs, so that a sign-in that changes nothing leaves no entry in the audit log."""
    wanted = {
        "first_name": identity.first_name or user.first_name,
        "last_name": identity.last_name or user.last_name,
        "email": identity.email or user.email,
        "is_staff": user.is_staff if rights.is_staff is None else rights.is_staff,
        "is_superuser": user.is_superuser if rights.is_superuser is None else rights.is_superuser,
    }
    changed = [name for name, value in wanted.items() if getattr(user, name) != value]
    caller_is(user)
    if changed:
        for name in changed:
            setattr(user, name, wanted[name])
        user.save(update_fields=changed)
    groups_bring_in_step(user, identity.groups or frozenset())


def groups_bring_in_step(user: User, names: frozenset[str]) -> None:
    """Gives a user the groups of these names at the provider, and takes the others of it; others than its stay."""
    wanted = {f"{GROUP_PREFIX}{name}" for name in names}
    held = set(user.groups.filter(name__startswith=GROUP_PREFIX).values_list("name", flat=True))
    if new := wanted - held:
        Group.objects.bulk_create([Group(name=name) for name in sorted(new)], ignore_conflicts=True)
        user.groups.add(*Group.objects.filter(name__in=new))
    if former := held - wanted:
        user.groups.remove(*Group.objects.filter(name__in=former))


# -- The provider that superusers enter -----------------------------------------------------------------------------------
def provider_save(row: SignInProvider, secret: str) -> None:
    """Puts a provider in force; a blank `secret` keeps that of the same issuer, which no other one is sent."""
    kept = SignInProvider.objects.filter(pk=ONLY, issuer=row.issuer).values_list("secrets", flat=True).first()
    row.pk = ONLY
    row.secrets = {CLIENT_SECRET: secret} if secret else (kept or "")
    row.save()


def provider_delete() -> None:
    """Whoever has signed in with it keeps the account, and the session until its end."""
    SignInProvider.objects.filter(pk=ONLY).delete()


# -- A link from the command line, for when the provider is out of order --------------------------------------------------
def link_token(user: User) -> str:
    """Opens the account of a user once, within `LINK_MINUTES`."""
    return signing.dumps([user.pk, _last_login(user)], salt=_SALT)


@contextmanager
def link_opened(token: str) -> Iterator[User]:
    """The user of a link, whom the block signs in; what it writes of that makes the link of no use.

    Raises SignInRefused where it is too old, was used, or there has been a login since.
    """
    try:
        user_id, last_login = signing.loads(token, salt=_SALT, max_age=LINK_MINUTES * 60)
    except (signing.BadSignature, ValueError) as error:
        raise SignInRefused("link_used", minutes=LINK_MINUTES) from error
    with transaction.atomic():
        user = User.objects.select_for_update(no_key=True).filter(pk=user_id, is_active=True).first()
        if user is None or _last_login(user) != last_login:
            raise SignInRefused("link_used", minutes=LINK_MINUTES)
        yield user


def _last_login(user: User) -> str:
    return user.last_login.isoformat() if user.last_login else ""
