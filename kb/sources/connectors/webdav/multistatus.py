"""What a WebDAV server says of a folder (RFC 4918, `multistatus`)."""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from lxml import etree

REQUEST: Final = (
    b'<?xml version="1.0" encoding="utf-8"?>'
    b'<d:propfind xmlns:d="DAV:" xmlns:oc="http://owncloud.org/ns"><d:prop><d:resourcetype/><d:getetag/>'
    b"<d:getlastmodified/><d:getcontentlength/><oc:checksums/><oc:fileid/></d:prop></d:propfind>"
)
_DAV: Final = "{DAV:}"
_OC: Final = "{http://owncloud.org/ns}"
_SHA256: Final = "SHA256:"
MOST_CHARACTERS: Final = 500  # of an ETag


class NotMultistatus(ValueError):
    """The answer is something else, such as a page for people."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder or a file as listed; `status` is not 200 where the server could not say more of it.

    Attributes:
        file_id: of Nextcloud and ownCloud, which have a page for it.
        digest: SHA-256 in hexadecimal, or blank.
    """

    href: str
    status: int = 200
    is_folder: bool = False
    etag: str = ""
    modified: datetime | None = None
    size: int | None = None
    digest: str = ""
    file_id: str = ""

    @property
    def version(self) -> str:
        """The ETag; else when it was changed, with its size; blank where the server says neither."""
        if self.etag or self.modified is None:
            return self.etag
        return f"{self.modified:%Y-%m-%dT%H:%M:%S};{'' if self.size is None else self.size}"


def read(content: bytes) -> list[Entry]:
    """The entries of an answer in its order; raises NotMultistatus. Nothing that it refers to is resolved."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        root = etree.fromstring(content, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise NotMultistatus from error
    if root.tag != f"{_DAV}multistatus" or root.getroottree().docinfo.doctype:
        raise NotMultistatus
    return list(filter(None, map(_entry, root.iterfind(f"{_DAV}response"))))


def _entry(response: etree._Element) -> Entry | None:
    href = (response.findtext(f"{_DAV}href") or "").strip()
    if not href:
        return None
    whole = response.findtext(f"{_DAV}status")
    if whole is not None and _status(whole) != 200:
        return Entry(href, _status(whole))
    found: dict[str, etree._Element] = {}
    for group in response.iterfind(f"{_DAV}propstat"):
        if _status(group.findtext(f"{_DAV}status") or "HTTP/1.1 200 OK") == 200:  # the server has values of these
            for each in group.iterfind(f"{_DAV}prop/*"):
                found.setdefault(str(each.tag), each)

    def text(name: str) -> str:
        return (found[name].text or "").strip() if name in found else ""

    kind = found.get(f"{_DAV}resourcetype")
    size = text(f"{_DAV}getcontentlength")
    etag = text(f"{_DAV}getetag")
    if etag and not etag.startswith(('"', "W/")):
        etag = f'"{etag}"'  # as some servers forget to write it
    return Entry(
        href,
        is_folder=kind is not None and kind.find(f"{_DAV}collection") is not None,
        etag=etag if len(etag) <= MOST_CHARACTERS else "",
        modified=date_of(text(f"{_DAV}getlastmodified")),
        size=int(size) if size.isascii() and size.isdecimal() and len(size) < 19 else None,
        digest=_digest(found.get(f"{_OC}checksums")),
        file_id=file_id if (file_id := text(f"{_OC}fileid")).isascii() and file_id.isdecimal() else "",
    )


def _status(line: str) -> int:
    code = [*line.split(), "", ""][1]
    return int(code) if code.isascii() and code.isdecimal() and len(code) == 3 else 500


def _digest(checksums: etree._Element | None) -> str:
    """Of "SHA1:… MD5:… SHA256:…", which the server may hold for a file that was uploaded with them."""
    words = " ".join(checksums.itertext()).split() if checksums is not None else []
    for word in words:
        value = word.removeprefix(_SHA256).lower()
        if value != word.lower() and len(value) == 64 and not set(value) - set("0123456789abcdef"):
            return value
    return ""


def date_of(text: str) -> datetime | None:
    """A date as HTTP writes it."""
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).astimezone(UTC)
