"""Files by which processes without a port tell that they go on, for `python -m kb.base.probe`."""

import os
import tempfile
import time
from pathlib import Path
from typing import Final

INTERVAL_SECONDS: Final = 10.0
FOLDER: Final = "HEARTBEAT_DIR"


def beat(kind: str) -> None:
    """Says that the `kind` of process ("worker", "beat") goes on."""
    path = _path(kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def age_seconds(kind: str) -> float | None:
    """How long ago it said so last; None where it never did."""
    try:
        return max(0.0, time.time() - _path(kind).stat().st_mtime)
    except FileNotFoundError:
        return None


def _path(kind: str) -> Path:
    folder = os.environ.get(FOLDER) or Path(tempfile.gettempdir()) / "zhiku-heartbeats"
    return Path(folder) / kind
