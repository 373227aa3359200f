"""What HTML says beside its text as documents have it, read without building a tree: its links, its date; and feeds.

What reads them takes far longer than their length over pieces that were made for that, so the sandbox reads them.
"""

import calendar
import hashlib
import re
from contextlib import suppress
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
TITLE_CHARACTERS: Final = 500
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
    reader = Markup(url)
    reader.feed(page)
    return reader


def moment(words: str) -> datetime | None:
    """A date as pages and feeds write it, in UTC where no zone is named; None for what is none."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        with suppress(ValueError):
            found = parse(words.strip())
            return found if found.tzinfo else found.replace(tzinfo=UTC)
    return None


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


def feed_job(file: BinaryIO, media_type: str, charset: str, url: str, *, texts: int) -> list[dict[str, Any]] | None:
    """The child's side of `read_feed`: what the entries of a feed say; None for what is no feed.

    It takes a file: of bytes themselves the library would first try whether they name one.
    """
    import feedparser  # noqa: PLC0415 - pages need none of it

    headers = {"content-type": f"{media_type}; charset={charset}" if charset else media_type, "content-location": url}
    parsed = feedparser.parse(file, response_headers=headers)
    if not parsed.get("version"):
        return None
    return [_entry(entry, with_text=place < texts) for place, entry in enumerate(parsed.entries)]


def _entry(entry: Any, *, with_text: bool) -> dict[str, Any]:
    summary = str(entry.get("summary", ""))
    own = "\n".join(str(part.get("value", "")) for part in entry.get("content", ()))
    title = " ".join(str(entry.get("title", "")).split())[:TITLE_CHARACTERS]
    link = str(entry.get("link", ""))
    parts = (title, own if link else own or summary, summary)
    stated = "\0".join((*parts, str(_stated(entry, "updated")), str(_stated(entry, "published"))))
    return {
        "title": title,
        "link": link,
        "id": str(entry.get("id", "")),
        "own": own,
        "summary": summary,
        "text": text_of(own or summary) if with_text else "",
        "version": hashlib.sha256(stated.encode("utf-8", "replace")).hexdigest(),
        "published": _moment(_stated(entry, "published_parsed") or _stated(entry, "updated_parsed")),
    }


def _stated(entry: Any, name: str) -> Any:
    """As the feed has it: the library would put one date in the place of another, and warn that it soon will not."""
    return dict.get(entry, name)


def _moment(parts: Any) -> str | None:
    try:
        return datetime.fromtimestamp(calendar.timegm(parts), UTC).isoformat() if parts else None
    except (TypeError, ValueError, OverflowError):
        return None
