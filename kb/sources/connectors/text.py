"""The text of a piece of HTML, without building a tree of it.

What reads it takes far longer than its length over pieces that were made for that, so strangers' pieces are read in the sandbox.
"""

import re
from html.parser import HTMLParser
from typing import Final

_HIDDEN: Final = frozenset({"script", "style", "noscript", "template"})
_BLOCKS: Final = re.compile(
    r"address|article|blockquote|br|d[dlt]|div|fig(ure|caption)|footer|h[1-6r]|header|li|ol|p|pre|section|t(able|[dhr])|ul"
)


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - its interface
        self._hidden += tag in _HIDDEN
        if _BLOCKS.fullmatch(tag):
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in _HIDDEN))
        if _BLOCKS.fullmatch(tag):
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(data)


def text_of(markup: str) -> str:
    """The text of a short piece of HTML, such as an entry of a feed; its blocks on lines of their own."""
    reader = _Text()
    reader.feed(markup)
    reader.close()
    lines = (" ".join(line.split()) for line in "".join(reader.pieces).split("\n"))
    return "\n".join(filter(None, lines))
