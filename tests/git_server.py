"""Git repositories on the loopback: `git http-backend` behind cheroot, and a real sshd with a configuration of its own."""

import base64
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cheroot.wsgi import Server

USER, PASSWORD = "reader", "token with 'quotes' $HOME `x` 密"
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    **{f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(folder: Path, *arguments: str, given: bytes = b"") -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=_ENVIRONMENT, input=given, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


class Bare:
    """A bare repository. `filters`: whether it lets contents be left out, as the big hosts do."""

    def __init__(self, folder: Path, *, filters: bool = True) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet", "--bare", "--initial-branch=main")
        git(folder, "config", "uploadpack.allowFilter", str(filters).lower())

    def commit(
        self,
        files: dict[str | bytes, str | bytes],
        *,
        branch: str = "main",
        onto: bool = True,
        gone: Iterable[str] = (),
        modes: dict[str | bytes, str] | None = None,
    ) -> str:
        """Adds files, takes those that are `gone` out; `onto` False: a history of its own, which replaces the branch."""
        ref = f"refs/heads/{branch}"
        stream = [f"commit {ref}\ncommitter a <a@b.c> 1700000000 +0000\ndata 1\nx\n".encode()]
        if onto and git(self.folder, "for-each-ref", ref):
            stream.append(f"from {ref}^0\n".encode())
        stream += [f"D {path}\n".encode() for path in gone]
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            mode = (modes or {}).get(path, "100644")
            name = path.encode() if isinstance(path, str) else path
            quoted = b'"' + b"".join(b"\\%03o" % sign for sign in name) + b'"'
            if mode == "160000":
                stream.append(b"M 160000 %s %s\n" % (data, quoted))
            else:
                stream.append(b"M %s inline %s\ndata %d\n%s\n" % (mode.encode(), quoted, len(data), data))
        git(self.folder, "fast-import", "--quiet", "--force", given=b"".join(stream))
        return git(self.folder, "rev-parse", ref)


@dataclass
class GitServer:
    """Serves what lies in `folder` over HTTP below /.

    Attributes:
        password: whether one is asked for.
        asked: method, path with query, and connection of each request.
        answer: called with the environment of each request first; what it returns goes out instead.
    """

    folder: Path
    password: bool = False
    asked: list[str] = field(default_factory=list)
    posts: list[bytes] = field(default_factory=list)
    answer: Callable[[dict[str, Any]], tuple[str, dict[str, str], Iterable[bytes]] | None] = lambda _: None

    def __enter__(self) -> "GitServer":
        self._server = Server(("127.0.0.1", 0), self._app, numthreads=4)
        self._server.prepare()
        self.port = self._server.bind_addr[1]
        self._thread = threading.Thread(target=self._server.serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
        self._thread.join()

    def url(self, name: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}/{name}"

    def fetches(self) -> int:
        """Requests that objects were asked for with."""
        return sum(b"command=fetch" in body for body in self.posts)

    def _app(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = _body(environ)
        self.asked.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ.get('QUERY_STRING', '')}")
        self.posts.append(body)
        if given := self.answer(environ):
            status, headers, pieces = given
            start_response(status, list(headers.items()))
            return pieces
        wanted = f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
        if self.password and environ.get("HTTP_AUTHORIZATION") != wanted:
            start_response("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="git"'), ("Content-Length", "0")])
            return []
        variables = {name: str(value) for name, value in environ.items() if name.isupper() and name != "HTTP_PROXY"}
        done = subprocess.run(
            ["git", "http-backend"],
            env=variables
            | _ENVIRONMENT
            | {
                "GIT_PROJECT_ROOT": str(self.folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "CONTENT_LENGTH": str(len(body)),
                "CONTENT_TYPE": environ.get("CONTENT_TYPE", ""),
                "GIT_PROTOCOL": environ.get("HTTP_GIT_PROTOCOL", ""),
            },
            input=body,
            capture_output=True,
            check=False,
        )
        head, _blank, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        start_response(headers.pop("Status", "200 OK"), [*headers.items(), ("Content-Length", str(len(content)))])
        return [content]


def _body(environ: dict[str, Any]) -> bytes:
    import gzip

    body = environ["wsgi.input"].read()
    return gzip.decompress(body) if environ.pop("HTTP_CONTENT_ENCODING", "") == "gzip" else body


@dataclass
class SshServer:
    """sshd that lets one key in, which it makes itself. `known_hosts` holds its own key as ssh-keyscan writes it."""

    folder: Path

    def __enter__(self) -> "SshServer":
        self.folder.mkdir(mode=0o700)
        for name in ("host", "client", "other"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)], check=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (self.folder / "authorized_keys").write_text((self.folder / "client.pub").read_text())
        (self.folder / "config").write_text(
            f"""
            Port {self.port}
            ListenAddress 127.0.0.1
            HostKey {self.folder / "host"}
            AuthorizedKeysFile {self.folder / "authorized_keys"}
            PidFile none
            PasswordAuthentication no
            KbdInteractiveAuthentication no
            PermitRootLogin prohibit-password
            StrictModes no
            UsePAM no
            AcceptEnv GIT_PROTOCOL
            """
        )
        Path("/run/sshd").mkdir(exist_ok=True)  # where it confines what talks to strangers
        assert SSHD is not None
        self._log = (self.folder / "log").open("wb")
        self._process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(self.folder / "config")], stderr=self._log, start_new_session=True
        )
        _until_listening(self.port, self._process)
        key = (self.folder / "host.pub").read_text().split()
        self.known_hosts = f"[127.0.0.1]:{self.port} {key[0]} {key[1]}"
        self.key = (self.folder / "client").read_text()
        self.other_key = (self.folder / "other").read_text()
        other = (self.folder / "other.pub").read_text().split()
        self.other_hosts = f"[127.0.0.1]:{self.port} {other[0]} {other[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def url(self, path: Path, host: str = "127.0.0.1") -> str:
        import getpass

        return f"ssh://{getpass.getuser()}@{host}:{self.port}{path}"

    def log(self) -> str:
        return (self.folder / "log").read_text()


def _until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    import time

    deadline = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise RuntimeError("sshd does not start")
