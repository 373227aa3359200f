"""Who acts, for the audit log: set once where a request, a command or a task begins, and read by the database's triggers.

The library pghistory puts it before every writing statement as a setting of that transaction. Requests that only read
set nothing, so that they pay nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pghistory

from kb.access.models import ApiKey, AuditEntry, User

How = AuditEntry.How


@contextmanager
def acting(
    how: str, *, via: str = "", user: User | None = None, address: str = "", request_id: str = ""
) -> Iterator[None]:
    """Everything that is written inside was done this way.

    Args:
        how: of `AuditEntry.How`.
        via: the operation: a route without ids, the name of a command.
        user: who asked for it, where that is known already; else see `caller_is`.
        address: from where.
        request_id: to find it again in the server's log.
    """
    who = {"user": user.pk, "username": user.username} if user else {}
    with pghistory.context(how=how, via=via[:200], address=address[:45], request_id=request_id[:64], **who):
        yield


def caller_is(user: User, key: ApiKey | None = None) -> None:
    """Sets the audit actor; no-op outside an audit context."""
    pghistory.context(user=user.pk, username=user.username, api_key=key.prefix if key else "")
