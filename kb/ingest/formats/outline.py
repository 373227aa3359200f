"""Collects headings and blocks of text into sections with heading paths."""

from kb.ingest.parser.parsed import Section


class Outline:
    """Builds sections in document order.

    A heading's words stay in the text of its section, so that they can be searched; a heading without text of
    its own is carried into the first section below it.
    """

    def __init__(self) -> None:
        self.first_heading = ""
        self._sections: list[Section] = []
        self._path: list[tuple[int, str]] = []
        self._parts: list[str] = []
        self._has_body = False

    def heading(self, level: int, text: str) -> None:
        """Opens a section; level 1 is the highest."""
        title = " ".join(text.split())
        if not title:
            return
        opens_below = bool(self._path) and level > self._path[-1][0]
        if self._has_body or not opens_below:
            self._close()
        self._path = [*(entry for entry in self._path if entry[0] < level), (level, title)]
        self._parts.append(title)
        self.first_heading = self.first_heading or title

    def block(self, text: str, *, joined: bool = False) -> None:
        """Adds a paragraph; joined puts it on the next line, as a list item, not after a blank one."""
        if not text.strip():
            return
        if joined and self._has_body:
            self._parts[-1] += f"\n{text}"
        else:
            self._parts.append(text)
        self._has_body = True

    def sections(self) -> tuple[Section, ...]:
        self._close()
        return tuple(self._sections)

    def _close(self) -> None:
        if self._parts:
            path = tuple(title for _, title in self._path)
            self._sections.append(Section("\n\n".join(self._parts), None, path))
        self._parts = []
        self._has_body = False
