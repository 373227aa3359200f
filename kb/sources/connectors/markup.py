"""What pages and entries of feeds hold: both sides of the sandbox's jobs, which read HTML without building a tree."""

import calendar
import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from html import escape
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

import httpx
import regex

from kb.base.net.addresses import URL_CHARACTERS, port_of
from kb.base.net.client import Fetched
from kb.ingest.formats.text import decode
from kb.ingest.parser.parsed import OFFICE_FORMATS, ParsedDocument, ParseError
from kb.ingest.parser.sandbox import Limits, TooSlow, WarmParser, decode_document, parse_file, parse_job, run_job

_TRACKING: Final = regex.compile(r"utm_\w+|fbclid|gclid|mc_[ce]id")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An address that may become a document.

    Attributes:
        content: HTML that came with the listing, so that the address itself is not asked; None: it is to be asked.
        text: of the content, or of the summary in a feed, where it was asked for.
        version: of what the listing says of it; while it is the same, so is the content. Blank: unknown.
        depth: links from the first page.
    """

    url: str
    title: str = ""
    content: str | None = None
    text: str = ""
    version: str = ""
    published: datetime | None = None
    depth: int = 0


def normal(url: str, base: str = "") -> str | None:
    """One spelling of an address: no fragment, usual port or tracking parameters; None for what is no web address."""
    try:
        parsed = httpx.URL(base).join(url.strip()) if base else httpx.URL(url.strip())
        if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.userinfo:
            return None
        query = parsed.query.decode("ascii")
        if _TRACKING.search(query):
            pairs = parse_qsl(query, keep_blank_values=True)
            query = urlencode([(name, value) for name, value in pairs if not _TRACKING.fullmatch(name)])
        changes: dict[str, Any] = {"fragment": None, "query": query.encode() or None}
        spelt = str(parsed.copy_with(**changes))
    except (httpx.InvalidURL, ValueError):
        return None
    return spelt if len(spelt) <= URL_CHARACTERS else None


def site_of(url: str) -> str:
    """A host without a leading www., with its port where that is not the usual one; blank for no address."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return ""
    host = parsed.host.removeprefix("www.")
    usual = parsed.scheme in {"http", "https"} and port_of(parsed) in {80, 443}
    return host if usual else f"{host}:{parsed.port}"


EXTENSIONS: Final = {
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "text/plain": ".txt",
    "text/markdown": ".md",
    "application/pdf": ".pdf",
    "text/csv": ".csv",
    "application/epub+zip": ".epub",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    **{found.mime: extension for extension, found in OFFICE_FORMATS.items()},
    "text/rtf": ".rtf",
}
_Read = TypeVar("_Read")

READABLE: Final = frozenset(EXTENSIONS)
_TEXTS: Final = frozenset({".html", ".txt", ".md", ".csv"})
_UNSAFE: Final = re.compile(r"[^\w.-]+")
_ASCII_WORD: Final = re.compile(r"[!-~]+")
_VARYING: Final = frozenset("/0123456789")


@dataclass(frozen=True, slots=True)
class PageContent:
    """A page as it is stored: the name of its file, whose extension says how it is read, and what was read from it.

    `text_hash` is the SHA-256 of title and text, so that another advertisement makes no change; `links` are normalised.
    """

    data: bytes
    name: str
    title: str
    text: str
    text_hash: str
    links: tuple[str, ...] = ()
    published: datetime | None = None

    @property
    def text_key(self) -> str:
        """The same for texts that differ only in numbers, identifiers with numbers, addresses and white space."""
        words = _ASCII_WORD.sub(lambda word: word[0] if _VARYING.isdisjoint(word[0]) else "0", self.text)
        return hashlib.sha256(" ".join(words.casefold().split()).encode("utf-8", "replace")).hexdigest()


def content_of_page(fetched: Fetched, limits: Limits, parser: WarmParser | None = None) -> PageContent:
    """What a page holds; raises ParseError where no text can be read from it.

    The parser's child reads texts; other files, and what it takes too long over, have a child of their own.
    """
    extension, data = EXTENSIONS[fetched.media_type], fetched.content
    is_text = extension in _TEXTS
    if is_text and fetched.charset:
        with suppress(LookupError, UnicodeError):  # written as UTF-8, since the header is lost with what it says
            data = data.decode(fetched.charset).encode()
    return _content(data, fetched.url, extension, limits, parser if is_text else None)


def content_of_entry(candidate: Candidate, limits: Limits, parser: WarmParser | None = None) -> PageContent:
    """What an entry of a feed holds, whose content came with it; otherwise as `content_of_page`."""
    title = escape(candidate.title)
    page = (
        f'<!DOCTYPE html><html><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body><article><h1>{title}</h1>{candidate.content}</article></body></html>"
    )
    return _content(page.encode("utf-8", "replace"), candidate.url, ".html", limits, parser)


