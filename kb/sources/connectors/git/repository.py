"""A branch of a remote repository: its commit, its files, and their contents in few round trips."""

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from kb.base.net.addresses import FetchError
from kb.sources.connectors.git.program import Blobs, Git

_HEAD: Final = "refs/zhiku/head"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
LS_REMOTE_SECONDS: Final = 60.0


def head_of(git: Git, branch: str) -> tuple[str, str]:
    """The name of the branch, that of the repository's own where none is given, and its commit; raises FetchError."""
    wanted = f"refs/heads/{branch}" if branch else "HEAD"
    told = git.run(
        "ls-remote", "--symref", "origin", wanted, is_remote=True, seconds=min(git.seconds, LS_REMOTE_SECONDS)
    )
    commit, name = "", branch
    for line in told.decode("utf-8", "replace").splitlines():
        value, _tab, ref = line.partition("\t")
        if ref != wanted:
            continue  # it looks for names that end so
        if value.startswith("ref: refs/heads/"):
            name = value.removeprefix("ref: refs/heads/")
        elif _COMMIT.fullmatch(value):
            commit = value
    if not commit and not branch:
        raise FetchError("empty_repository", url=git.remote.address[:200])
    if not commit:
        raise FetchError("no_branch", branch=branch)
    return name, commit


class Repository:
    """The newest commit of a branch, fetched into an empty repository; contents come when they are asked for.

    Where the server can leave contents out, only folders are fetched at first. Else all of the commit is.
    """

    def __init__(self, git: Git, branch: str) -> None:
        self._git = git
        self._ref = f"refs/heads/{branch}" if branch else "HEAD"
        self._stack = ExitStack()
        self._reader: Blobs | None = None
        self._missing: set[str] = set()
        git.run("init", "--quiet", "--bare", "--template=")
        self._fetch_commit("--filter=blob:none")

    def close(self) -> None:
        self._reader = None
        self._stack.close()

    def _fetch_commit(self, *options: str) -> None:
        self._git.run(
            *(
                "fetch",
                "--quiet",
                "--depth=1",
                "--no-tags",
                "--no-write-fetch-head",
                "--recurse-submodules=no",
                *options,
            ),
            *("origin", f"+{self._ref}:{_HEAD}"),
            is_remote=True,
        )
        self.commit = self._git.run("rev-parse", "--verify", "--quiet", f"{_HEAD}^{{commit}}").decode().strip()
        self._packs = set(self._pack_files())
        self._note_missing()

    def _note_missing(self) -> None:
        told = self._git.run("rev-list", "--objects", "--missing=print", "--no-object-names", "--no-walk", self.commit)
        self._missing = {line[1:] for line in told.decode().splitlines() if line.startswith("?")}

    def tree(self) -> bytes:
        """All of the commit, as `Listing.of` reads it."""
        return self._git.run("ls-tree", "-r", "-z", "--full-tree", self.commit)

    def has(self, blob: str) -> bool:
        return blob not in self._missing

    def bring(self, blobs: Iterable[str], most: int | None = None) -> None:
        """Fetches those that are not there yet in one round trip; raises FetchError("too_large") beyond so many bytes."""
        wanted = sorted(self._missing.intersection(blobs))
        if not wanted:
            return
        self.close()
        try:
            self._git.run(
                *("-c", "fetch.negotiationAlgorithm=noop", "fetch", "--quiet", "--no-tags", "--no-write-fetch-head"),
                *("--recurse-submodules=no", "--filter=blob:none", "--stdin", "origin"),
                is_remote=True,
                given="".join(f"{each}\n" for each in wanted).encode(),
                most=most,
            )
        except FetchError as error:
            if error.code != "git_failed":
                raise
            # The server leaves contents out, and does not hand them out by hash: all of the commit then.
            self._git.run("update-ref", "-d", _HEAD)
            self._fetch_commit("--refetch", "--no-filter")
        else:
            self._missing.difference_update(wanted)

    def free(self) -> None:
        """Takes from the disk what `bring` has brought, and what it has left where it did not get to its end."""
        self.close()
        for file in set(self._pack_files()) - self._packs:
            file.unlink()
        self._note_missing()

    def _pack_files(self) -> Iterator[Path]:
        return (self._git.folder / "repository/objects/pack").iterdir()

    def read(self, blob: str, most: int) -> bytes:
        """Raises FetchError: "too_large", or why it cannot be read."""
        if self._reader is None:
            self._reader = self._stack.enter_context(self._git.blobs())
        try:
            return self._reader.read(blob, most)
        except FetchError:
            self.close()
            raise
