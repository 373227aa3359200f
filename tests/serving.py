"""`manage.py serve` as its user runs it: a process of its own."""

import contextlib
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import environ
import psycopg

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


def environment(folder):
    """Of a server that has PostgreSQL and Redis of its own in the directory."""
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    return inherited | {
        "ZHIKU_DATA_DIR": str(folder),
        "EMBEDDING_MODEL": "hashing",
        "HF_HUB_OFFLINE": "1",
        "WEB_CONCURRENCY": "1",  # with one web process the second search is sure to find the first one's index
    }


def servers_run():
    """Whether the PostgreSQL and the Redis of the data directory run."""
    return Postgres(data_dir() / "postgres").answers() and Redis(data_dir() / "redis").answers()


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
