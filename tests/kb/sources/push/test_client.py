"""The client of docs/ as its users run it, a process of its own, against a real server over real connections."""

import http.server
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kb.access.models import ApiKey, Membership
from kb.ingest.services.chunks import chunk_update
from kb.ingest.services.indexing import index_documents
from kb.models import Chunk, Document, EvalSet, Judgment, Source, SourceItem
from kb.quality.eval_sets.services.sets import judge
from tests import factories

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "docs/zhiku_sync.py"


@dataclass
class Relay:
    """Stands between client and server, counts requests, and breaks connections as it is told.

    Attributes:
        seen: methods and paths of requests, in their order.
        cuts: by the number of a request: "before" it reaches the server, or "after", so that its answer is lost.
        answers: by the number of a request: status and headers that it gets in place of the server's answer.
    """

    server: str
    seen: list = field(default_factory=list)
    cuts: dict = field(default_factory=dict)
    answers: dict = field(default_factory=dict)

    def __enter__(self):
        relay = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def handle_any(self):
                number = len(relay.seen)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                relay.seen.append((self.command, self.path.rpartition("knowledge-bases/")[2]))
                if relay.cuts.get(number) == "before":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                status, headers, content = relay.answers.get(number) or relay.forward(self, body)
                if relay.cuts.get(number) == "after":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_PUT = handle_any  # noqa: N815 - the library's names

            def log_message(self, *args):
                """Keeps the test output clean."""

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def forward(self, handler, body):
        names = ("Authorization", "Content-Type", "Accept-Language")
        headers = {name: handler.headers[name] for name in names if name in handler.headers}
        request = urllib.request.Request(self.server + handler.path, body, headers, method=handler.command)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, {"Content-Type": answer.headers["Content-Type"]}, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {"Content-Type": error.headers["Content-Type"]}, error.read()

    def __exit__(self, *_):
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    @property
    def methods(self):
        return [method for method, _ in self.seen]


@pytest.fixture
def relay(live_server, settings):
    settings.ALLOWED_HOSTS = ["*"]
    with Relay(live_server.url) as relay:
        yield relay


@pytest.fixture
def owner(transactional_db):
    return factories.make_user("owner")


@pytest.fixture
def kb(owner):
    return factories.make_kb(owner, "handbook", language="en")


@pytest.fixture
def run(relay, kb, owner):
    """Runs the client; returns its exit status, what it printed, and the requests that it sent."""
    _, secret = factories.make_api_key(owner, kb, scope=ApiKey.Scope.WRITE)

    def run(folder, *options, key=secret, kb_id=kb.pk):
        relay.seen.clear()
        environment = {"PATH": os.environ["PATH"], "LANG": "en_GB.UTF-8"} | ({"ZHIKU_API_KEY": key} if key else {})
        command = [sys.executable, SCRIPT, folder, "--url", relay.url, "--kb", str(kb_id), *options]
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr, relay.methods

    return run


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "manuals", {f"{number}.md": f"# Page {number}\n\nOf pumps.\n" for number in range(6)})


def paths():
    return set(SourceItem.objects.exclude(document=None).values_list("key", flat=True))


