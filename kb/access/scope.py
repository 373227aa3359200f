"""What a principal may see, as a condition of statements that are written by hand for their speed."""

from functools import lru_cache
from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import EmptyResultSet

from kb.access.models import KnowledgeBase, Principal, User

STATEMENTS_HELD = 1_024

Statement = tuple[str, tuple[Any, ...]]


def visible_knowledge_bases(principal: Principal) -> Statement | None:
    """A SELECT of the ids of the knowledge bases that `visible_to` grants, and its values; None where it grants none."""
    user = principal.user
    return _statement(user.pk, user.is_active, user.is_superuser, principal.kb_ids)


@lru_cache(maxsize=STATEMENTS_HELD)
def _statement(
    user_id: int | None,
    is_active: bool,  # noqa: FBT001 - a key
    is_superuser: bool,  # noqa: FBT001
    kb_ids: frozenset[int] | None,
) -> Statement | None:
    """Making the SELECT takes a millisecond; it depends on these alone, and looks memberships up when it is run."""
    user = User(pk=user_id, is_active=is_active, is_superuser=is_superuser) if user_id else AnonymousUser()
    rows = KnowledgeBase.objects.visible_to(Principal(user=user, kb_ids=kb_ids)).order_by().values("pk")
    try:
        sql, values = rows.query.sql_with_params()
    except EmptyResultSet:
        return None
    return sql, tuple(values)
