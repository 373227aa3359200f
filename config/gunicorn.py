"""Gunicorn's configuration: threads, because the views wait for SQL and models; each process has a connection pool."""

import os

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
