"""Reads a feed in the sandbox: the library takes minutes over some kilobytes that were made for that."""

import calendar
import hashlib
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final

import feedparser

from kb.sources.connectors.markup import text_of

TITLE_CHARACTERS: Final = 500


def feed_job(file: BinaryIO, media_type: str, charset: str, url: str, *, texts: int) -> list[dict[str, Any]] | None:
    """The child's side of `read_feed`: what the entries of a feed say; None for what is no feed.

    Args:
        file: its bytes. Of bytes themselves the library would first try whether they name a file.
        media_type: of the answer's header.
        charset: likewise; blank: none.
        url: where it was found.
        texts: of how many entries, the first ones, the text is wanted too.
    """
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
