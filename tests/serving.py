"""`manage.py serve` as its user runs it: a process of its own."""

import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import environ
import psycopg
from filelock import FileLock

from config.embedded.servers import Postgres, Redis
from config.installation import data_dir

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 400  # migrations and the demo on a machine that other work keeps busy
READY = "Zhiku is ready"
# What the test run sets for itself and what would lead the child to other servers or models.
NOT_INHERITED = (
    "DATABASE_URL",
    "REDIS_URL",
    "CACHE_URL",
    "CELERY_BROKER_URL",
    "ZHIKU_EMBEDDED",
    "ZHIKU_LOCAL",
    "DEBUG",
    "DJANGO_SETTINGS_MODULE",
    "LANGUAGE_CODE",
    "SECRET_KEY",
)
NAMED_SERVERS = {"DATABASE_URL": "postgres://zhiku@127.0.0.1:1/zhiku", "REDIS_URL": "redis://127.0.0.1:1/0"}
"""Of an installation that is not local; nothing is there, so they are for what asks none of them."""


def environment(folder):
    """Of a server that has PostgreSQL and Redis of its own in the directory."""
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    return inherited | {
        "ZHIKU_DATA_DIR": str(folder),
        "EMBEDDING_MODEL": "hashing",
        "HF_HUB_OFFLINE": "1",
        "WEB_CONCURRENCY": "1",  # with one web process the second search is sure to find the first one's index
    }


def servers_run(directory=None):
    """Whether the PostgreSQL and the Redis of the data directory run, by default of that of the environment."""
    directory = directory or data_dir()
    return Postgres(directory / "postgres").answers() and Redis(directory / "redis").answers()


@contextlib.contextmanager
def interruptible():
    """A shell starts what it runs in the background deaf to Ctrl-C, which children inherit and the server respects."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


def status(port, path):
    """Of the answer to a GET."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        client.request("GET", path)
        return client.getresponse().status
    finally:
        client.close()


def is_free(port):
    with contextlib.suppress(OSError):
        socket.create_server(("127.0.0.1", port)).close()
        return True
    return False


def collected_static(folder):
    """A STATIC_ROOT with the static files of an installation that serves others, collected once for a test run.

    Args:
        folder: that all processes of the run share.
    """
    root = folder / "static"
    with FileLock(folder / "static.lock"):
        if not (root / "staticfiles.json").exists():
            inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
            variables = NAMED_SERVERS | {"STATIC_ROOT": str(root), "ZHIKU_DATA_DIR": str(folder / "static-data")}
            command = [sys.executable, "manage.py", "collectstatic", "--no-input", "--verbosity", "0"]
            subprocess.run(command, cwd=ROOT, env=inherited | variables, check=True)
    return root


def free_port() -> int:
    """One with a free one after it, which the MCP server takes, and below those that the system gives to others."""
    while True:
        port = random.randrange(20_000, 32_000)
        with (
            contextlib.suppress(OSError),
            socket.create_server(("127.0.0.1", port)),
            socket.create_server(("127.0.0.1", port + 1)),
        ):
            return port


def start(port, environment, *options):
    """The process, whose output is a pipe."""
    return subprocess.Popen(
        [sys.executable, "manage.py", "serve", "--port", str(port), "--workers", "1", *options],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextlib.contextmanager
def serving(port, environment, *options):
    """The process and what it printed until it was ready; it ends with the block."""
    process = start(port, environment, *options)
    printed = ""
    try:
        for line in process.stdout:
            printed += line
            if READY in line:
                break
        assert READY in printed, printed
        yield process, printed
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)


def connection(data_dir):
    """To the database of a server that runs: each statement takes effect at once."""
    where = environ.Env.db_url_config(Postgres(data_dir / "postgres").url())
    names = {"host": "HOST", "port": "PORT", "user": "USER", "dbname": "NAME"}
    return psycopg.connect(**{name: where[key] for name, key in names.items()}, autocommit=True)
