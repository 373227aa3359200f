"""Builds an index from stored postings in a process of its own and prints the peak of its resident memory in bytes."""

import resource
import sys
from pathlib import Path

import numpy as np

from retrieval.bm25 import OkapiIndex


def save_rows(path: Path, rows) -> None:
    """Write stored postings for `read_rows`."""
    chunk_ids, terms, frequencies, lengths = zip(*rows, strict=True)
    sizes = [len(part) for part in frequencies]
    with path.open("wb") as file:
        for column in (chunk_ids, sizes, lengths):
            np.save(file, np.array(column, dtype=np.int64))
        for part in (*terms, *frequencies):
            file.write(part)


def read_rows(path: Path):
    """The rows one by one, as a database cursor gives them."""
    with path.open("rb") as terms, path.open("rb") as frequencies:
        chunk_ids, sizes, lengths = (np.load(terms).tolist() for _ in range(3))
        frequencies.seek(terms.tell() + 2 * sum(sizes))
        for chunk_id, size, length in zip(chunk_ids, sizes, lengths, strict=True):
            yield chunk_id, terms.read(2 * size), frequencies.read(size), length


def peak_bytes() -> int:
    """Peak resident memory of this process since it runs this program."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage counts what the parent held when it started this process.
        peak = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    built = OkapiIndex.build(read_rows(Path(sys.argv[1])))
    print(peak_bytes())
