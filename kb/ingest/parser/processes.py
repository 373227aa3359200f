"""Children that run code on files from outside: each in a session of its own, without this process's environment."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

# What a child may know of its parent's environment: where shared libraries lie, and no secret.
PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# It may start no thread, so libraries are configured not to try.
ENVIRONMENT: Final = {
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
}


def start(code: str, order: Mapping[str, Any], **pipes: Any) -> subprocess.Popen[bytes]:
    """Starts Python code in a process and session of its own; `sys.argv` holds this one's import path and its order as JSON."""
    return subprocess.Popen(  # noqa: S603 - no shell, and every word of the command is ours
        # Isolated mode ignores PYTHONPATH and the current directory, so the import path is handed over.
        [sys.executable, "-I", "-B", "-X", "utf8", "-c", code, json.dumps(import_path()), json.dumps(order)],
        env=ENVIRONMENT | {name: os.environ[name] for name in PASSED_ON if name in os.environ},
        start_new_session=True,
        **pipes,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a child and what it has started in its session; one that was awaited has left nothing there."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):  # it ended by itself meanwhile
            os.killpg(process.pid, signal.SIGKILL)


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder that a child writes to."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted meanwhile
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118 - it is asked 20 times a second
    return total


def import_path() -> list[str]:
    return list(dict.fromkeys([*filter(None, sys.path), str(Path(__file__).resolve().parents[3])]))
