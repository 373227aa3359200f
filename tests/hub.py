"""The part of a Hugging Face hub that listing and downloading models uses, on the loopback."""

import contextlib
import hashlib
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "a" * 40


class Hub(ThreadingHTTPServer):
    """Serves files of models until the `with` ends.

    Attributes:
        models: by id the contents of its files by name.
        announced: by id and name, sizes that a listing tells in place of the true ones.
        broken: names of files that are listed and not there.
        cut: names of files of which half arrives.
        cut_once: the same, the first time only.
        listing: in place of every listing.
        sent: bytes of files by name that were sent.
        silence: cleared, no request is answered.
        hung: by the names of files of which nothing comes, what is set when one is asked for.
    """

    daemon_threads = True

    def __init__(self, models):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = models
        self.announced = {}
        self.broken, self.cut, self.cut_once = set(), set(), set()
        self.listing, self.listing_status = None, 200
        self.requests, self.authorizations = [], []
        self.sent = Counter()
        self.silence = threading.Event()
        self.silence.set()
        self.hung, self._ended = {}, threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.silence.set()
        self._ended.set()
        self.shutdown()
        self.server_close()
        self._thread.join()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def listing_of(self, model_id):
        sizes = {name: len(data) for name, data in self.models[model_id].items()}
        sizes |= {name: size for (model, name), size in self.announced.items() if model == model_id}
        siblings = [{"rfilename": name, "size": size} for name, size in sizes.items()]
        return {"id": model_id, "sha": COMMIT, "siblings": siblings} if self.listing is None else self.listing


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.server
        hub.silence.wait()
        hub.requests.append(f"{self.command} {self.path}")
        hub.authorizations.append(self.headers.get("Authorization"))
        path = self.path.split("?", 1)[0]
        for model_id, files in hub.models.items():
            if path in (f"/api/models/{model_id}", f"/api/models/{model_id}/revision/{COMMIT}"):
                self._send(hub.listing_status, json.dumps(hub.listing_of(model_id)).encode(), {})
                return
            if path.startswith(f"/{model_id}/resolve/"):
                self._send_file(files, path.split("/", 5)[5])
                return
        self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _send_file(self, files, name):
        if name in self.server.broken:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        if self.command == "GET" and (asked := self.server.hung.get(name)):
            asked.set()
            self.server._ended.wait()
        data = files[name]
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT}
        status, start = 200, re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if start is not None and self.command == "GET":
            headers["Content-Range"] = f"bytes {start[1]}-{len(data) - 1}/{len(data)}"
            status, data = 206, data[int(start[1]) :]
        is_cut = name in self.server.cut or (self.command == "GET" and name in self.server.cut_once)
        if self.command == "GET":
            self.server.cut_once.discard(name)
            self.server.sent[name] += len(data) // 2 if is_cut else len(data)
        self._send(status, data, headers, sent=len(data) // 2 if is_cut else None)

    def _send(self, status, body, headers, sent=None):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:sent])
            self.close_connection = sent is not None

    def log_message(self, *args):
        """Keeps the test output clean."""


@contextlib.contextmanager
def reachable(monkeypatch, cache, models):
    """A hub that this process may download from into the folder `cache`, where otherwise tests are offline."""
    for name in ("HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    # The hub's client read these when it was imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    with Hub(models) as hub:
        yield hub


def files_of(folder):
    """A folder as a hub holds it: the contents of its files by name."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
