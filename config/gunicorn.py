"""Gunicorn's configuration: threads, because the views wait for SQL and models; each process has a connection pool."""

import os
import signal
import sys
import threading
from typing import Any

from config.installation import is_debugged, is_local
from kb.base import draining
from kb.base.loopback import refusal_to_listen
from kb.base.streams import MOST as MOST_STREAMS
from kb.base.telemetry.logs import chosen_form, logging_config
from kb.ingest.parser.confinement import hide_from_siblings

hide_from_siblings()
os.environ.setdefault("DB_STATEMENT_TIMEOUT_MS", "15000")  # a request waits no longer for one statement

wsgi_app = "config.wsgi:application"
worker_class = "config.streaming_worker.StreamingWorker"
workers = int(os.environ.get("WEB_CONCURRENCY", "1"))
threads = int(os.environ.get("WEB_THREADS", "8"))
preload_app = False  # a pool of connections does not survive a fork
timeout = 120
graceful_timeout = int(os.environ.get("WEB_GRACE_SECONDS", "30"))  # for requests under way, streamed answers too
keepalive = 5
control_socket_disable = True
loglevel = "warning"
logconfig_dict = logging_config(form=chosen_form(local=is_local()), level=os.environ.get("LOG_LEVEL", "INFO"))
# Of a request's first line and headers; a query string of 2,000 Chinese characters does not fit, a form's body does.
limit_request_line = 8_190
limit_request_fields = 64
limit_request_field_size = 8_190
forwarder_headers = ""  # else whoever reaches it on this machine, as through a proxy, may say what the path is
worker_connections = 144 + MOST_STREAMS  # each takes at most 100 KB of memory before somebody is known to have sent it


def on_starting(server: Any) -> None:
    """Refuses an address that others reach, where the installation is for this machine only."""
    for address in server.address:
        host = address[0] if isinstance(address, tuple) else "127.0.0.1"  # else a socket in the file system
        if refusal := refusal_to_listen(host, local=is_local(), debug=is_debugged()):
            sys.exit(refusal)


def when_ready(server: Any) -> None:  # noqa: ARG001 - gunicorn's signature
    """Has SIGTERM first be told to the load balancer, by /ready/, and end the server DRAIN_SECONDS later.

    Gunicorn alone closes its port at once, and what the load balancer sends until it notices is refused.
    """
    at_once = signal.getsignal(signal.SIGTERM)

    def drain(*_: Any) -> None:
        draining.begin()
        signal.signal(signal.SIGTERM, at_once)  # a second signal does not wait
        timer = threading.Timer(float(os.environ.get("DRAIN_SECONDS", "0")), os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()

    signal.signal(signal.SIGTERM, drain)


def post_worker_init(worker: Any) -> None:  # noqa: ARG001 - gunicorn's signature
    """Warms up beside the first requests: the tokenizer's dictionary and the models take seconds to load."""
    from kb.search.wiring import warm_up  # noqa: PLC0415 - only now are the settings loaded

    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
