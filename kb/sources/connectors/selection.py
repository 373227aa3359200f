"""Which files of a place a source takes, by their paths."""

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from django.utils.translation import gettext_lazy as _

from kb.ingest.parser.parsed import SUPPORTED_EXTENSIONS
from kb.sources.fields import Field

# Several to a setting, with line ends or commas between them.
_GLOBS: Final = r"[\s\S]{0,2000}"
SELECTION_FIELDS: Final = (
    Field(
        "include",
        _("include files (patterns)"),
        _(
            "Patterns, one a line, such as manuals/** or *.pdf. “*” stands for any part of a name, “**” for any "
            "folders. Blank: all files."
        ),
        pattern=_GLOBS,
        is_long=True,
        is_filter=True,
    ),
    Field(
        "exclude",
        _("exclude files (patterns)"),
        _("In the same way, such as drafts or *.bak.md. A folder stands for all that is in it."),
        pattern=_GLOBS,
        is_long=True,
        is_filter=True,
    ),
    Field(
        "hidden",
        _("include hidden files"),
        _("Those whose name, or a folder’s above them, begins with a dot."),
        default=False,
        is_flag=True,
        is_filter=True,
    ),
)


class Glob:
    """A pattern of paths: without a slash of a name in any folder, else of a path from the source's folder on.

    `*`, `?` and `[…]` stand for parts of a name, `**` for any number of folders. What matches a folder matches all in it.
    """

    def __init__(self, pattern: str) -> None:
        parts = [part for part in pattern.split("/") if part]
        if "/" not in pattern.rstrip("/"):
            parts = ["**", *parts]
        if parts and parts[-1] == "**":
            parts.append("*")  # what is in the folder, not a file of its name
        # None: any number of folders.
        self._parts = [None if part == "**" else re.compile(fnmatch.translate(part)).match for part in parts]

    def matches(self, parts: Sequence[str]) -> bool:
        """Whether it matches a path, or a folder above it; in time of the order of its parts times those of the pattern."""
        reached = self._past_folders({0})
        for part in parts:
            stay = {at for at in reached if self._parts[at] is None}
            moved = {at + 1 for at in reached if (match := self._parts[at]) is not None and match(part)}
            reached = self._past_folders(stay | moved)
            if len(self._parts) in reached:
                return True
        return False

    def _past_folders(self, reached: Iterable[int]) -> set[int]:
        """With the positions after each `**`, which may stand for no folder at all."""
        every = set()
        for at in reached:
            every.add(at)
            while at < len(self._parts) and self._parts[at] is None:
                at += 1  # noqa: PLW2901 - the next of a run of them
                every.add(at)
        return every


@dataclass(frozen=True, slots=True)
class Selection:
    include: tuple[Glob, ...] = ()
    exclude: tuple[Glob, ...] = ()
    hidden: bool = False

    @classmethod
    def parse(cls, include: str, exclude: str, *, hidden: bool) -> "Selection":
        """Of the values of SELECTION_FIELDS."""
        of_include, of_exclude = (
            tuple(Glob(each.strip()) for each in re.split(r"[,\n]", text) if each.strip(" /\r"))
            for text in (include, exclude)
        )
        return cls(of_include, of_exclude, hidden)

    def enters(self, folder: str) -> bool:
        """Whether a folder may hold files that are taken."""
        parts = folder.split("/")
        is_hidden = not self.hidden and any(part.startswith(".") for part in parts)
        return not (is_hidden or any(glob.matches(parts) for glob in self.exclude))

    def takes(self, path: str) -> bool:
        """Whether a file is taken: one that can be read, by its extension, and that the patterns let through."""
        parts = path.split("/")
        return (
            PurePath(parts[-1]).suffix.lower() in SUPPORTED_EXTENSIONS
            and self.enters(path)
            and (not self.include or any(glob.matches(parts) for glob in self.include))
        )
