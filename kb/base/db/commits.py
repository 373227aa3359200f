"""What is done once a transaction is committed, and may fail without undoing anything."""

from collections.abc import Callable
from typing import Any

from django.db import transaction


def after_commit(function: Callable[..., Any], *arguments: Any) -> None:
    """Calls a function once the transaction is committed; that it fails is logged, and keeps nothing else from being done.

    Django's own way to do that fails itself where the function is a `partial`, which has no name to be logged by.
    """

    def call() -> None:
        function(*arguments)

    call.__qualname__ = getattr(function, "__qualname__", repr(function))
    transaction.on_commit(call, robust=True)
