"""Gunicorn's configuration: threads, because the views wait for SQL and models; each process has a connection pool."""

import os
import threading
from typing import Any

from prometheus_client.multiprocess import mark_process_dead

os.environ.setdefault("DB_STATEMENT_TIMEOUT_MS", "15000")  # a request waits no longer for one statement

wsgi_app = "config.wsgi:application"
worker_class = "gthread"
workers = int(os.environ.get("WEB_CONCURRENCY", "1"))
threads = int(os.environ.get("WEB_THREADS", "8"))
preload_app = False  # a pool of connections does not survive a fork
timeout = 120
graceful_timeout = 10
keepalive = 5
control_socket_disable = True
loglevel = "warning"


def post_worker_init(worker: Any) -> None:  # noqa: ARG001 - gunicorn's signature
    """Warms up beside the first requests: the tokenizer's dictionary and the models take seconds to load."""
    from kb.conf import warm_up  # noqa: PLC0415 - only now are the settings loaded

    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()


def child_exit(server: Any, worker: Any) -> None:  # noqa: ARG001 - gunicorn's signature
    """Takes the memory of a process that has ended out of the metrics; what it has counted stays."""
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
