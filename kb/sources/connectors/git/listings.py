"""What a branch held when it was last listed, on the disk: while it has the same commit, nothing is fetched."""

import hashlib
import os
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

MOST_LISTINGS: Final = 500  # on the disk; the oldest go
_FILE: Final = b"blob"
_PLAIN: Final = (b"100644", b"100755", b"100664")


class Listing(NamedTuple):
    """A commit, and the hash of each plain file in it by its path; links and submodules are not among them."""

    commit: str
    blobs: dict[bytes, str]

    @classmethod
    def of(cls, commit: str, tree: bytes) -> "Listing":
        """`tree` is what `ls-tree -r -z` writes."""
        blobs = {}
        for line in tree.split(b"\0"):
            about, _tab, path = line.partition(b"\t")
            words = about.split()
            if len(words) == 3 and words[0] in _PLAIN and words[1] == _FILE:
                blobs[path] = words[2].decode("ascii")
        return cls(commit, blobs)


class Listings:
    """One for a branch of an address. Whoever reads one has been told the commit by the server with their own credentials."""

    def __init__(self, folder: Path, address: str, branch: str) -> None:
        name = hashlib.sha256("\0".join((address, branch)).encode()).hexdigest()
        self._file = folder / f"{name}.listing"

    def read(self) -> Listing | None:
        try:
            commit, _end, tree = zlib.decompress(self._file.read_bytes()).partition(b"\n")
        except (OSError, zlib.error):
            return None
        with suppress(OSError):
            os.utime(self._file)
        return Listing.of(commit.decode("ascii", "replace"), tree)

    def write(self, commit: str, tree: bytes) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._file.parent, delete=False) as file:
            file.write(zlib.compress(commit.encode() + b"\n" + tree, 1))
        Path(file.name).replace(self._file)
        with suppress(FileNotFoundError):  # another run deletes them
            listings = sorted(self._file.parent.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
            for old in listings[MOST_LISTINGS:]:
                old.unlink()
