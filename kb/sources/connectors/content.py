"""What was read of an address, as a file that the parser takes, and what the parser makes of it."""

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import httpx

from kb.base.net.client import Fetched
from kb.ingest.parser.parsed import ErrorCode, ParsedDocument, ParseError
from kb.ingest.parser.sandbox import Limits, decode_document, run_job
from kb.ingest.parser.warm_parser import TooSlow, WarmParser
from kb.sources.connectors.listing import Candidate

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
_NAME_CHARACTERS: Final = 150
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

    Args:
        fetched: the page.
        limits: for reading it.
        parser: whose child reads texts; other files, and what it takes too long over, have a child of their own.

    Raises:
        ParseError: no text can be read from it.
    """
    extension, data = EXTENSIONS[fetched.media_type], fetched.content
    if extension not in _TEXTS:
        return _content(data, fetched.url, extension, limits, None)
    if fetched.charset:
        with suppress(LookupError, UnicodeError):  # written as UTF-8, since the header is lost with what it says
            data = data.decode(fetched.charset).encode()
    return _content(data, fetched.url, extension, limits, parser)


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
    return _UNSAFE.sub("_", f"{parsed.host}{path}").strip("_.")[:_NAME_CHARACTERS] + extension