def test_the_docs_of_this_repository_and_then_what_has_changed_of_them(run, relay, kb, owner, tmp_path):
    docs = tmp_path / "docs"
    shutil.copytree(ROOT / "docs", docs, ignore=shutil.ignore_patterns("images", "monitoring", "site"))
    count = len(list(docs.glob("*.md")))

    status, printed, methods = run(docs)
    assert (status, methods) == (0, ["POST", *["PUT"] * count, "POST"]), printed
    assert f"{count} sent" in printed
    assert Document.objects.filter(knowledge_base=kb).count() == count

    # unchanged
    status, printed, methods = run(docs, "--delete")
    assert (status, methods) == (0, ["POST"])
    assert f"0 sent, 0 moved, 0 deleted, 0 failed, {count} unchanged" in printed

    # one changed, one new, one gone, half renamed; a chunk was edited and a passage judged
    index_documents([SourceItem.objects.get(key="access.md").document_id])
    chunk = Chunk.objects.filter(document__source="access.md").order_by("position").first()
    chunk_update(chunk, text="Edited by a curator.", enabled=True)
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="set")
    judgment = judge(factories.principal(owner), eval_set, "who may?", chunk, 2)
    renamed = sorted(docs.glob("*.md"))[: count // 2]
    for page in renamed:
        write(docs, {f"guide/{page.name}": page.read_text()})
        page.unlink()
    (docs / "stores.md").write_text("# Stores\n\nWritten again.\n")
    (docs / "start.md").unlink()
    write(docs, {"new.md": "# New\n"})

    status, printed, methods = run(docs, "--delete")
    assert (status, methods) == (0, ["POST", "PUT", "PUT", "POST"]), printed
    assert f"2 sent, {count // 2} moved, 1 deleted, 0 failed" in printed
    chunk.refresh_from_db()
    judgment.refresh_from_db()
    assert (chunk.text, judgment.document_id) == ("Edited by a curator.", chunk.document_id)
    assert SourceItem.objects.get(key="guide/access.md").document_id == chunk.document_id
    assert paths() == {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    assert Judgment.objects.count() == 1


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_cut_connection_is_tried_again_and_doubles_nothing(run, relay, folder, cut):
    relay.cuts = {0: cut, 3: cut, 9: cut}

    status, printed, methods = run(folder)

    assert status == 0, printed
    assert printed.count("again in") == 3
    assert methods == ["POST", "POST", *["PUT"] * 7, *["POST"] * 2]
    assert (Document.objects.count(), paths()) == (6, {f"{number}.md" for number in range(6)})


def test_a_client_that_is_killed_goes_on_where_it_was(run, relay, folder):
    relay.answers = {3: (401, {}, b"{}")}  # ends the client in the midst of its files
    assert run(folder)[0] == 4
    relay.answers = {}
    assert Document.objects.count() == 2

    status, printed, methods = run(folder)

    assert (status, methods) == (0, ["POST", *["PUT"] * 4, "POST"]), printed
    assert Document.objects.count() == 6


def test_a_server_that_is_busy_is_asked_again_when_it_says(run, relay, folder):
    busy = b'{"code": "throttled", "detail": "Too many requests.", "remedy": "Wait."}'
    relay.answers = {0: (503, {"Retry-After": "0"}, b""), 2: (429, {"Retry-After": "0"}, busy)}

    status, printed, methods = run(folder)

    assert status == 0
    assert "again in 0 s: Too many requests. Wait." in printed
    assert len(methods) == 2 + 6 + 2


def test_a_server_that_stays_away_is_said(run, relay, folder):
    relay.answers = dict.fromkeys(range(20), (503, {"Retry-After": "0"}, b""))

    status, printed, methods = run(folder)

    assert (status, len(methods)) == (5, 8)
    assert "out of reach" in printed


def test_a_dry_run_changes_nothing(run, folder):
    status, printed, methods = run(folder, "--dry-run", "--delete")

    assert (status, methods) == (0, ["POST"])
    assert printed.count("would send") == 6
    assert not Source.objects.exists()


def test_a_large_share_is_deleted_only_with_yes(run, folder):
    run(folder)
    for number in range(3):
        (folder / f"{number}.md").unlink()
    write(folder, {"new.md": "new"})

    status, printed, _ = run(folder, "--delete")
    assert (status, Document.objects.count()) == (3, 7), printed
    assert "3 of 6 documents would be deleted" in printed
    assert run(folder, "--delete", "--dry-run")[0] == 3

    status, printed, _ = run(folder, "--delete", "--yes")
    assert (status, Document.objects.count()) == (0, 4), printed


def test_without_delete_what_has_gone_stays(run, folder):
    run(folder)
    (folder / "0.md").unlink()

    status, _, _ = run(folder)

    assert (status, Document.objects.count()) == (0, 6)


def test_an_empty_folder_is_no_reason_to_delete(run, folder, tmp_path):
    run(folder, "--source", "docs")
    (tmp_path / "empty").mkdir()

    status, _, _ = run(tmp_path / "empty", "--source", "docs", "--delete")

    assert (status, Document.objects.count()) == (3, 6)


@pytest.mark.skipif(os.geteuid() == 0, reason="modes do not bind the superuser")
def test_what_cannot_be_read_is_not_deleted(run, folder):
    run(folder)
    (folder / "0.md").chmod(0)
    (folder / "1.md").unlink()

    status, printed, _ = run(folder, "--delete")

    assert (status, Document.objects.count()) == (1, 6)
    assert "cannot be read: 0.md" in printed


def test_files_that_are_not_taken_are_said_and_the_others_sent(run, folder):
    write(folder, {"broken.pdf": "MZ\x00\x01", "image.png": "x", "tool.exe": "x", "skip.md": "x"})
    write(folder, {".zhikuignore": "skip*\n"})

    status, printed, _ = run(folder, "--exclude", "5.md")

    assert status == 1
    assert paths() == {f"{number}.md" for number in range(5)}
    assert re.search(r"failed broken\.pdf: .*is a program", printed)
    assert "2 files are of kinds that are not read" in printed


def test_the_key_decides(run, kb, owner, folder):
    viewer = factories.make_user("viewer")
    Membership.objects.create(knowledge_base=kb, user=viewer, role=Membership.Role.VIEWER)
    other = factories.make_kb(owner, "other")
    _, of_viewer = factories.make_api_key(viewer, kb, scope=ApiKey.Scope.WRITE)
    _, reading = factories.make_api_key(owner, kb, scope=ApiKey.Scope.READ)
    _, elsewhere = factories.make_api_key(owner, other, scope=ApiKey.Scope.WRITE)

    for key, said in (
        ("wrong", "unknown, revoked or expired"),
        (of_viewer, "editor"),
        (reading, ""),
        (elsewhere, "no such object"),
    ):
        status, printed, methods = run(folder, key=key)
        assert (status, methods) == (4, ["POST"]), printed
        assert said in printed
    assert run(folder, kb_id=2**40)[0] == 4
    assert not Source.objects.exists()


def test_wrong_usage_is_said_without_a_request(run, folder, tmp_path):
    for status, _, methods in (run(folder, key=""), run(tmp_path / "nowhere"), run(folder, "--unknown")):
        assert (status, methods) == (2, [])


def test_the_key_is_no_argument_and_not_printed(run, folder):
    _, printed, _ = run(folder, "--key", "secret")
    assert "unrecognized arguments" in printed
    assert "secret" not in run(folder)[1]
