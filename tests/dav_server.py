"""wsgidav behind cheroot on the loopback, as a WebDAV server for tests; `Answers` stands before it where one has to misbehave."""

import base64
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cheroot.wsgi import Server
from wsgidav.wsgidav_app import WsgiDAVApp

USER, PASSWORD = "读者", "app:密码"


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    connection: tuple[str, str]


@dataclass
class DavServer:
    """A folder by WebDAV.

    Attributes:
        folder: what is served below /dav/.
        asked: the requests, oldest first.
        answer: called with each request before wsgidav is; what it returns, a status line, headers and body, goes out instead.
        rewrite: of the body of every multistatus.
    """

    folder: Path
    is_open: bool = False
    asked: list[Asked] = field(default_factory=list)
    answer: Callable[[Asked], tuple[str, dict[str, str], bytes] | None] = lambda _: None
    rewrite: Callable[[bytes], bytes] = lambda body: body
    before_get: deque[Callable[[], None]] = field(default_factory=deque)

    def __enter__(self) -> "DavServer":
        self._dav = WsgiDAVApp(
            {
                "provider_mapping": {"/dav": str(self.folder)},
                "simple_dc": {"user_mapping": {"*": True if self.is_open else {"unused": {"password": "unused"}}}},
                "http_authenticator": {"accept_basic": True, "accept_digest": False, "default_to_digest": False},
                "logging": {"enable": False},
                "verbose": 0,
                "property_manager": False,
                "lock_storage": False,
                "hotfixes": {"re_encode_path_info": True},
                "dir_browser": {"enable": True},
            }
            if self.is_open
            else _WITH_PASSWORD | {"provider_mapping": {"/dav": str(self.folder)}}
        )
        self._server = Server(("127.0.0.1", 0), self._app, numthreads=4)
        self._server.prepare()
        self.port = self._server.bind_addr[1]
        self._thread = threading.Thread(target=self._server.serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._thread.join()

    def url(self, path: str = "/dav/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def methods(self) -> list[str]:
        return [each.method for each in self.asked]

    def _app(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        headers = {name[5:].replace("_", "-").title(): value for name, value in environ.items() if name[:5] == "HTTP_"}
        asked = Asked(
            environ["REQUEST_METHOD"], environ["PATH_INFO"], headers, (environ["REMOTE_ADDR"], environ["REMOTE_PORT"])
        )
        self.asked.append(asked)
        if asked.method == "GET" and self.before_get:
            self.before_get.popleft()()
        if given := self.answer(asked):
            status, fields, body = given
            start_response(status, [*fields.items(), ("Content-Length", str(len(body)))])
            return [body]
        began: list[Any] = []
        body = b"".join(self._dav(environ, lambda *arguments, **_: began.extend(arguments)))
        status, fields = began[0], [(name, value) for name, value in began[1] if name.lower() != "content-length"]
        body = self.rewrite(body) if status.startswith("207") else body
        start_response(status, [*fields, ("Content-Length", str(len(body)))])
        return [body]


_WITH_PASSWORD = {
    "simple_dc": {"user_mapping": {"*": {USER: {"password": PASSWORD}}}},
    "http_authenticator": {"accept_basic": True, "accept_digest": False, "default_to_digest": False},
    "logging": {"enable": False},
    "verbose": 0,
    "property_manager": False,
    "lock_storage": False,
}


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
