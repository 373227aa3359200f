"""What HTML says beside its text as documents have it, read without building a tree: its links, its date, an entry's text.

What reads it takes far longer than its length over pieces that were made for that, so strangers' pieces are read in the sandbox.
"""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from html.parser import HTMLParser
from io import BytesIO
from typing import Any, BinaryIO, Final

from kb.ingest.formats.text import decode
from kb.ingest.parser.parsed import ParseError
from kb.ingest.parser.sandbox import parse_job
from kb.sources.connectors.listing import normal

MAX_LINKS: Final = 5_000
_DATES: Final = frozenset(
    {"article:published_time", "datepublished", "dc.date", "dc.date.issued", "date", "pubdate", "publishdate"}
)


class Markup(HTMLParser):
    """What is read of a page.

    Attributes:
        links: normalised, in their order, each once.
    """

    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self.links: dict[str, None] = {}
        self.published: datetime | None = None
        self._base = base

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "a" and "href" in values and "nofollow" not in values.get("rel", "").lower().split():
            if len(self.links) < MAX_LINKS and (url := normal(values["href"], self._base)) is not None:
                self.links[url] = None
        elif tag == "base" and values.get("href"):
            self._base = normal(values["href"], self._base) or self._base
        elif tag == "meta" and self.published is None:
            name = values.get("property") or values.get("name") or values.get("itemprop") or ""
            if name.lower() in _DATES:
                self.published = moment(values.get("content", ""))


def read_markup(page: str, url: str) -> Markup:
    """The links and the date of a page that lies at `url`."""
    reader = Markup(url)
    reader.feed(page)
    return reader


def moment(words: str) -> datetime | None:
    """A date as pages and feeds write it, in UTC where no zone is named; None for what is none."""
    words = words.strip()
    try:
        found = datetime.fromisoformat(words)
    except ValueError:
        try:
            found = parsedate_to_datetime(words)
        except ValueError:
            return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def page_job(file: BinaryIO, filename: str, url: str) -> dict[str, Any]:
    """The child's side of reading a page of HTML that lies at `url`."""
    data = file.read()
    return {"document": parse_job(BytesIO(data), filename), **links_job(BytesIO(data), url)}


def links_job(file: BinaryIO, url: str) -> dict[str, Any]:
    """Where a page leads, and when it was published; neither where its characters cannot be read."""
    try:
        found = read_markup(decode(file.read()), url)
    except ParseError:
        return {"links": [], "published": None}
    return {"links": list(found.links), "published": found.published and found.published.isoformat()}


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
        self.pieces += ["\n"] if _BLOCKS.fullmatch(tag) else []

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in _HIDDEN))
        self.pieces += ["\n"] if _BLOCKS.fullmatch(tag) else []

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(data)


def text_of(markup: str) -> str:
    """The text of a short piece of HTML, such as an entry of a feed; its blocks on lines of their own."""
    reader = _Text()
    reader.feed(markup)
    reader.close()
    return "\n".join(filter(None, (" ".join(line.split()) for line in "".join(reader.pieces).split("\n"))))
