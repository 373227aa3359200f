"""Requests and tasks: the ids that their log lines carry, a line for each, their time and their count."""

import logging
import time
from collections.abc import Callable
from contextvars import Token
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from celery import Task, signals
from django.db import connection
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.functional import SimpleLazyObject

from kb.base.metrics import POOL, RATE_LIMITED, REQUEST_SECONDS, REQUESTS, TASK_SECONDS, TASKS
from kb.base.telemetry import logs

access_logger = logging.getLogger("zhiku.access")
tasks_logger = logging.getLogger("zhiku.tasks")

UNROUTED: Final = "none"
METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})  # any other counts as "other"
# What psycopg_pool calls them.
POOL_STATES: Final = {"open": "pool_size", "idle": "pool_available", "waiting": "requests_waiting"}


class RequestLog:
    """Middleware, the outermost: what a request calls or logs carries its id, and so does its response."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        started = time.perf_counter()
        request_id = logs.request_id_of(request.headers)
        with logs.bound(request_id=request_id):
            response = self._get_response(request)
            response.headers["X-Request-ID"] = request_id
            finish = partial(_log, request, response, started, logs.fields())
            if isinstance(response, StreamingHttpResponse):
                response._resource_closers.append(finish)  # its time is that until the last piece
            else:
                finish()
        return response


def _log(request: HttpRequest, response: HttpResponseBase, started: float, bound: logs.Fields) -> None:
    # Who asked: the id of the user, and of an API key its prefix; what it asked is nobody's business
    user, key = vars(request).get("user"), getattr(request, "auth", None)
    if isinstance(user, SimpleLazyObject):  # to ask it now could take a database that is out of reach
        user = vars(request).get("_cached_user")
    found = {"user": getattr(user, "pk", None), "key": getattr(key, "prefix", None)}
    caller = {name: value for name, value in found.items() if value is not None}
    with logs.bound(**bound):
        note(route_of(request), request.method or "", response.status_code, started, **caller)


def note(route: str, method: str, status: int, started: float, **caller: Any) -> None:
    """Counts a request that has been answered, and writes its line; `started` is by the clock of `time.perf_counter`."""
    seconds = time.perf_counter() - started
    REQUESTS.labels(route, method if method in METHODS else "other", f"{status // 100}xx").inc()
    REQUEST_SECONDS.labels(route).observe(seconds)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        RATE_LIMITED.labels(route).inc()
    # Each process counts its own, since the one that is scraped sees no other's pool
    pool = getattr(connection, "_connection_pools", {}).get(connection.alias)
    if pool is not None:
        stats = pool.get_stats()
        for state, name in POOL_STATES.items():
            POOL.labels(state).set(stats.get(name, 0))
    line = {
        **logs.fields(),
        "method": method,
        "route": route,
        "status": status,
        "ms": round(seconds * 1_000, 1),
        **caller,
    }
    # Probes and scrapes come every few seconds.
    level = logging.DEBUG if route in {"api:health", "api:ready", "metrics"} else logging.INFO
    access_logger.log(level, "%s %s %d", method, route, status, extra={"zhiku": line})


def route_of(request: HttpRequest) -> str:
    match = request.resolver_match
    if match is None:
        return UNROUTED
    return match.view_name if match.url_name else match.route or UNROUTED


HEADER: Final = "zhiku"
# Of the work, not of the process that sent it.
CARRIED: Final = ("request_id", "batch_id")
_running: dict[str, tuple[Token[logs.Fields], float]] = {}


@signals.before_task_publish.connect
def send_along(headers: dict[str, Any] | None = None, **_: Any) -> None:
    if headers is not None:
        bound = logs.fields()
        headers[HEADER] = {name: bound[name] for name in CARRIED if name in bound}


@signals.task_prerun.connect
def begin(task_id: str, task: "Task[..., Any]", **_: Any) -> None:
    # A worker makes attributes of the headers; a task that is run in place keeps them together.
    sent = getattr(task.request, HEADER, None) or (task.request.headers or {}).get(HEADER)
    carried = {name: str(sent[name]) for name in CARRIED if name in sent} if isinstance(sent, dict) else {}
    token = logs.bind({"request_id": None, **carried, "task": task.name, "task_id": task_id})
    _running[task_id] = token, time.perf_counter()


@signals.task_postrun.connect
def end(task_id: str, task: "Task[..., Any]", state: str | None = None, **_: Any) -> None:
    if task_id not in _running:
        return
    token, started = _running.pop(task_id)
    seconds = time.perf_counter() - started
    TASKS.labels(task.name, (state or "unknown").lower()).inc()
    TASK_SECONDS.labels(task.name).observe(seconds)
    # The sweeps come every half minute.
    level = logging.DEBUG if ".sweep_" in task.name else logging.INFO
    tasks_logger.log(
        level, "%s %s", task.name, state, extra={"zhiku": {"state": state, "ms": round(seconds * 1_000, 1)}}
    )
    token.var.reset(token)
