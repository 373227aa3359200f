"""Asks one process of Zhiku whether it is well: `python -m kb.base.probe web|mcp|worker|long-worker|beat`. Exit status 0: it is.

It loads neither Django nor a model, since a container is asked every few seconds.
"""

import argparse
import http.client
import os
import sys
import time
from pathlib import Path
from typing import Final

INTERVAL_SECONDS: Final = 10.0
# Three beats may be late before a process counts as stuck.
LATE_SECONDS: Final = 4 * INTERVAL_SECONDS
PATHS: Final = {"web": "/api/v1/ready/", "mcp": "/health"}
PORTS: Final = {"web": 8000, "mcp": 8001}


def beat(kind: str) -> None:
    """Says that a process without a port ("worker", "long-worker", "beat") goes on, by the time of a file."""
    path = _path(kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def begin(kind: str) -> None:
    """Deletes what a former process has said, when another one begins."""
    _path(kind).unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kb.base.probe", description="Whether a process of Zhiku is well.")
    parser.add_argument("process", choices=["web", "mcp", "worker", "long-worker", "beat"])
    parser.add_argument("--port", type=int, help="of a web or MCP process (default: 8000, 8001)")
    parser.add_argument("--live", action="store_true", help="of a web process, only whether it is alive")
    options = parser.parse_args(arguments)
    if options.process in PATHS:
        path = "/api/v1/health/" if options.live and options.process == "web" else PATHS[options.process]
        problem = _asked(options.port or PORTS[options.process], path)
    else:
        problem = _silent(options.process)
    if problem:
        sys.stderr.write(f"{problem}\n")
    return 1 if problem else 0


def _path(kind: str) -> Path:
    """In HEARTBEAT_DIR, which a worker takes to be in the data directory where nobody has set it."""
    folder = os.environ.get("HEARTBEAT_DIR") or Path(os.environ.get("ZHIKU_DATA_DIR") or ".data", "heartbeats")
    return Path(folder, kind)


def _silent(kind: str) -> str:
    try:
        age = time.time() - _path(kind).stat().st_mtime
    except FileNotFoundError:
        return f"There has been no sign of a {kind} process yet in {_path(kind).parent}."
    return f"The {kind} process has been silent for {age:.0f} s." if age > LATE_SECONDS else ""


def _asked(port: int, path: str) -> str:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=8)
    try:
        client.request("GET", path, headers={"Host": _host(), "X-Forwarded-Proto": "https", "Accept": "*/*"})
        answer = client.getresponse()
        body = answer.read(2_000).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"Port {port} does not answer: {error}"
    finally:
        client.close()
    return "" if answer.status == http.HTTPStatus.OK else f"HTTP {answer.status}: {body}"


def _host() -> str:
    first = os.environ.get("ALLOWED_HOSTS", "").split(",")[0].strip().lstrip(".")
    return first if first and first != "*" else "localhost"


if __name__ == "__main__":
    sys.exit(main())
