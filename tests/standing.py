"""Rows that stand for all tests of a file, each of which takes back only what it changes."""

import contextlib

from django.db import transaction


@contextlib.contextmanager
def standing(blocker):
    """A transaction around those of the tests, taken back at the end: what is made in it is made once.

    Args:
        blocker: pytest-django's `django_db_blocker`.
    """
    outer = transaction.atomic()
    outer._from_testcase = True  # what asks for the outermost transaction gets it, as in a TestCase
    with blocker.unblock(), outer:
        yield
        transaction.set_rollback(True)
