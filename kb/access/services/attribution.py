"""Who acts, for the audit log: set where a request, a command or a task begins, and read by the database's triggers.

The library pghistory puts it before every writing statement as a setting of that transaction; reading costs nothing.
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
    """Attributes everything that is written inside; `how` is a value of `AuditEntry.How`.

    `via` is a route without ids or the name of a command. A user who is not known yet follows by `caller_is`.
    """
    who = {"user": user.pk, "username": user.username} if user else {}
    with pghistory.context(how=how, via=via[:200], address=address[:45], request_id=request_id[:64], **who):
        yield


def caller_is(user: User, key: ApiKey | None = None) -> None:
    """Sets the audit actor; no-op outside an audit context."""
    pghistory.context(user=user.pk, username=user.username, api_key=key.prefix if key else "")
