"""Connections whose settings end with them; those of the pool are used again by others, settings and all."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper


@contextmanager
def own_session(**options: str | int) -> Iterator[BaseDatabaseWrapper]:
    """A connection of its own, outside the pool, whose statements may take any time.

    Args:
        **options: further settings of PostgreSQL.
    """
    own = connection.copy()
    given = own.settings_dict["OPTIONS"]
    given.pop("pool", None)
    settings = {"statement_timeout": 0, **options}
    given["options"] = " ".join([given.get("options", ""), *(f"-c {name}={value}" for name, value in settings.items())])
    with closing(own):
        yield own
