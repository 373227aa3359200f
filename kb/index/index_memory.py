"""How much memory and how many processes the build of an index gets."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.conf import settings

MEGABYTE: Final = 1024**2
REMOTE_BYTES: Final = 1024 * MEGABYTE
"""Of a server whose memory cannot be known from here."""
SHARE_OF_MEMORY: Final = 0.5
LEAST_BYTES: Final = 64 * MEGABYTE
"""PostgreSQL builds an index with two processes only where each has 32 MB."""
GRAPH_BYTES: Final = 1_024
"""Of pgvector's graph, for each vector beside its numbers: 700 to 750 with m = 16, and some to spare."""
SPARE_BYTES: Final = 16 * MEGABYTE
MOST_WORKERS: Final = 8
CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class BuildMemory:
    """What a build needs to stay in memory, and what it gets."""

    needed: int
    given: int

    @property
    def is_enough(self) -> bool:
        return self.given >= self.needed

    @property
    def remedy(self) -> str:
        """The setting that would be enough."""
        return f"INDEX_BUILD_MEMORY_MB={-(-self.needed // MEGABYTE)}"


def build_memory(vectors: int, dimension: int) -> BuildMemory:
    """Of an index over halfvec vectors: a graph that does not fit is built many times more slowly."""
    needed = max(LEAST_BYTES, vectors * (2 * dimension + GRAPH_BYTES) + SPARE_BYTES)
    return BuildMemory(needed, min(needed, most_build_bytes()))


def most_build_bytes() -> int:
    """What one build may take at most."""
    if settings.INDEX_BUILD_MEMORY_BYTES is not None:
        return max(LEAST_BYTES, settings.INDEX_BUILD_MEMORY_BYTES)
    return max(LEAST_BYTES, int(SHARE_OF_MEMORY * available_bytes())) if settings.EMBEDDED else REMOTE_BYTES


def build_workers() -> int | None:
    """Processes beside the one that builds; None: as the server is set."""
    if settings.INDEX_BUILD_WORKERS is not None:
        return int(settings.INDEX_BUILD_WORKERS)
    return min(MOST_WORKERS, max(1, (os.cpu_count() or 2) - 1)) if settings.EMBEDDED else None


def build_options(memory_bytes: int) -> dict[str, int]:
    """The settings of a session that builds with so much memory."""
    workers = build_workers()
    parallel = {} if workers is None else {"max_parallel_maintenance_workers": workers}
    return {"maintenance_work_mem": memory_bytes // 1024, **parallel}


def available_bytes() -> int:
    """Memory of this host that is free, or would be without its page cache, within the limit of its control group."""
    host = _meminfo().get("MemAvailable") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return host if limit == "max" else max(0, min(host, int(limit) - int(used["anon"])))
    except (OSError, ValueError, KeyError):  # no control group, or one of the first version
        return host


def _meminfo() -> dict[str, int]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    return {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)}
