"""A real headless Chromium, and a real served application with its own PostgreSQL, Redis, web server and worker."""

import contextlib
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.chromium import opened
from tests.browser.installation import SECONDS, Installation
from tests.servers import ModelServer
from tests.serving import connection

ROOT = Path(__file__).resolve().parents[2]
expect.set_options(timeout=SECONDS * 1_000)


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
    return opened()


@pytest.fixture(scope="session")
def variables():
    """Of the server's environment; a module that needs others has a fixture of this name."""
    return {}


@pytest.fixture(scope="session")
def running_model():
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="session")
def _installations(first_start):
    """Those that modules share, by their variables."""
    shared = {}
    with contextlib.ExitStack() as running:

        def with_variables(variables):
            key = tuple(sorted(variables.items()))
            if key not in shared:
                shared[key] = running.enter_context(Installation(first_start, variables))
            return shared[key]

        yield with_variables


@pytest.fixture(scope="module")
def installation(request, chromium, first_start, variables, _installations):
    """A module with `OWN_SERVER = True` may end processes of its installation, which no other module has then used."""
    if getattr(request.module, "OWN_SERVER", False):
        with Installation(first_start, variables) as own:
            yield own
    else:
        shared = _installations(variables)
        shared.renew()
        yield shared


@pytest.fixture(scope="module")
def data_dir(installation):
    return installation.data_dir


@pytest.fixture(scope="module")
def served(installation):
    return installation.served


@pytest.fixture
def database(installation):
    """The served application's, for what none of its pages can do."""
    with connection(installation.data_dir) as connected:
        yield connected


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
