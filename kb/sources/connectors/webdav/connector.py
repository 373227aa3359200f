"""A folder that a server offers by WebDAV: Nextcloud, ownCloud, Nutstore (坚果云) and others."""

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, BinaryIO, ClassVar, Final
from urllib.parse import quote, unquote_to_bytes

import httpcore
import httpx
from django.conf import settings
from django.utils.translation import gettext as _, gettext_lazy

from kb.base.errors import Rejected
from kb.base.net.addresses import AllowList, FetchError, Guard, Owner, nobody, open_to, parse_url, port_of
from kb.base.net.client import MIB, body_of, check_status, header_of
from kb.base.net.session import Session, within_site
from kb.sources.connectors.protocol import MOST_FILES, Connector, Item, Portion
from kb.sources.connectors.selection import SELECTION_FIELDS, Selection
from kb.sources.connectors.webdav.multistatus import REQUEST, Entry, NotMultistatus, date_of, read
from kb.sources.fields import Field

MOST_DEPTH: Final = 60
MOST_FOLDERS: Final = 50_000
MOST_LISTING: Final = 8 * MIB  # of one answer
_STRONG: Final = re.compile(r'"[!#-~]*"')  # an ETag that stands for the very bytes
_NEXT: Final = re.compile(r'<([^<>]*)>\s*;\s*rel="?next"?')
SLOWEST: Final = 50 * 1024  # bytes a second that a file has to come at


