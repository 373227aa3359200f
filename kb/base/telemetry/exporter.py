"""The metrics of a process whose port, if it has one, is not for scrapers."""

import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from django.conf import settings
from prometheus_client import make_wsgi_app

from kb.base.metrics import registry

logger = logging.getLogger(__name__)

Start = Callable[[str, list[tuple[str, str]]], Any]


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """A scrape is nothing to tell of."""


def serve_metrics() -> None:
    """Answers scrapers on METRICS_PORT, where it is set; with METRICS_TOKEN only those that send it."""
    port = os.environ.get("METRICS_PORT")
    if not port:
        return
    host = os.environ.get("METRICS_HOST") or ("127.0.0.1" if settings.LOCAL else "0.0.0.0")  # noqa: S104
    try:
        server = make_server(host, int(port), _application, handler_class=_Quiet)
    except OSError as error:  # the process beside it has it, and tells for both where they share a folder
        logger.warning("This process serves no metrics on METRICS_PORT %s: %s.", port, error)
        return
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


def _application(environ: dict[str, Any], start_response: Start) -> Iterable[bytes]:
    token = os.environ.get("METRICS_TOKEN", "")
    scheme, _, sent = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    if token and not (scheme.lower() == "bearer" and secrets.compare_digest(sent.strip().encode(), token.encode())):
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
        return [b"Send METRICS_TOKEN as Authorization: Bearer.\n"]
    answer: Iterable[bytes] = make_wsgi_app(registry())(environ, start_response)
    return answer