def links_in(data: bytes, url: str, limits: Limits, parser: WarmParser | None = None) -> tuple[str, ...]:
    """Where a page leads that lies at `url`; raises ParseError where that takes too much time or memory to tell."""
    return _run("links", data, _links, limits, parser, url=url)[0]


def _run(
    job: str, data: bytes, decode: Callable[[Any], _Read], limits: Limits, parser: WarmParser | None, **arguments: Any
) -> _Read:
    with stored(data) as path:
        if parser is not None:
            with suppress(TooSlow):
                return parser.run(job, path, decode, **arguments)
        return decode(run_job(job, path, limits=limits, **arguments))


def _parsed(data: bytes, name: str, limits: Limits, parser: WarmParser | None) -> ParsedDocument:
    with stored(data) as path:
        if parser is not None:
            with suppress(TooSlow):
                return parser.parse(path, name)
        return parse_file(path, name, limits=limits)


def _content(data: bytes, url: str, extension: str, limits: Limits, parser: WarmParser | None) -> PageContent:
    name = file_name(url, extension)
    if extension == ".html":
        parsed, links, published = _run("page", data, _page, limits, parser, filename=name, url=url)
    else:
        parsed, links, published = _parsed(data, name, limits, parser), (), None
    text = "\n\n".join(section.text for section in parsed.sections)
    return PageContent(
        data=data,
        name=name,
        title="" if parsed.title == PurePosixPath(name).stem else parsed.title,
        text=text,
        text_hash=hashlib.sha256(f"{parsed.title}\n{text}".encode()).hexdigest(),
        links=links,
        published=published,
    )


@contextmanager
def stored(data: bytes) -> Iterator[Path]:
    """A file of these bytes, for a job of the sandbox."""
    with tempfile.NamedTemporaryFile(prefix="page-") as file:
        file.write(data)
        file.flush()
        yield Path(file.name)


def _page(answer: Any) -> tuple[ParsedDocument, tuple[str, ...], datetime | None]:
    return decode_document(answer.get("document")), *_links(answer)


def _links(answer: Any) -> tuple[tuple[str, ...], datetime | None]:
    """What a child says of links and date; its word is not trusted."""
    try:
        published = answer["published"]
        return tuple(map(str, answer["links"])), datetime.fromisoformat(published) if published else None
    except (KeyError, TypeError, ValueError) as error:
        raise ParseError("parser_crashed") from error


def file_name(url: str, extension: str) -> str:
    """A name that tells an address: "example.org_guide_start.html"."""
    parsed = httpx.URL(url)
    path = PurePosixPath(parsed.path)
    path = path.with_suffix("") if path.suffix.lower() in {".html", ".htm", *EXTENSIONS.values()} else path
    return _UNSAFE.sub("_", f"{parsed.host}{path}").strip("_.")[:150] + extension


# -- In the child ----------------------------------------------------------------------------------------------------------
MAX_LINKS: Final = 5_000
TITLE_CHARACTERS: Final = 500
_DATES: Final = frozenset(
    {"article:published_time", "datepublished", "dc.date", "dc.date.issued", "date", "pubdate", "publishdate"}
)


class Markup(HTMLParser):
    """What is read of a page that lies at `base`: its links, normalised, in their order, each once, and its date."""

    def __init__(self, page: str, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self.links: dict[str, None] = {}
        self.published: datetime | None = None
        self._base = base
        self.feed(page)

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


def moment(words: str) -> datetime | None:
    """A date as pages and feeds write it, in UTC where no zone is named; None for what is none."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        with suppress(ValueError):
            found = parse(words.strip())
            return found if found.tzinfo else found.replace(tzinfo=UTC)
    return None


def page_job(file: BinaryIO, filename: str, url: str) -> dict[str, Any]:
    data = file.read()
    return {"document": parse_job(BytesIO(data), filename), **links_job(BytesIO(data), url)}


def links_job(file: BinaryIO, url: str) -> dict[str, Any]:
    """Where a page leads, and when it was published; neither where its characters cannot be read."""
    try:
        found = Markup(decode(file.read()), url)
    except ParseError:
        return {"links": [], "published": None}
    return {"links": list(found.links), "published": found.published and found.published.isoformat()}


_HIDDEN: Final = frozenset({"script", "style", "noscript", "template"})
_BLOCKS: Final = re.compile(
    r"address|article|blockquote|br|d[dlt]|div|fig(ure|caption)|footer|h[1-6r]|header|li|ol|p|pre|section|t(able|[dhr])|ul"
)


class _Text(HTMLParser):
    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._hidden = 0
        self.feed(markup)
        self.close()

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
    lines = "".join(_Text(markup).pieces).split("\n")
    return "\n".join(filter(None, (" ".join(line.split()) for line in lines)))


def feed_job(file: BinaryIO, media_type: str, charset: str, url: str, *, texts: int) -> list[dict[str, Any]] | None:
    """What the entries of a feed say; None for what is no feed.

    It takes a file: the library would first try whether bytes name one.
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
