"""What the log lines of one piece of work have in common: carried along threads, and in the headers of tasks."""

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import MappingProxyType
from typing import Any, Final

Fields = Mapping[str, str | int]

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._\-]{8,64}")
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_NO_TRACE: Final = "0" * 32
_fields: ContextVar[Fields] = ContextVar("zhiku_log_fields", default=MappingProxyType({}))


def fields() -> Fields:
    """What is bound here: request_id, task, document_id and so on."""
    return _fields.get()


def bind(values: Mapping[str, Any]) -> Token[Fields]:
    """Adds to what is bound, until `unbind`; None takes a name out."""
    merged = {**_fields.get(), **values}
    return _fields.set({name: value for name, value in merged.items() if value is not None})


def unbind(token: Token[Fields]) -> None:
    _fields.reset(token)


def add(**values: Any) -> None:
    """Adds to what is bound, until the block that is open ends; outside of one, where nothing would end it, to nothing."""
    if _fields.get():
        bind(values)


@contextmanager
def bound(**values: Any) -> Iterator[None]:
    """Adds to what is bound, within the block."""
    token = bind(values)
    try:
        yield
    finally:
        unbind(token)


def request_id_of(headers: Mapping[str, str]) -> str:
    """The id that a caller gave its request, where it is well formed: X-Request-ID, else the trace id of a W3C traceparent.

    Returns:
        The caller's, else a new one; whatever else a caller sends gets into no log.
    """
    given = headers.get("X-Request-ID", "")
    if _REQUEST_ID.fullmatch(given):
        return given
    traceparent = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    if traceparent and traceparent[1] != _NO_TRACE:
        return traceparent[1]
    return uuid.uuid4().hex
