"""Which paths of a place a source takes: patterns with wildcards, as .gitignore has them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from django.utils.translation import gettext_lazy as _

from kb.ingest.parser.parsed import SUPPORTED_EXTENSIONS
from kb.sources.fields import Field

MOST_FILES: Final = 200_000  # of one source, those that it leaves out too
MOST_PATTERNS: Final = 100
_SEPARATORS: Final = re.compile(r"[\n,]")

FIELDS: Final = (
    Field(
        "include",
        _("Only these files"),
        _("One pattern a line, such as docs/** or *.md; * stands for part of a name, ** for any folders. Empty: all."),
        is_long=True,
        is_filter=True,
    ),
    Field(
        "exclude",
        _("But not these"),
        _("One pattern a line, such as drafts/ or *.tmp.md."),
        is_long=True,
        is_filter=True,
    ),
)
HIDDEN: Final = Field(
    "hidden",
    _("hidden files too"),
    _("Those whose name, or a folder’s above them, begins with a dot."),
    default=False,
    is_flag=True,
    is_filter=True,
)


@dataclass(frozen=True, slots=True)
class Patterns:
    """Paths like one of `include`, if any, and like none of `exclude`; each a pattern cut at its slashes.

    `hidden`: also those whose name, or a folder's above them, begins with a dot.
    """

    include: tuple[tuple[str, ...], ...] = ()
    exclude: tuple[tuple[str, ...], ...] = ()
    hidden: bool = True

    @classmethod
    def parse(cls, include: str, exclude: str, *, hidden: bool = True) -> "Patterns":
        include_parts, exclude_parts = (
            tuple(filter(None, map(_cut, _SEPARATORS.split(each)[:MOST_PATTERNS]))) for each in (include, exclude)
        )
        return cls(include_parts, exclude_parts, hidden)

    def accepts(self, path: str) -> bool:
        """Whether a file belongs to the source; those of kinds that nobody reads never do."""
        if PurePosixPath(path).suffix.lower() not in SUPPORTED_EXTENSIONS:
            return False
        parts = path.split("/")
        if self._hides(parts) or any(_fits(each, parts) for each in self.exclude):
            return False
        return not self.include or any(_fits(each, parts) for each in self.include)

    def enters(self, folder: str) -> bool:
        """Whether a folder may hold files that belong to the source: it need not be listed otherwise."""
        parts = folder.split("/")
        return not (self._hides(parts) or any(each[-1] == "**" and _fits(each, parts) for each in self.exclude))

    def _hides(self, parts: Sequence[str]) -> bool:
        return not self.hidden and any(part.startswith(".") for part in parts)


def _cut(pattern: str) -> tuple[str, ...]:
    """One without a slash before its end is looked for at any depth; one that ends with a slash means what lies in there."""
    pattern = pattern.strip()
    parts = [each for each in pattern.split("/") if each]
    if not parts:
        return ()
    if "/" not in pattern.rstrip("/"):
        parts.insert(0, "**")
    if pattern.endswith("/"):
        parts.append("**")
    return tuple(parts)


def _fits(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    return wild_match(pattern, parts, "**", lambda mask, part: wild_match(mask, part, "*", lambda a, b: a in {"?", b}))


def wild_match(pattern: Sequence[str], text: Sequence[str], star: str, fits: Callable[[Any, Any], bool]) -> bool:
    """Whether the whole text fits, where `star` stands for any number of elements; time at most the product of the lengths."""
    at, here, last, resumed = 0, 0, -1, 0
    while here < len(text):
        if at < len(pattern) and pattern[at] == star:
            last, resumed, at = at, here, at + 1
        elif at < len(pattern) and fits(pattern[at], text[here]):
            at, here = at + 1, here + 1
        elif last >= 0:
            resumed += 1
            at, here = last + 1, resumed
        else:
            return False
    return all(each == star for each in pattern[at:])
