"""API keys: the secret leaves this module once, when the key is made; the database keeps its SHA-256."""

from collections.abc import Iterable
from datetime import datetime

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from kb.models import ApiKey, KnowledgeBase, Principal, User
from kb.services.errors import NotVisible, Rejected


def api_key_create(
    *,
    user: User,
    name: str,
    knowledge_bases: Iterable[KnowledgeBase] = (),
    scope: str = ApiKey.Scope.READ,
    expires: datetime | None = None,
) -> tuple[ApiKey, str]:
    """Makes a key that acts as a user.

    Args:
        user: whose memberships the key uses.
        name: to tell keys apart.
        knowledge_bases: the only ones that it opens; none given: all that the user may see, now and later.
        scope: `read` or `write`.
        expires: None: never.

    Returns:
        The key and its secret.

    Raises:
        NotVisible: the user may not see one of the knowledge bases.
        Rejected: the scope is unknown, or the key would be expired from the start.
    """
    if scope not in ApiKey.Scope.values:
        message = _("“%(scope)s” is no scope: choose one of %(scopes)s.")
        raise Rejected("unknown_scope", message % {"scope": scope, "scopes": ", ".join(ApiKey.Scope.values)})
    if expires is not None and expires <= timezone.now():
        raise Rejected("expired", _("The key would be expired from the start: choose a time in the future."))
    wanted = {kb.pk for kb in knowledge_bases}
    visible = set(KnowledgeBase.objects.visible_to(Principal(user)).filter(pk__in=wanted).values_list("pk", flat=True))
    if missing := wanted - visible:
        ids = ", ".join(str(kb_id) for kb_id in sorted(missing))
        message = _("%(user)s may not see the knowledge bases with the ids %(ids)s: share them first.")
        raise NotVisible(message % {"user": user, "ids": ids})
    with transaction.atomic():
        key = ApiKey(user=user, name=name, scope=scope, expiry_date=expires, bound=bool(wanted))
        secret: str = ApiKey.objects.assign_key(key)
        key.save(force_insert=True)
        key.knowledge_bases.set(wanted)
    return key, secret


def api_key_revoke(key: ApiKey) -> None:
    """Shuts a key for good."""
    key.revoked = True
    key.save(update_fields=["revoked"])
