"""The processes of compose.yaml as this machine's own: in production settings, on a database and Redis of their own."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import psycopg
import requests
from django.db import connection
from redis import Redis

from tests.config.commands import run_in_turn
from tests.deployment.compose import ROOT, services
from tests.serving import free_port

SECONDS = 240
SECRETS = {"SECRET_KEY": uuid.uuid4().hex * 2, "POSTGRES_PASSWORD": "unused", "REDIS_PASSWORD": "unused"}
METRICS_TOKEN = uuid.uuid4().hex
KNOWLEDGE_BASE = "warranty"
"""Has one document, in a stack that is a copy."""
# Not those of the other tests, nor of a stack in another process of xdist: a worker would take its tasks.
_FIRST = 8 + 2 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4)  # of sixteen
BROKER, CACHE = _FIRST, _FIRST + 1


class Stack:
    """See the module's description. Use it as a context manager.

    Args:
        copied: it begins with the database of this `name` and these `static` files, and has this `key`.
        template: the database that it begins with otherwise.
        variables: of its environment.

    Attributes:
        environment: of all its processes.
        key: of the API, for whom has one.
        logs: a file by the name of each process.
    """

    def __init__(self, *, copied=None, template="template1", **variables):
        self.folder = Path(tempfile.mkdtemp(prefix="zhiku-stack-"))
        self.name = f"zhiku_stack_{uuid.uuid4().hex[:8]}"
        self._parameters = connection.get_connection_params()
        self._redis = os.environ["REDIS_URL"].rsplit("/", 1)[0]
        self.processes, self.ports, self.logs = {}, {}, {}
        self.key = copied and copied.key
        self._variables = variables | ({"STATIC_ROOT": str(copied.static)} if copied else {})
        self._template = copied.name if copied else template

    def __enter__(self):
        self._sql(f'CREATE DATABASE "{self.name}" TEMPLATE "{self._template}"')
        for number in (BROKER, CACHE):
            Redis.from_url(f"{self._redis}/{number}").flushdb()
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PGPASSWORD") if name in os.environ}
        written = services(SECRETS | {"ALLOWED_HOSTS": "zhiku.example", **self._variables})
        from_compose = {name: str(value) for name, value in written["web"]["environment"].items()}
        self.environment = (
            kept
            | from_compose
            | {
                "DATABASE_URL": self.database_url(),
                "REDIS_URL": f"{self._redis}/{BROKER}",
                "CACHE_URL": f"{self._redis}/{CACHE}",
                "ZHIKU_DATA_DIR": str(self.folder / "data"),
                "STATIC_ROOT": str(self.folder / "static"),
                "HF_HOME": str(self.folder / "models"),
                "HF_HUB_OFFLINE": "1",
                "EMBEDDING_MODEL": "hashing",
                "RERANKER_MODEL": "",
                "METRICS_TOKEN": METRICS_TOKEN,
                "HEARTBEAT_DIR": str(self.folder / "heartbeats"),
                "WEB_CONCURRENCY": "1",
                "DRAIN_SECONDS": "0",
                **self._variables,
            }
        )
        self.environment.pop("METRICS_PORT", None)
        (self.folder / "data").mkdir()
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()
        self._sql(f'DROP DATABASE IF EXISTS "{self.name}" WITH (FORCE)')
        shutil.rmtree(self.folder)

    def database_url(self):
        return f"{os.environ['DATABASE_URL'].rsplit('/', 1)[0]}/{self.name}"  # a socket's folder stands before the name

    def _sql(self, statement):
        with psycopg.connect(**self._server(), dbname="postgres", autocommit=True) as server:
            server.execute(statement)

    def _server(self):
        return {
            name: self._parameters[name] for name in ("host", "port", "user", "password") if self._parameters.get(name)
        }

    def rows(self, statement, *values):
        """Of its database."""
        with psycopg.connect(**self._server(), dbname=self.name, autocommit=True) as database:
            return database.execute(statement, values).fetchall()

    def command(self, service, **replaced):
        """A service's command as compose.yaml has it, with this interpreter and these words in place of those."""
        words = [
            replaced.get(word, word)
            for word in services(SECRETS | {"ALLOWED_HOSTS": "zhiku.example"})[service]["command"]
        ]
        return [sys.executable, *words[1:]] if words[0] == "python" else [sys.executable, "-m", *words]

    def manage(self, *arguments, check=True):
        return self.run([sys.executable, "manage.py", *arguments], check=check)

    def manage_in_turn(self, *commands, check=True):
        """Runs the commands in one process; returns the result of each."""
        done = run_in_turn(*commands, environment=self.environment)
        assert not check or not any(each.returncode for each in done), done
        return done

    def run(self, command, *, check=True):
        done = subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def start(self, service, command, port=None, **variables):
        self.logs[service] = self.folder / f"{service}.log"
        with self.logs[service].open("ab") as log:
            self.processes[service] = subprocess.Popen(
                command, cwd=ROOT, env=self.environment | variables, stdout=log, stderr=log
            )
        self.ports[service] = port
        return self.processes[service]

    def start_web(self, **variables):
        port = free_port()
        bind = {"0.0.0.0:8000": f"127.0.0.1:{port}"}
        process = self.start("web", self.command("web", **bind), port, **variables)
        self.until_well("web")
        return process

    def start_worker(self, **variables):
        process = self.start("worker", [*self.command("worker"), "--concurrency=1"], **variables)
        self.until_well("worker")
        return process

    def start_mcp(self, **variables):
        port = free_port()
        where = {"0.0.0.0": "127.0.0.1", "8001": str(port)}
        process = self.start("mcp", self.command("mcp", **where), port, **variables)
        self.until_well("mcp")
        return process

    def start_beat(self):
        where = {"--schedule=/tmp/celerybeat-schedule": f"--schedule={self.folder / 'schedule'}"}
        process = self.start("beat", self.command("beat", **where))
        self.until_well("beat")
        return process

    def probe(self, service, *more):
        port = ["--port", str(self.ports[service])] if self.ports.get(service) else []
        return self.run([sys.executable, "-m", "kb.base.probe", service, *port, *more], check=False)

    def until_well(self, service):
        self.until(lambda: self._begins_to_answer(service), service)  # which costs less than a process that asks
        self.until(lambda: self.probe(service).returncode == 0, service)

    def _begins_to_answer(self, service):
        port = self.ports.get(service)
        if not port:
            return Path(self.environment["HEARTBEAT_DIR"], service).exists()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=60).close()
            return True
        return False

    def until(self, holds, service):
        """Returns what `holds` returned once that is true; fails where the service ends first."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            if found := holds():
                return found
            process = self.processes.get(service)
            assert process is None or process.poll() is None, self.log(service)
            time.sleep(0.2)
        raise AssertionError(f"{service}: {self.log(service)}")

    def log(self, service):
        return self.logs[service].read_text() if service in self.logs else ""

    def request(self, method, path, **more):
        headers = {"Host": "zhiku.example", "X-Forwarded-Proto": "https", **more.pop("headers", {})}
        return requests.request(
            method, f"http://127.0.0.1:{self.ports['web']}{path}", headers=headers, timeout=60, **more
        )
