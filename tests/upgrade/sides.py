"""The two sides of an upgrade: a version's tree and interpreter, and the servers and files that both work on."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from tests.serving import NOT_INHERITED, READY, free_port

SECONDS = 600
QUEUES = "celery,documents,long,moves"
"""Those of the new version and of the one before it, which has only the first."""
SETTINGS = {
    "EMBEDDING_MODEL": "hashing",
    "RERANKER_MODEL": "",
    "HF_HUB_OFFLINE": "1",
    "LANGUAGE_CODE": "en",
    "VECTOR_INDEX_MIN_ROWS": "20",  # so that the few vectors here have an index
    "INGEST_LEASE_SECONDS": "6",
    "WEB_CONCURRENCY": "1",
}
NAMED = ("DATABASE_URL", "REDIS_URL", "ZHIKU_DATA_DIR", "ZHIKU_EMBEDDED")


class Failed(Exception):
    """A process of a side ended otherwise than it should."""


@dataclass
class Side:
    """A version of the product.

    Args:
        tree: its files.
        python: an interpreter with what it needs.
        data: the data directory that both sides use.

    Attributes:
        servers: the variables that name PostgreSQL and Redis, once `start_servers` has run.
    """

    tree: Path
    python: Path
    data: Path
    servers: dict[str, str] = field(default_factory=dict)

    def start_servers(self) -> None:
        """PostgreSQL and Redis of the data directory, which outlive every command from now on."""
        self.servers = json.loads(
            self.shell(f"import json, os; print(json.dumps({{n: os.environ[n] for n in {NAMED}}}))")
        )

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in {*NOT_INHERITED, "DEBUG"}}
        return inherited | SETTINGS | {"ZHIKU_DATA_DIR": str(self.data)}

    def run(self, *arguments: str, **variables: str) -> str:
        done = subprocess.run(
            [str(self.python), *arguments],
            cwd=self.tree,
            env=self.environment() | variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode:
            raise Failed(
                f"{' '.join(arguments[:3])} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
            )
        return done.stdout

    def manage(self, *arguments: str) -> str:
        return self.run("manage.py", *arguments)

    def shell(self, code: str) -> str:
        """The last line that the code prints."""
        return self.manage("shell", "-v0", "-c", code).splitlines()[-1]

    @contextlib.contextmanager
    def worker(self, log: Path):
        """A worker on its own, killed with its processes at the end of the block, as a lost host loses it."""
        command = [
            str(self.python),
            "-m",
            "celery",
            "-A",
            "config",
            "worker",
            "--concurrency=1",
            "-l",
            "INFO",
            "-Q",
            QUEUES,
        ]
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*command, "--without-gossip", "--without-mingle"],
                cwd=self.tree,
                env=self.environment() | self.servers,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    @contextlib.contextmanager
    def serving(self, log: Path):
        """`manage.py serve`, as its user runs it. Yields its address."""
        port = free_port()
        with log.open("ab") as output:
            process = subprocess.Popen(
                [str(self.python), "manage.py", "serve", "--port", str(port), "--no-mcp", "--workers", "1"],
                cwd=self.tree,
                env=self.environment() | {"LOG_LEVEL": "INFO"},
                stdout=output,
                stderr=output,
            )
        try:
            until(lambda: READY in log.read_text() or process.poll() is not None, "the server's start")
            if process.poll() is not None:
                raise Failed(f"serve ended with {process.returncode}:\n{log.read_text()[-4000:]}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(SECONDS)


def environment_of(tree: Path, folder: Path) -> Path:
    """An environment with what the tree's version needs, made where there is none yet; returns its interpreter."""
    python = folder / "bin" / "python"
    done = folder / ".complete"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        constraints = ["--constraint", tree / "constraints.txt"]
        subprocess.run([python, "-m", "pip", "install", "-q", *constraints, f"{tree}[embedded]"], check=True)
        done.touch()
    return python


def until(holds, what: str) -> None:
    """Raises:
    Failed: it did not hold within `SECONDS`.
    """
    deadline = time.monotonic() + SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise Failed(f"waited {SECONDS} s for {what}")
        time.sleep(0.25)


def get(url: str, **headers: str) -> tuple[int, str]:
    """The status and the body of a page; redirects are not followed."""
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def post(url: str, body: dict, **headers: str) -> tuple[int, dict]:
    """The status and the JSON of the answer."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json", **headers}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None
