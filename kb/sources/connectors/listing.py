"""What every kind of source is, addresses one after the other, and what a page or an entry of a feed holds."""

import hashlib
import re
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

import httpx
import regex

from kb.base.net.addresses import URL_CHARACTERS, FetchError, port_of
from kb.base.net.client import Deadline, Fetched, WebClient
from kb.ingest.parser.parsed import ErrorCode, ParsedDocument, ParseError
from kb.ingest.parser.sandbox import Limits, TooSlow, WarmParser, decode_document, run_job

MOST_PATTERNS: Final = 50
# What the expressions of a source may take: a moment in all, and a little for every address.
PATTERN_SECONDS: Final = 0.5
SECONDS_AN_ADDRESS: Final = 0.001
_TRACKING: Final = regex.compile(r"utm_\w+|fbclid|gclid|mc_[ce]id")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An address that may become a document.

    Attributes:
        title: blank: its content says.
        content: HTML that came with the listing, so that the address itself is not asked; None: it is to be asked.
        text: of the content, or of the summary in a feed, where it was asked for.
        version: of what the listing says of it; while it is the same, so is the content. Blank: unknown.
        published: None: unknown.
        depth: links from the first page.
    """

    url: str
    title: str = ""
    content: str | None = None
    text: str = ""
    version: str = ""
    published: datetime | None = None
    depth: int = 0


@dataclass(slots=True)
class Scope:
    """Which addresses belong to a source.

    Attributes:
        site: the host, with its port where it is not the usual one; None: any.
        include: regular expressions, one of which an address must match; none: any.
        exclude: those of which it may match none.
    """

    site: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    _seconds_left: float = field(default=PATTERN_SECONDS, init=False, repr=False, compare=False)

    def accepts(self, url: str) -> bool:
        """Whether an address belongs to the source.

        Raises:
            FetchError: an expression takes too long to tell, or those of many addresses do together.
        """
        if self.site is not None and site_of(url) != self.site:
            return False
        self._seconds_left += SECONDS_AN_ADDRESS
        if any(self._matches(pattern, url) for pattern in self.exclude):
            return False
        return not self.include or any(self._matches(pattern, url) for pattern in self.include)

    def _matches(self, pattern: str, url: str) -> bool:
        if self._seconds_left <= 0:
            raise FetchError("slow_pattern", pattern=pattern)
        started = time.thread_time()
        try:
            # Other threads go on meanwhile.
            return compiled(pattern).search(url, timeout=self._seconds_left, concurrent=True) is not None
        except TimeoutError as error:
            raise FetchError("slow_pattern", pattern=pattern) from error
        finally:
            self._seconds_left = min(PATTERN_SECONDS, self._seconds_left - (time.thread_time() - started))


@dataclass
class Listing(ABC):
    """Iterates over the candidates of a source, at most as many as it may have.

    Attributes:
        known: addresses of it that are kept already.
        deadline: for reading the listing itself, where somebody waits.
        alive: is called before each part of a listing that is read, which may take long.
        is_complete: after the last: whether a known address that was not among them is there no more.
    """

    client: WebClient
    url: str
    scope: Scope
    max_pages: int
    max_depth: int = 0
    known: tuple[str, ...] = ()
    deadline: Deadline | None = None
    alive: Callable[[], None] = lambda: None
    is_complete: bool = True

    @abstractmethod
    def __iter__(self) -> Iterator[Candidate]:
        """Yields candidates.

        Raises:
            FetchError: the listing itself cannot be read.
        """

    def met(self, candidate: Candidate, links: Iterable[str]) -> None:  # noqa: B027 - most have no use for it
        """Is called with the links of a candidate that was read."""


def normal(url: str, base: str = "") -> str | None:
    """One spelling of an address: no fragment, no usual port, no tracking parameters; None for what is no web address."""
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


@lru_cache(maxsize=200)
def compiled(pattern: str) -> "regex.Pattern[str]":
    """An expression ready to use; raises regex.error for what is none."""
    return regex.compile(pattern)


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
}
_Read = TypeVar("_Read")

READABLE: Final = frozenset(EXTENSIONS)
_TEXTS: Final = frozenset({".html", ".txt", ".md", ".csv"})
_UNSAFE: Final = re.compile(r"[^\w.-]+")
_ASCII_WORD: Final = re.compile(r"[!-~]+")
_VARYING: Final = frozenset("/0123456789")


@dataclass(frozen=True, slots=True)
class PageContent:
    """A page as it is kept.

    Attributes:
        name: of the file, whose extension says how it is read.
        text_hash: SHA-256 of the text that is read from it, so that another advertisement makes no change.
        links: where it leads, normalised.
        published: None: unknown.
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
    """What a page holds; it is read in the sandbox.

    The parser's child reads texts; other files, and what it takes too long over, have a child of their own.

    Raises:
        ParseError: no text can be read from it.
    """
    extension, data = EXTENSIONS[fetched.media_type], fetched.content
    is_text = extension in _TEXTS
    if is_text and fetched.charset:
        with suppress(LookupError, UnicodeError):  # written as UTF-8, since the header is lost with what it says
            data = data.decode(fetched.charset).encode()
    return _content(data, fetched.url, extension, limits, parser if is_text else None)


def content_of_entry(candidate: Candidate, limits: Limits, parser: WarmParser | None = None) -> PageContent:
    """What an entry of a feed holds, whose content came with it; the arguments as in `content_of_page`.

    Raises:
        ParseError: it holds no text.
    """
    title = escape(candidate.title)
    page = (
        f'<!DOCTYPE html><html><head><meta charset="utf-8"><title>{title}</title></head>'
        f"<body><article><h1>{title}</h1>{candidate.content}</article></body></html>"
    )
    return _content(page.encode("utf-8", "replace"), candidate.url, ".html", limits, parser)


def links_in(data: bytes, url: str, limits: Limits, parser: WarmParser | None = None) -> tuple[str, ...]:
    """Where a page leads that lies at `url`; the other arguments as in `content_of_page`.

    Raises:
        ParseError: it takes too much time or memory to tell.
    """
    with stored(data) as path:
        return _run("links", path, _links, limits, parser, url=url)[0]


def _run(
    job: str, path: Path, decode: Callable[[Any], _Read], limits: Limits, parser: WarmParser | None, **arguments: Any
) -> _Read:
    if parser is not None:
        with suppress(TooSlow):
            return parser.run(job, path, decode, **arguments)
    return decode(run_job(job, path, limits=limits, **arguments))


def _content(data: bytes, url: str, extension: str, limits: Limits, parser: WarmParser | None) -> PageContent:
    name = file_name(url, extension)
    with stored(data) as path:
        if extension == ".html":
            parsed, links, published = _run("page", path, _page, limits, parser, filename=name, url=url)
        else:
            parsed, links, published = _run("parse", path, decode_document, limits, parser, filename=name), (), None
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
        raise ParseError(ErrorCode.PARSER_CRASHED) from error


def file_name(url: str, extension: str) -> str:
    """A name that tells an address: "example.org_guide_start.html"."""
    parsed = httpx.URL(url)
    path = PurePosixPath(parsed.path)
    path = path.with_suffix("") if path.suffix.lower() in {".html", ".htm", *EXTENSIONS.values()} else path
    return _UNSAFE.sub("_", f"{parsed.host}{path}").strip("_.")[:150] + extension
