"""Where this installation's files are and whom it serves, from the environment alone: gunicorn asks before Django is set up.

An installation is *local* (for this machine only, without TLS) or *served* (to others, behind TLS). DEBUG is neither.
"""

import os
from pathlib import Path
from typing import Final

BASE_DIR: Final = Path(__file__).resolve().parent.parent
# Whether this runs from the source; else from a wheel, whose folder holds the packages of others too.
IS_CHECKOUT: Final = (BASE_DIR / "manage.py").exists()
# What django-environ reads as true.
TRUE: Final = frozenset({"true", "on", "ok", "y", "yes", "1"})


def data_dir() -> Path:
    """The directory of everything that this installation writes."""
    if chosen := os.environ.get("ZHIKU_DATA_DIR"):
        return Path(chosen).resolve()
    if IS_CHECKOUT:
        return BASE_DIR / ".data"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share").resolve() / "zhiku"


def is_embedded() -> bool:
    """Whether PostgreSQL and Redis are the embedded ones."""
    chosen = os.environ.get("ZHIKU_EMBEDDED")
    return chosen.lower() in TRUE if chosen else not os.environ.get("DATABASE_URL")


def is_local() -> bool:
    """Whether this installation is for this machine only: ZHIKU_LOCAL, else that its servers are embedded."""
    chosen = os.environ.get("ZHIKU_LOCAL")
    return chosen.lower() in TRUE if chosen else is_embedded()


def is_debugged() -> bool:
    """Whether somebody has set DEBUG."""
    return os.environ.get("DEBUG", "").lower() in TRUE
