"""A real HTTP server on the loopback that plays web sites: pages, sitemaps, feeds and whatever harms a reader.

Use it as a context manager::

    with WebServer() as web:
        web.pages["/"] = Page("<h1>Welcome</h1>")
        client = client_for(web)
        client.fetch(web.url("/"))
        assert web.paths == ["/"]
"""

import gzip
import socket
import ssl
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kb.base.net.addresses import AllowList, Guard
from kb.base.net.client import Politeness, WebClient

CERTIFICATE = Path(__file__).parent / "data/tls/named.example.org.pem"
"""For tests only: its key is no secret."""
ARTICLE = "The archive opens at nine and closes at five. Readers register at the desk with a card. " * 5


@dataclass(frozen=True)
class Page:
    """An answer.

    Attributes:
        body: a text is sent as UTF-8.
        etag: blank: none. A request that names it is answered 304.
        location: of a redirect; makes `status` 302.
        packed: send it gzipped.
        hang_after: so many bytes are sent, and then no more until the end of the test.
        cut_after: so many bytes are sent, and then the connection is closed.
    """

    body: str | bytes = ""
    status: int = 200
    type: str = "text/html; charset=utf-8"
    etag: str = ""
    last_modified: str = ""
    location: str = ""
    packed: bool = False
    hang_after: int | None = None
    cut_after: int | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    path: str
    headers: dict[str, str]


class WebServer:
    """See the module's description.

    Attributes:
        pages: by path, with its query.
        asked: the requests, oldest first; those for /robots.txt apart, unless `robots` is wanted.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.pages: dict[str, Page] = {}
        self.asked: list[Asked] = []
        self.released = threading.Event()
        self._http = _Server(self)
        if tls:
            # Each thread shakes hands for itself, so that a client that fails to does not end the server.
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._http.server_port
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> "WebServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    @property
    def paths(self) -> list[str]:
        return [each.path for each in self.asked if each.path != "/robots.txt"]

    def forget(self) -> None:
        self.asked.clear()


def client_for(web: WebServer, **fields: object) -> WebClient:
    """A client that may read loopback addresses, and waits for nobody."""
    defaults = {
        "guard": Guard(AllowList.parse(["127.0.0.1"])),
        "politeness": Politeness(0),
        "user_agent": "Zhiku/test",
        "seconds": 20.0,
    }
    return WebClient(**(defaults | fields))


def article(title: str, text: str = ARTICLE, links: tuple[str, ...] = ()) -> str:
    """A page that a main-content reader recognises."""
    anchors = "".join(f'<a href="{link}">further</a> ' for link in links)
    return (
        f"<!DOCTYPE html><html><head><title>{title}</title></head><body><nav>{anchors}</nav>"
        f"<main><article><h1>{title}</h1><p>{text}</p></article></main></body></html>"
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for the threads, so that none outlives its test

    def __init__(self, web: WebServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.web = web


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            return  # the client has gone

    def do_GET(self) -> None:
        web = self.server.web
        web.asked.append(Asked(self.path, dict(self.headers)))
        page = web.pages.get(self.path, Page("not here", status=404))
        if page.etag and self.headers.get("If-None-Match") == page.etag:
            self._head(page, 304, 0)
            return
        body = page.body.encode() if isinstance(page.body, str) else page.body
        body = gzip.compress(body) if page.packed else body
        self._head(page, 302 if page.location else page.status, len(body))
        stop = page.hang_after if page.hang_after is not None else page.cut_after
        self.wfile.write(body[:stop])
        if page.hang_after is not None:
            web.released.wait()
        if page.cut_after is not None:
            self.connection.shutdown(socket.SHUT_RDWR)

    def _head(self, page: Page, status: int, length: int) -> None:
        self.send_response(status)
        fields = {
            "Content-Type": page.type,
            "Content-Length": str(length),
            "ETag": page.etag,
            "Last-Modified": page.last_modified,
            "Location": page.location,
            "Content-Encoding": "gzip" if page.packed else "",
            **page.headers,
        }
        for name, value in fields.items():
            if value:
                self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Keeps the test output clean."""
