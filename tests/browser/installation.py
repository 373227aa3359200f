"""A running `manage.py serve` that several files of tests use one after another, each from its first start's state."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from psycopg.errors import DeadlockDetected
from redis import Redis as RedisClient
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from config.embedded.servers import Redis
from tests.serving import READY, SECONDS as SECONDS_TO_START, connection, environment, free_port, start

SECONDS = 120
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
COLUMNS = """
    SELECT string_agg(format('%%I', column_name), ', ') FROM information_schema.columns
    WHERE table_schema = 'public' AND table_name = %s AND is_generated = 'NEVER'
"""
MODELS = "SELECT coalesce(array_agg(m::text ORDER BY m.id), '{{}}') FROM {}.kb_providermodel m"
CACHE = 1  # of Redis' databases
TRIES = 5


@dataclass
class Served:
    """The process, its address, and the password that its first start printed."""

    process: subprocess.Popen
    url: str
    password: str

    def child(self, module):
        """The process that runs a module; it leads the group of all that it has started."""
        (found,) = (child for child in psutil.Process(self.process.pid).children() if module in child.cmdline())
        return found

    @contextlib.contextmanager
    def worker_resting(self):
        """Stops the worker meanwhile, so that documents stay pending until the test has seen it."""
        worker = self.child("-B")
        os.killpg(worker.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(worker.pid, signal.SIGCONT)


class Installation:
    """As its user runs it, with what its first start has made; at the end all that it started must have ended.

    Use it as a context manager. It has no MCP server, which no page asks.

    Args:
        variables: of its environment, besides those of every served application of the tests.

    Attributes:
        data_dir: its own.
        served: while it runs.
    """

    def __init__(self, first_start, variables):
        self._first_start, self._variables = first_start, variables
        self._root = Path(tempfile.mkdtemp(prefix="zhiku-browser-"))
        self.data_dir = self._root / "data"
        self._is_used = False

    def __enter__(self):
        self._first_start.copy_to(self.data_dir)
        port = free_port()
        process = start(port, environment(self.data_dir) | self._variables, "--no-mcp")
        self.served = Served(process, f"http://127.0.0.1:{port}", self._first_start.password)
        self._output = _Output(process.stdout)
        try:
            self._output.until(READY)
            servers = self._servers()
            assert {server.info["name"] for server in servers} >= {"postgres", "redis-server"}
            self._started = [*psutil.Process(process.pid).children(recursive=True), *servers]
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_):
        code, rest = self._end()
        assert code == 0, rest
        assert "Zhiku has stopped." in rest
        assert not psutil.wait_procs(self._started, timeout=SECONDS)[1]
        assert not self._servers()
        shutil.rmtree(self._root)

    def renew(self):
        """Restores the rows of the first start, of which it has a copy, and empties the cache."""
        with connection(self.data_dir) as database:
            tables = [name for (name,) in database.execute(TABLES)]
            if not self._is_used:
                self._is_used = True
                self._copy(database, tables)
                return
            models_changed = self._restore(database, tables)
        with RedisClient.from_url(Redis(self.data_dir / "redis").url(), db=CACHE) as redis:
            redis.flushdb()
        if models_changed:
            # pytest loads this module before the settings.
            from kb.providers.endpoints import ROWS_SECONDS

            time.sleep(ROWS_SECONDS)  # a process reads the models again after this time, and shows it nowhere

    def _copy(self, database, tables):
        database.execute("CREATE SCHEMA first_start")
        for table in tables:
            database.execute(f"CREATE TABLE first_start.{table} AS TABLE public.{table}")

    @retry(retry=retry_if_exception_type(DeadlockDetected), stop=stop_after_attempt(TRIES), reraise=True)
    def _restore(self, database, tables):
        """Whether rows of models had changed. A deadlock is one with what the worker writes."""
        with database.transaction():
            return self._write(database, tables)

    def _write(self, database, tables):
        # Waits for the worker's transactions; later ones find their documents deleted.
        database.execute(f"LOCK TABLE {', '.join(tables)} IN SHARE ROW EXCLUSIVE MODE")
        database.execute("SET LOCAL session_replication_role = replica")
        before, after = (database.execute(MODELS.format(schema)).fetchone() for schema in ("public", "first_start"))
        for table in tables:
            columns = database.execute(COLUMNS, [table]).fetchone()[0]
            database.execute(f"DELETE FROM public.{table}")
            database.execute(
                f"INSERT INTO public.{table} ({columns}) OVERRIDING SYSTEM VALUE"
                f" SELECT {columns} FROM first_start.{table}"
            )
        # Sequences are not reset, so no version is used for two contents.
        database.execute(
            "UPDATE kb_versions SET version = nextval('kb_version_seq'), content_version = nextval('kb_version_seq')"
        )
        database.execute("DELETE FROM bm25_indexes")
        return before != after

    def _servers(self):
        """PostgreSQL and Redis, which are children of nobody, by the directory that they work in."""
        running = psutil.process_iter(["cwd", "name"])  # at once, as a session of PostgreSQL may end at any moment
        return [process for process in running if Path(process.info["cwd"] or "/").is_relative_to(self.data_dir)]

    def _end(self):
        """The exit code, and the rest of what was printed."""
        self.served.process.terminate()
        return self.served.process.wait(SECONDS), self._output.rest()


class _Output:
    """Reads what a process prints, so that its pipe never fills."""

    def __init__(self, stream):
        self._stream, self._text, self._grown = stream, "", threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        with self._stream:
            for line in self._stream:
                with self._grown:
                    self._text += line
                    self._grown.notify_all()
        with self._grown:
            self._text += "(end of output)\n"
            self._grown.notify_all()

    def until(self, words):
        with self._grown:
            self._grown.wait_for(lambda: words in self._text or "(end of output)" in self._text, SECONDS_TO_START)
            assert words in self._text, self._text
            return self._text

    def rest(self):
        self._reader.join(SECONDS)
        return self._text
