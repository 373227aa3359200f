"""Log lines of Django, gunicorn and Celery in one form, with what those of one piece of work share; without Django."""

import logging
import os
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from pythonjsonlogger.json import JsonFormatter

Fields = Mapping[str, str | int]

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._\-]{8,64}")
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_fields: ContextVar[Fields] = ContextVar("zhiku_log_fields", default=MappingProxyType({}))


def fields() -> Fields:
    return _fields.get()


def bind(values: Mapping[str, Any]) -> Token[Fields]:
    """Adds to what is bound, until the token resets it; None takes a name out."""
    return _fields.set({name: value for name, value in {**fields(), **values}.items() if value is not None})


def add(**values: Any) -> None:
    """Adds to what is bound, until the block that is open ends; outside of one, where nothing would end it, to nothing."""
    if _fields.get():
        bind(values)


@contextmanager
def bound(**values: Any) -> Iterator[None]:
    token = bind(values)
    try:
        yield
    finally:
        _fields.reset(token)


def request_id_of(headers: Mapping[str, str]) -> str:
    """The id that a caller gave its request where it is well formed (X-Request-ID, W3C traceparent), else a new one."""
    given = headers.get("X-Request-ID", "")
    if _REQUEST_ID.fullmatch(given):
        return given
    traceparent = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    return traceparent[1] if traceparent and traceparent[1] != "0" * 32 else uuid.uuid4().hex


FORMATS: Final = ("json", "line")


class ContextFilter(logging.Filter):
    """Gives every record what is bound where it was written, and the ids of the span where OpenTelemetry is in use."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.zhiku = {**fields(), **_span_ids(), **getattr(record, "zhiku", {})}
        return True


class Json(JsonFormatter):
    """One JSON object a line: time, level, logger, message, what is bound, and the traceback where there is one."""

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        log_data |= {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **message_dict,
            **getattr(record, "zhiku", {}),
            "process": record.process,
        }


class Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        pairs = " ".join(f"{name}={value}" for name, value in getattr(record, "zhiku", {}).items())
        head, newline, rest = line.partition("\n")
        return f"{head} [{pairs}]{newline}{rest}" if pairs else line


def logging_config(*, form: str, level: str) -> dict[str, Any]:
    """A configuration for `logging.config.dictConfig`; `form` is "json" or "line", `level` that of the root logger."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"context": {"()": ContextFilter}},
        "formatters": {
            "json": {"()": Json, "json_ensure_ascii": False},
            "line": {"()": Line, "format": "{asctime} {levelname} {name} {message}", "style": "{"},
        },
        "handlers": {
            "console": {
                "class": "logging.StreamHandler",
                "formatter": form if form in FORMATS else FORMATS[0],
                "filters": ["context"],
            }
        },
        "loggers": {
            "axes": {"level": "WARNING"},
            "sentence_transformers": {"level": "WARNING"},
            "gunicorn.error": {"level": "WARNING", "handlers": [], "propagate": True},
            # The access log of ours says the same, with the ids and without the query string.
            "django.server": {"level": "WARNING", "handlers": [], "propagate": True},
            # Its lines name whole requests of the clients of models and object stores.
            "httpx": {"level": "WARNING"},
            "botocore": {"level": "WARNING"},
        },
        "root": {"handlers": ["console"], "level": level},
    }


def chosen_form(*, local: bool) -> str:
    """LOG_FORMAT, else lines where an installation is local and JSON where it is served."""
    return os.environ.get("LOG_FORMAT") or ("line" if local else "json")


def _span_ids() -> dict[str, str]:
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import trace  # noqa: PLC0415 - an extra, which is in use here

    span = trace.get_current_span().get_span_context()
    return {"trace": f"{span.trace_id:032x}", "span": f"{span.span_id:016x}"} if span.is_valid else {}
