"""A folder of the server that Zhiku runs on, below one that its operator has named."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, BinaryIO, ClassVar, Final

from django.conf import settings
from django.utils.translation import gettext as _, gettext_lazy

from kb.base.errors import Rejected
from kb.base.net.addresses import FetchError, Owner, nobody, open_to
from kb.base.net.client import MIB, too_large
from kb.sources.connectors.folder.tree import (
    ABSENT,
    key_of,
    listed,
    opened,
    path_of,
    reason_of,
    unlisted,
    version_of,
)
from kb.sources.connectors.protocol import Connector, Item, Portion
from kb.sources.connectors.selection import SELECTION_FIELDS, Selection
from kb.sources.fields import Field

_TRIES: Final = 3


class Folder(Connector):
    """The files of a folder and of those in it; symbolic links are left out."""

    fields: ClassVar[tuple[Field, ...]] = (
        Field(
            "path",
            gettext_lazy("folder"),
            gettext_lazy(
                "Below one that an administrator has listed in SOURCE_FOLDERS, such as /srv/documents/manuals."
            ),
            pattern=r"/[^\x00]{0,999}",
            is_required=True,
        ),
        *SELECTION_FIELDS,
    )

    def __init__(self, values: Mapping[str, Any], *, owner: Owner = nobody) -> None:
        self._path, self._owner = str(values["path"]), owner
        self._selection = Selection.parse(
            values.get("include", ""), values.get("exclude", ""), hidden=values.get("hidden", False)
        )
        self._root = -1

    @classmethod
    def check(cls, values: Mapping[str, Any], owner: Owner = nobody) -> None:
        """Raises Rejected where the folder is not below one that the operator has named."""
        if _allowed_above(values["path"], owner) is None:
            raise Rejected(
                "path_invalid",
                _(
                    "“%(path)s” is not below a folder that may be read: an administrator can add it to SOURCE_FOLDERS. Give the "
                    "whole path, without “..”."
                ),
                path=values["path"],
            )

    def __enter__(self) -> "Folder":
        above = _allowed_above(self._path, self._owner)
        if above is None:
            raise FetchError("folder_not_allowed", path=self._path)
        try:
            # The operator's own path may hold symbolic links, what is below it is not the operator's alone.
            top = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                below = Path(self._path).relative_to(above).as_posix()
                with opened(top, "" if below == "." else below, folder=True) as root:
                    self._root = os.dup(root)
            finally:
                os.close(top)
        except OSError as error:
            raise unlisted(self._path, error) from error
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._root)

    def portions(self, position: Any) -> Iterator[Portion]:
        folders = [path_of(key) for key in position or [""]]
        while folders:
            folder = folders.pop()
            try:
                entries = listed(self._root, folder)
            except OSError as error:
                if folder and error.errno in ABSENT and self._is_there():
                    continue  # deleted since
                raise unlisted(f"{self._path}/{folder}".rstrip("/"), error) from error
            if not folder and not entries:
                raise FetchError("folder_empty", path=self._path)
            paths = [(f"{folder}/{name}".lstrip("/"), status) for name, status in entries]
            files = [
                _item(path, status) for path, status in paths if S_ISREG(status.st_mode) and self._selection.takes(path)
            ]
            # Backwards onto the stack, so that they come in their order.
            folders += [
                path for path, status in reversed(paths) if S_ISDIR(status.st_mode) and self._selection.enters(path)
            ]
            yield Portion(files, list(map(key_of, folders)) or None)
        if not self._is_there():
            raise FetchError("folder_missing", path=self._path)

    def fetch(self, item: Item, into: BinaryIO, most: int) -> Item:
        start, read = into.tell(), item
        for _try in range(_TRIES):
            into.seek(start)
            into.truncate()
            read, is_steady = self._copied(item, into, most)
            if is_steady:
                break
        # A file that never rests is taken as it was read. Its version is that of before, so that the next run reads it again.
        return read

    def _copied(self, item: Item, into: BinaryIO, most: int) -> tuple[Item, bool]:
        """Copies a file; returns it as it was before, and whether it was the same when the last byte was read."""
        path = path_of(item.key)
        with ExitStack() as stack:
            with self._read_faults():
                file = stack.enter_context(opened(self._root, path))
                before = os.fstat(file)
            if not S_ISREG(before.st_mode):
                raise FetchError("gone", status=404)
            if before.st_size > most:
                raise too_large(most)
            # No more than it had, else one that grows as fast as it is read would never end.
            size = 0
            while piece := self._read(file, min(MIB, before.st_size - size)):
                size += len(piece)
                into.write(piece)
            after = os.fstat(file)
        is_same = version_of(before) == version_of(after) and before.st_ctime_ns == after.st_ctime_ns
        return replace(_item(path, before), size=size), is_same and size == before.st_size

    def _read(self, file: int, size: int) -> bytes:
        with self._read_faults():
            return os.read(file, size)

    @contextmanager
    def _read_faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in ABSENT:
                raise FetchError("file_unreadable", reason=reason_of(error)) from error
            if not self._is_there():
                raise FetchError("folder_missing", path=self._path) from error
            raise FetchError("gone", status=404) from error

    def _is_there(self) -> bool:
        """Whether the path still leads to the folder that was opened: its disk may have been unmounted meanwhile."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._root))  # noqa: PTH116 - beside a descriptor
        except OSError:
            return False


def _allowed_above(path: str, owner: Owner) -> Path | None:
    """The folder of SOURCE_FOLDERS, as far as they are open to the owner, that a path is, or is below, if any."""
    if not path.startswith("/") or ".." in path.split("/"):
        return None
    return next(
        (Path(each) for each in open_to(owner, settings.SOURCE_FOLDERS) if Path(path).is_relative_to(each)), None
    )


def _item(path: str, status: os.stat_result) -> Item:
    key = key_of(path)
    return Item(
        key=key,
        version=version_of(status),
        name=key.rpartition("/")[2],
        size=status.st_size,
        modified=datetime.fromtimestamp(status.st_mtime, UTC),
    )
