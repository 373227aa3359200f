"""API keys: the secret leaves this module once, when the key is made; the database keeps its SHA-256."""

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta

from axes.utils import reset
from django.db import transaction
from django.db.models import CharField, F, Q, QuerySet, Value
from django.utils import timezone
from django.utils.translation import gettext as _

from kb.access.models import ApiKey, KnowledgeBase, Principal, User
from kb.access.services.rate_limits import general_rate_limit, is_laxer, rate_limit_check
from kb.base.disk import DiskFull, noticing_full_disk
from kb.base.errors import NotAllowed, NotVisible, Rejected

LAST_USE_EVERY = timedelta(minutes=1)

_MADE_WITH = """
WITH RECURSIVE made AS (
    SELECT id FROM kb_apikey WHERE made_with_id = ANY(%s)
    UNION SELECT k.id FROM kb_apikey k JOIN made ON k.made_with_id = made.id
)
SELECT k.* FROM kb_apikey k JOIN made ON made.id = k.id WHERE NOT k.revoked AND k.id <> ALL(%s) ORDER BY k.created, k.id
"""
_KEY = re.compile(r"[A-Za-z0-9]{8}\.[A-Za-z0-9]{40}")


def api_key_create(
    *,
    user: User,
    name: str,
    knowledge_bases: Iterable[KnowledgeBase] = (),
    scope: str = ApiKey.Scope.READ,
    expires: datetime | None = None,
    rate_limit: str = "",
    made_with: ApiKey | None = None,
    by_operator: bool = False,
) -> tuple[ApiKey, str]:
    """Makes a key that acts as a user, and returns it with its secret.

    It opens the given knowledge bases; where none are given, all that the user may see, now and later. `made_with` is
    the key with which the user asks for it: it opens no more and lives no longer than that one. Without `expires` it
    expires with that one, or never. A superuser's key, and one that an operator makes, may have more than the server's
    rate limit, also after that has changed.

    Raises:
        NotVisible: the user may not see one of the knowledge bases.
        NotAllowed: the key that asks for it may make none, or has been revoked.
        Rejected: the scope is unknown, the rate limit cannot be used, or `expires` is past or beyond `made_with`.
    """
    if scope not in ApiKey.Scope.values:
        message = _("“%(scope)s” is no scope: choose one of %(scopes)s.")
        raise Rejected("unknown_scope", message, scope=scope, scopes=", ".join(ApiKey.Scope.values))
    if made_with is not None:
        # With a rate limit of its own it makes none, or its holder would have as many times that limit as keys.
        if made_with.bound or made_with.rate_limit or made_with.scope != ApiKey.Scope.WRITE:
            raise NotAllowed(
                _(
                    "This API key makes no others: use one with the scope write, for all knowledge bases and without a rate limit "
                    "of its own, or the admin."
                )
            )
        latest = made_with.expiry_date
        expires = expires or latest
        if latest is not None and expires is not None and expires > latest:
            message = _("A key lives no longer than the one that it is made with, which expires on %(latest)s.")
            raise Rejected("expires_too_late", message, latest=latest.isoformat())
    if expires is not None and expires <= timezone.now():
        raise Rejected("expired", _("The key would be expired from the start: choose a time in the future."))
    if by_operator:
        rate_limit_check(rate_limit)
    else:
        check_rate_limit(rate_limit, user)
    wanted = {kb.pk for kb in knowledge_bases}
    visible = KnowledgeBase.objects.visible_to(Principal(user)).filter(pk__in=wanted).values_list("pk", flat=True)
    if missing := wanted.difference(visible):
        ids = ", ".join(str(kb_id) for kb_id in sorted(missing))
        message = _("%(user)s may not see the knowledge bases with the ids %(ids)s: share them first.")
        raise NotVisible(message % {"user": user, "ids": ids})
    with transaction.atomic():
        if made_with is not None:
            _hold_keys_of(user.pk)
            if not ApiKey.objects.get_usable_keys().filter(pk=made_with.pk).exists():
                raise NotAllowed(_("The API key that asks for this one has been revoked: use another one."))
        key = ApiKey(
            user=user,
            name=name,
            scope=scope,
            expiry_date=expires,
            bound=bool(wanted),
            rate_limit=rate_limit.strip(),
            rate_limit_granted=by_operator or user.is_superuser,
            made_with=made_with,
        )
        secret: str = ApiKey.objects.assign_key(key)
        key.save(force_insert=True)
        key.knowledge_bases.set(wanted)
    return key, secret


def check_rate_limit(rate_limit: str, user: User) -> None:
    """Checks the rate limit that a user gives a key; raises Rejected for what is none, or only superusers may give."""
    rate_limit_check(rate_limit)
    if rate_limit.strip() and not user.is_superuser and is_laxer(rate_limit, than=general_rate_limit()):
        message = _("A key of yours has a rate limit of %(most)s at most: ask an operator for a key with a higher one.")
        raise Rejected("rate_limit_too_high", message, most=general_rate_limit())


def api_keys_of(user: User, *, asked_with: ApiKey | None = None) -> QuerySet[ApiKey]:
    """The keys of a user, newest first, with the prefix of the key that each was `asked_for_with`.

    A key that is bound to knowledge bases learns of no other key than itself.
    """
    keys: QuerySet[ApiKey] = ApiKey.objects.filter(user=user).prefetch_related("knowledge_bases").order_by("-created")
    if asked_with is not None and asked_with.bound:
        return keys.filter(pk=asked_with.pk).annotate(asked_for_with=Value(None, CharField()))
    return keys.annotate(asked_for_with=F("made_with__prefix"))


def api_keys_made_with(keys: Iterable[ApiKey]) -> list[ApiKey]:
    """The keys that revoking some shuts beside them: those in use that were made with them, and with those in turn."""
    begun_with = [key.pk for key in keys]
    return list(ApiKey.objects.raw(_MADE_WITH, [begun_with, begun_with]).prefetch_related("user"))


def api_key_revoke(key: ApiKey) -> list[ApiKey]:
    """Shuts a key for good; returns the keys made with it, which are shut too: who stole one may have made others."""
    with transaction.atomic():
        _hold_keys_of(key.user_id)
        others = api_keys_made_with([key])
        ApiKey.objects.filter(pk__in=[key.pk, *(each.pk for each in others)], revoked=False).update(revoked=True)
    key.revoked = True
    return others


def _hold_keys_of(user_id: int) -> None:
    """Until the transaction ends no key of the user is revoked, and none is made with another."""
    list(User.objects.filter(pk=user_id).select_for_update(no_key=True).values_list("pk"))


def api_key_use(secret: str) -> ApiKey | None:
    """The key of a secret, with its user, and a note that it was used; None where it is unknown, revoked or expired."""
    key = ApiKey.objects.get_with_caller(secret[:8]) if _KEY.fullmatch(secret) else None
    if key is None or not key.is_valid(secret) or key.has_expired or not key.user.is_active:
        return None
    # Keeps the time of use, at most once a minute however many processes see the key at once
    now = timezone.now()
    stale = now - LAST_USE_EVERY
    if key.last_used_at is None or key.last_used_at < stale:
        with suppress(DiskFull), noticing_full_disk():  # it opens as before
            ApiKey.objects.filter(Q(last_used_at=None) | Q(last_used_at__lt=stale), pk=key.pk).update(last_used_at=now)
    return key


def logins_unlock(users: Iterable[User]) -> int:
    """Forgets the failed logins of users, from every address; returns how many of them had any."""
    return sum(bool(reset(username=user.get_username())) for user in users)
