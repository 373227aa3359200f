import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from config.environment import NamingEnv
from kb.base import probe

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HEARTBEAT_DIR", str(tmp_path / "beats"))


def test_a_process_that_has_not_begun_is_not_well(capsys):
    assert probe.main(["worker"]) == 1
    assert "no sign" in capsys.readouterr().err


def test_one_that_beats_is_well():
    probe.beat("worker")
    assert probe.main(["worker"]) == 0
    assert probe.main(["beat"]) == 1


def test_each_installation_has_its_own_signs(monkeypatch, tmp_path):
    monkeypatch.delenv("HEARTBEAT_DIR")
    monkeypatch.setenv("ZHIKU_DATA_DIR", str(tmp_path / "one"))
    probe.beat("worker")
    assert probe.main(["worker"]) == 0
    monkeypatch.setenv("ZHIKU_DATA_DIR", str(tmp_path / "other"))
    assert probe.main(["worker"]) == 1


def test_a_process_that_begins_does_not_pass_by_what_a_former_one_has_said():
    probe.beat("long-worker")
    probe.begin("long-worker")
    assert probe.main(["long-worker"]) == 1


def test_one_that_has_been_silent_is_not(capsys):
    probe.beat("beat")
    path = probe._path("beat")
    os.utime(path, (0, path.stat().st_mtime - 2 * probe.LATE_SECONDS))
    assert probe.main(["beat"]) == 1
    assert "silent for" in capsys.readouterr().err


@pytest.fixture
def server():
    class Handler(http.server.BaseHTTPRequestHandler):
        status, asked = 200, []

        def do_GET(self):
            self.asked.append((self.path, self.headers["Host"], self.headers["X-Forwarded-Proto"]))
            self.send_response(self.status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield listening.server_port, Handler
        listening.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("process", "status", "code"), [("web", 200, 0), ("web", 503, 1), ("web", 301, 1), ("mcp", 200, 0), ("mcp", 500, 1)]
)
def test_one_that_listens_is_asked(server, monkeypatch, process, status, code):
    port, handler = server
    handler.status, handler.asked = status, []
    monkeypatch.setenv("ALLOWED_HOSTS", ".zhiku.example,other.example")
    assert probe.main([process, "--port", str(port)]) == code
    path = {"web": "/api/v1/ready/", "mcp": "/health"}[process]
    assert handler.asked == [(path, "zhiku.example", "https")]


def test_live_is_another_question_than_ready(server):
    port, handler = server
    handler.status, handler.asked = 200, []
    assert probe.main(["web", "--live", "--port", str(port)]) == 0
    assert handler.asked[0][0] == "/api/v1/health/"


def test_a_wrong_variable_is_named_and_a_secret_is_not_shown(monkeypatch):
    from django.core.exceptions import ImproperlyConfigured

    monkeypatch.setenv("TOP_K", "many")
    with pytest.raises(ImproperlyConfigured, match=r"TOP_K cannot be read.*'many'.*Correct it"):
        NamingEnv().int("TOP_K", default=5)
    monkeypatch.setenv("SOME_KEY", "hidden")
    with pytest.raises(ImproperlyConfigured) as raised:
        NamingEnv().int("SOME_KEY")
    assert "hidden" not in str(raised.value)


def test_it_loads_no_framework_and_leaves_nothing_among_the_metrics(tmp_path):
    """A container is asked 5,760 times a day."""
    program = (
        "import sys, kb.base.probe; kb.base.probe.main(['web', '--port', '1']); "
        "sys.exit(bool({'django', 'celery', 'prometheus_client'} & set(sys.modules)))"
    )
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=False)

    assert done.returncode == 0
    assert list(tmp_path.iterdir()) == []
