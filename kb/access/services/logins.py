"""Accounts that too many failed logins have locked."""

from collections.abc import Iterable

from axes.utils import reset

from kb.access.models.accounts import User


def logins_unlock(users: Iterable[User]) -> int:
    """Forgets the failed logins of users, from every address.

    Returns:
        How many of the users had any.
    """
    return sum(bool(reset(username=user.get_username())) for user in users)