class WebDav(Connector):
    """See `Connector`. `values` are of `fields`, secrets among them; None takes the operator's guard and time limit."""

    fields: ClassVar[tuple[Field, ...]] = (
        Field(
            "url",
            gettext_lazy("address of the folder"),
            gettext_lazy(
                "As the server names it for WebDAV, such as https://cloud.example.org/remote.php/dav/files/NAME/Folder (Nextcloud) "
                "or https://dav.jianguoyun.com/dav/Folder (Nutstore)."
            ),
            is_required=True,
        ),
        Field("user", gettext_lazy("user name"), gettext_lazy("Empty for a folder that is open to everyone.")),
        Field(
            "password",
            gettext_lazy("app password"),
            gettext_lazy("Made in the security settings of the account there, so that it can be revoked by itself."),
            is_secret=True,
        ),
        *SELECTION_FIELDS,
    )

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        owner: Owner = nobody,
        guard: Guard | None = None,
        seconds: float | None = None,
    ) -> None:
        guard = guard or Guard(AllowList.parse(open_to(owner, settings.WEB_ALLOWED_HOSTS)))
        url = parse_url(str(values.get("url", ""))).copy_with(query=None, fragment=None)
        # As the server is to give it back: with a slash at the end, whether the curator wrote one or not.
        self._root = url.copy_with(path=url.path.rstrip("/") + "/")
        self._selection = Selection.parse(
            values.get("include", ""), values.get("exclude", ""), hidden=values.get("hidden", False)
        )
        self._seconds = seconds or settings.WEB_SECONDS
        headers = {"User-Agent": settings.WEB_USER_AGENT, "Accept": "*/*", "Accept-Encoding": "identity"}
        if user := str(values.get("user", "")):
            if url.scheme != "https" and not guard.allowed.names(url.host, port_of(url)):
                raise FetchError("plain_password", host=url.host)
            pair = f"{user}:{values.get('password', '')}".encode()
            headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
        elif values.get("password"):
            raise Rejected("user_invalid", _("A password needs the user name that it belongs to."))
        self._session = Session(guard, headers=headers, seconds=self._seconds)

    def __exit__(self, *exception: object) -> None:
        self._session.close()

    def portions(self, position: Any) -> Iterator[Portion]:
        """Folder by folder, since most servers refuse to list all at once; each folder in the order of its names."""
        at = position or {
            "root": str(self._root),
            "folders": [["", self._root.raw_path.decode("ascii")]],
            "seen": [0, 0],
        }
        self._root = httpx.URL(at["root"])
        folders, (entries, asked) = [tuple(each) for each in at["folders"]], at["seen"]
        while folders:
            folder, path = folders.pop()
            found = self._listed(folder, path)
            entries, asked = entries + len(found), asked + 1
            if entries > MOST_FILES or asked > MOST_FOLDERS or folder.count("/") > MOST_DEPTH:
                raise FetchError("too_many_items", most=MOST_FILES)
            rows = sorted(found.items())
            files = [
                self._item(key, path, entry)
                for key, (path, entry) in rows
                if not entry.is_folder and self._selection.takes(key)
            ]
            deeper = [
                (f"{key}/", path) for key, (path, entry) in rows if entry.is_folder and self._selection.enters(key)
            ]
            folders += reversed(deeper)
            following = {"root": str(self._root), "folders": folders, "seen": [entries, asked]}
            yield Portion(files, following if folders else None)

    def fetch(self, item: Item, into: BinaryIO, most: int) -> Item:
        path = item.address or self._root.raw_path.decode("ascii") + quote(item.key, safe="/")
        url = self._root.copy_with(raw_path=path.encode())
        is_strong = _STRONG.fullmatch(item.version) is not None
        seconds = self._seconds + (most if item.size is None else min(item.size, most)) / SLOWEST
        for headers in ({"If-Match": item.version}, {}) if is_strong else ({},):
            with self._session.request("GET", url, headers=headers, seconds=seconds) as (_url, response):
                if response.status == 412 and headers:
                    continue  # it has changed since it was listed: what it is now
                self._check(response)
                return _as_written(item, response, sum(map(into.write, body_of(response, most))))
        raise FetchError("bad_status", status=412)

    def _listed(self, folder: str, path: str) -> dict[str, tuple[str, Entry]]:
        """What lies in a folder, by path below the root, with the path as the server writes it.

        A folder's own path ends with a slash, the root's is blank.
        """
        found: dict[str, tuple[str, Entry]] = {}
        following: httpx.URL | None = self._root.copy_with(raw_path=path.encode())
        while following is not None and len(found) <= MOST_FILES:
            entries, following = self._page(folder, following)
            before = len(found)
            found.update(self._children(folder, path if folder else self._root.raw_path.decode("ascii"), entries))
            if following is not None and len(found) == before:
                raise self._not_webdav("Link: rel=next")  # it would go round in a circle
        return found

    def _page(self, folder: str, url: httpx.URL) -> tuple[list[Entry], httpx.URL | None]:
        """A part of a folder, which most servers give as a whole, and the address of the next one, as Nutstore gives it."""
        headers = {"Depth": "1", "Content-Type": "application/xml; charset=utf-8"}
        with self._session.request("PROPFIND", url, headers=headers, content=REQUEST) as (at, response):
            if response.status == 404 and folder and not url.query:
                return [], None  # deleted while the listing went on
            if response.status != 207:
                if response.status in {404, 410}:
                    raise FetchError("no_folder", path=self._root.path, host=self._root.host)
                if response.status < 400 or response.status in {400, 405, 415, 501}:
                    raise self._not_webdav(f"HTTP {response.status}")
                self._check(response)
            content = bytearray()
            for piece in response.iter_stream():
                content += piece
                if len(content) > MOST_LISTING:
                    raise FetchError("folder_too_large", path=folder[:200] or "/", megabytes=MOST_LISTING // MIB)
            link = _NEXT.search(header_of(response, "link"))
        if not folder and not url.query:
            self._root = at.copy_with(raw_path=at.raw_path.partition(b"?")[0].rstrip(b"/") + b"/")
        try:
            entries = read(bytes(content))
        except NotMultistatus as error:
            raise self._not_webdav("no multistatus") from error
        if not entries:
            raise self._not_webdav("empty multistatus")
        return entries, within_site(at, link[1]) if link else None

    def _children(self, folder: str, path: str, entries: list[Entry]) -> Iterator[tuple[str, tuple[str, Entry]]]:
        parent = _parts(path)
        base = self._root.copy_with(raw_path=path.encode())
        for entry in entries:
            url = self._absolute(base, entry.href)
            parts = _parts(url.raw_path.decode("ascii"))
            if parts == parent:
                if not entry.is_folder and entry.status == 200:
                    raise self._not_webdav("no collection")
                continue
            if parts is None or parent is None or parts[:-1] != parent or url.host != self._root.host:
                raise FetchError("outside_folder", host=self._root.host, href=entry.href[:200])
            if entry.status == 404:
                continue  # deleted meanwhile
            if entry.status != 200:
                raise FetchError("bad_status", status=entry.status)
            own = url.raw_path.decode("ascii").rstrip("/") + ("/" if entry.is_folder else "")
            yield folder + parts[-1], (own, entry)

    def _absolute(self, base: httpx.URL, href: str) -> httpx.URL:
        try:
            # Servers leave some characters as they are, such as spaces and those of other scripts.
            return base.join(quote(href, safe="/:?#[]@!$&'()*+,;=%~"))
        except (httpx.InvalidURL, ValueError) as error:
            raise FetchError("outside_folder", host=self._root.host, href=href[:200]) from error

    def _item(self, key: str, path: str, entry: Entry) -> Item:
        url = str(self._root.copy_with(raw_path=path.encode()))
        if entry.file_id and "/remote.php/" in url:
            url = f"{url.partition('/remote.php/')[0]}/index.php/f/{entry.file_id}"
        return Item(
            key=key,
            version=entry.version,
            digest=entry.digest,
            name=key.rpartition("/")[2],
            size=entry.size,
            modified=entry.modified,
            url=url,
            address=path,
        )

    def _check(self, response: httpcore.Response) -> None:
        status, host = response.status, self._root.host
        if status == 401:
            raise FetchError("bad_credentials", host=host, reason="HTTP 401")
        if status in {
            423,
            429,
            503,
        }:  # the last also of a server that is being maintained: none of its files can be read
            wait = header_of(response, "retry-after")
            seconds = int(wait) if wait.isascii() and wait.isdecimal() and len(wait) < 7 else 0
            raise FetchError("too_many_requests", host=host, status=status, retry_after=seconds)
        check_status(host, response)

    def _not_webdav(self, reason: str) -> FetchError:
        return FetchError("not_webdav", host=self._root.host, reason=reason)


def _parts(path: str) -> list[str] | None:
    """The names of a path in UTF-8, one in another encoding with its bytes escaped; None for what leads elsewhere."""
    parts = [unquote_to_bytes(each).decode("utf-8", "backslashreplace") for each in path.split("/") if each]
    return None if any(each in {".", ".."} or re.search(r"[/\x00-\x1f]", each) for each in parts) else parts


def _as_written(item: Item, response: httpcore.Response, size: int) -> Item:
    """With the version of what has come, which is another than the listed one where the file has changed meanwhile."""
    etag, modified = header_of(response, "etag"), date_of(header_of(response, "last-modified"))
    if item.version.startswith(('"', "W/")):
        is_same = not etag or _opaque(etag) == _opaque(item.version)
        version = item.version if is_same else etag
    else:
        version = Entry("", modified=modified, size=size).version if modified else item.version
    digest = item.digest if version == item.version else ""
    return replace(item, version=version, digest=digest, size=size, modified=modified or item.modified)


def _opaque(etag: str) -> str:
    """Without what servers add for what they have packed, or to say that it is weak."""
    return etag.removeprefix("W/").strip('"').removesuffix("-gzip").removesuffix(";gzip")
