"""A real headless Chromium, and a real served application with its own PostgreSQL, Redis, web server and worker."""

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.serving import READY, SECONDS as SECONDS_TO_START, connection, environment, free_port, start

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# Nothing but the served application is reachable, so that a page which asks for more is caught.
CHROMIUM_SWITCHES = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    # Pages of Chromium's own that every window would load, for an address bar that nobody sees.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
SECONDS = 120
expect.set_options(timeout=SECONDS * 1_000)


@dataclass
class Served:
    """A running `manage.py serve`: its process, its address, and the password that its first start printed."""

    process: subprocess.Popen
    url: str
    password: str

    def child(self, module):
        """The process that runs a module; it leads the group of all that it has started."""
        (found,) = (child for child in psutil.Process(self.process.pid).children() if module in child.cmdline())
        return found

    @contextlib.contextmanager
    def worker_resting(self):
        """Stops the worker meanwhile, so that documents stay pending until the test has seen it."""
        worker = self.child("celery")
        os.killpg(worker.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(worker.pid, signal.SIGCONT)


@dataclass
class Visitor:
    """Someone in front of a browser window of their own; `troubles` are what no page may cause."""

    page: Page
    url: str
    troubles: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.page.set_default_timeout(SECONDS * 1_000)
        self.page.on("pageerror", lambda error: self.troubles.append(f"script: {error}"))
        self.page.on("console", self._note_console)
        self.page.on("request", self._note_request)
        self.page.on("response", self._note_response)

    def _note_console(self, message):
        if message.type in {"error", "warning"} and not message.text.startswith("Failed to load resource"):
            self.troubles.append(f"console: {message.text}")

    def _note_request(self, request):
        if not request.url.startswith((f"{self.url}/", "data:", "blob:")):
            self.troubles.append(f"request to {request.url}")

    def _note_response(self, response):
        if response.status >= 400:
            self.troubles.append(f"{response.status} {urlsplit(response.url).path}")

    def open(self, path):
        return self.page.goto(f"{self.url}/admin/{path}")

    def log_in(self, name, password):
        self.open("")
        self.page.fill("#id_username", name)
        self.page.fill("#id_password", password)
        with self.page.expect_navigation(url=f"{self.url}/admin/"):
            self.page.press("#id_password", "Enter")

    def call(self, method, path, json=None):
        """The API in this visitor's session."""
        cookies = {cookie["name"]: cookie["value"] for cookie in self.page.context.cookies()}
        headers = {"X-CSRFToken": cookies["csrftoken"], "Referer": self.url}
        return self.page.request.fetch(f"{self.url}/api/v1/{path}", method=method, data=json, headers=headers)


@pytest.fixture(scope="module")
def chromium():
    """Once for the module: while it runs, this thread has an event loop, and Django's ORM refuses to work in one."""
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        reason = "NO CHROMIUM IS INSTALLED: THE PAGES WERE NOT TRIED IN A BROWSER (apt-get install chromium)."
        (pytest.fail if os.environ.get("ZHIKU_REQUIRE_BROWSER") == "1" else pytest.skip)(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=CHROMIUM_SWITCHES)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def data_dir(first_start):
    root = Path(tempfile.mkdtemp(prefix="zhiku-browser-"))
    first_start.copy_to(root / "data")
    yield root / "data"
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def variables():
    """Of the server's environment; a module that needs others has a fixture of this name."""
    return {}


@pytest.fixture(scope="module")
def served(chromium, first_start, data_dir, variables):
    """As its user runs it, with what its first start has made; at the end all that it started must have ended.

    Without the MCP server, which no page asks.
    """
    port = free_port()
    process = start(port, environment(data_dir) | variables, "--no-mcp")
    output = _Output(process.stdout)
    try:
        output.until(READY)
        servers = _servers(data_dir)
        assert {server.info["name"] for server in servers} >= {"postgres", "redis-server"}
        started = [*psutil.Process(process.pid).children(recursive=True), *servers]
        yield Served(process, f"http://127.0.0.1:{port}", first_start.password)
    finally:
        process.terminate()
        code = process.wait(SECONDS)
        rest = output.rest()
    assert code == 0, rest
    assert "Zhiku has stopped." in rest
    assert not psutil.wait_procs(started, timeout=SECONDS)[1]
    assert not _servers(data_dir)


@pytest.fixture
def database(served, data_dir):
    """The served application's, for what none of its pages can do."""
    with connection(data_dir) as connected:
        yield connected


def _servers(data_dir):
    """PostgreSQL and Redis, which are children of nobody, by the directory that they work in."""
    running = psutil.process_iter(["cwd", "name"])  # at once, as a session of PostgreSQL may end at any moment
    return [process for process in running if Path(process.info["cwd"] or "/").is_relative_to(data_dir)]


class _Output:
    """Reads what a process prints, so that its pipe never fills."""

    def __init__(self, stream):
        self._stream, self._text, self._grown = stream, "", threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        with self._stream:
            for line in self._stream:
                with self._grown:
                    self._text += line
                    self._grown.notify_all()
        with self._grown:
            self._text += "(end of output)\n"
            self._grown.notify_all()

    def until(self, words):
        with self._grown:
            self._grown.wait_for(lambda: words in self._text or "(end of output)" in self._text, SECONDS_TO_START)
            assert words in self._text, self._text
            return self._text

    def rest(self):
        self._reader.join(SECONDS)
        return self._text


@pytest.fixture
def visit(chromium, served):
    """Makes visitors; none of their pages may have caused trouble that the test did not expect and take off the list."""
    with contextlib.ExitStack() as windows:
        visitors = []

        def visit(*, language="zh-CN", **options):
            context = chromium.new_context(viewport={"width": 1280, "height": 900}, locale=language, **options)
            windows.callback(context.close)
            visitors.append(Visitor(context.new_page(), served.url))
            return visitors[-1]

        yield visit
        assert [visitor.troubles for visitor in visitors] == [[] for _ in visitors]


@pytest.fixture(scope="module")
def admin_session(chromium, served):
    context = chromium.new_context()
    Visitor(context.new_page(), served.url).log_in("admin", served.password)
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def admin(visit, admin_session):
    return visit(storage_state=admin_session)


@pytest.fixture
def make_curator(visit, admin):
    """Makes a member of staff in the admin's user form and logs them in."""

    def make(name):
        password = secrets.token_urlsafe(12)
        page = admin.page
        admin.open("kb/user/add/")
        page.fill("#id_username", name)
        page.fill("#id_password1", password)
        page.fill("#id_password2", password)
        page.check("#id_is_staff")
        with page.expect_navigation(url=re.compile(r"/kb/user/\d+/change/")):
            page.click("[name=_save]")
        curator = visit()
        curator.log_in(name, password)
        return curator

    return make
