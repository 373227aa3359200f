"""The id of a request, its line in the access log, and its count."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from django.db import connection
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.functional import SimpleLazyObject

from kb.base.metrics import observe_pool, observe_request
from kb.base.telemetry import logs as context

logger = logging.getLogger("zhiku.access")

UNROUTED: Final = "none"


class RequestLog:
    """Middleware, the outermost: what a request calls or logs carries its id, and so does its response."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        started = time.perf_counter()
        request_id = context.request_id_of(request.headers)
        with context.bound(request_id=request_id):
            response = self._get_response(request)
            response.headers["X-Request-ID"] = request_id
            finish = partial(_log, request, response, started, context.fields())
            if isinstance(response, StreamingHttpResponse):
                response._resource_closers.append(finish)  # its time is that until the last piece
            else:
                finish()
        return response


def _log(request: HttpRequest, response: HttpResponseBase, started: float, bound: context.Fields) -> None:
    # Who asked: the id of the user, and of an API key its prefix; what it asked is nobody's business
    user, key = vars(request).get("user"), getattr(request, "auth", None)
    if isinstance(user, SimpleLazyObject):  # to ask it now could take a database that is out of reach
        user = vars(request).get("_cached_user")
    found = {"user": getattr(user, "pk", None), "key": getattr(key, "prefix", None)}
    caller = {name: value for name, value in found.items() if value is not None}
    with context.bound(**bound):
        note(route_of(request), request.method or "", response.status_code, started, **caller)


def note(route: str, method: str, status: int, started: float, **caller: Any) -> None:
    """Counts a request that has been answered, and writes its line.

    Args:
        route: its name, with no id in it.
        method: of HTTP.
        status: likewise.
        started: by the clock of `time.perf_counter`.
        caller: further fields of the line, such as the ids of who asked.
    """
    seconds = time.perf_counter() - started
    observe_request(route, method, status, seconds)
    # Each process counts its own, since the one that is scraped sees no other's pool
    pool = getattr(connection, "_connection_pools", {}).get(connection.alias)
    if pool is not None:
        observe_pool(pool.get_stats())
    line = {
        **context.fields(),
        "method": method,
        "route": route,
        "status": status,
        "ms": round(seconds * 1_000, 1),
        **caller,
    }
    # Probes and scrapes come every few seconds.
    level = logging.DEBUG if route in {"api:health", "api:ready", "metrics"} else logging.INFO
    logger.log(level, "%s %s %d", method, route, status, extra={"zhiku": line})


def route_of(request: HttpRequest) -> str:
    """The name of a request's route, with no id in it."""
    match = request.resolver_match
    if match is None:
        return UNROUTED
    return match.view_name if match.url_name else match.route or UNROUTED
