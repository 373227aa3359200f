"""Visitors of chats, which `tests.browser.chats` has made: their fixtures, and what they do on the page."""

import contextlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import ROOT, Visitor
from tests.browser.steps import MANUAL, PHONE, PUMPS, make_base, upload, wait_until_ready
from tests.serving import environment

QUESTION = "水泵的油位多久检查一次？"
ANSWER = "油位**每周一**检查，低于刻度线时补充润滑油[1]。"
PIECES = [ANSWER[at : at + 4] for at in range(0, len(ANSWER), 4)]


@contextlib.contextmanager
def website(page):
    """A website of another origin, whose strict policy allows the chat's server a script and a frame and nothing else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path, _mark, query = self.path.partition("?")
            body, policy = page(query) if path == "/" else (b"", "")
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Security-Policy", policy)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def websites(served):
    """The one that the assistant names, and a third."""

    def page(query):
        policy = f"default-src 'none'; script-src {served.url}; frame-src {served.url}"
        attributes = 'data-greeting="Questions?" data-context="page" data-language="en"'
        script = f'<script src="{served.url}/chat/embedded/embed.js?{query}" {attributes} async></script>'
        body = f"<!doctype html><html lang=en><title>Pumps & more</title><body><h1>Shop</h1>{script}</body></html>"
        return body.encode(), policy

    with website(page) as named, website(page) as third:
        yield named, third


@pytest.fixture(scope="module")
def keys(chromium, served, admin_session, data_dir, websites):
    """Of the links, by the addresses of their chats of a manual."""
    context = chromium.new_context(storage_state=admin_session, locale="zh-CN")
    admin = Visitor(context.new_page(), served.url)
    kb_id = make_base(admin, "水泵")
    upload(admin, kb_id, {"name": "manual.pdf", "mimeType": "application/pdf", "buffer": MANUAL})
    wait_until_ready(admin.page, 1)
    context.close()
    command = [sys.executable, "-m", "tests.browser.chats", kb_id, websites[0]]
    done = subprocess.run(command, cwd=ROOT, env=environment(data_dir), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def key(keys):
    return keys["by-link"]


@pytest.fixture
def phone(visit, key):
    """A visitor without an account, with the link."""

    def made(*, at="", **options):
        visitor = visit(is_mobile=True, has_touch=True, **options)
        visitor.url = at or visitor.url
        visitor.page.set_viewport_size(PHONE)
        visitor.page.goto(f"{visitor.url}/chat/by-link/?key={key}")
        expect(visitor.page.locator("#composer")).to_be_visible()
        return visitor

    return made


def ask(page, words=QUESTION):
    page.fill("#question", words)
    page.press("#question", "Enter")
    turn = page.get_by_test_id("turn").last
    expect(turn.locator("h2")).to_contain_text(words)
    return turn


def answered(page, words=QUESTION):
    turn = ask(page, words)
    expect(turn.locator(".acts")).to_be_visible()
    return turn


def messages(database):
    """Role and status of each message that the newest visitor sees."""
    database.autocommit = True
    with database.cursor() as cursor:
        cursor.execute(
            "SELECT m.role, m.status FROM kb_message m JOIN kb_conversation c ON c.id = m.conversation_id"
            " WHERE c.visitor_id = (SELECT visitor_id FROM kb_conversation WHERE visitor_id IS NOT NULL"
            " ORDER BY updated_at DESC LIMIT 1) AND NOT m.is_replaced ORDER BY m.id"
        )
        return cursor.fetchall()


def is_narrow(page):
    return page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


def expected(visitor, *beginnings):
    """Takes off the list what a page of another website has to ask for."""
    visitor.troubles[:] = [each for each in visitor.troubles if not each.startswith(beginnings)]


def open_citation(turn):
    """Opens the first citation of an answer from the manual at its page, and then as text; returns the sheet."""
    turn.locator(".cite button").first.click()
    sheet = turn.page.locator("#passage")
    expect(sheet.get_by_test_id("page-image")).to_be_visible()
    expect(sheet.locator(".place").last).to_be_in_viewport()
    sheet.locator(".choice button").last.click()
    expect(sheet.locator("mark")).to_contain_text(PUMPS)
    return sheet


BROWSER_S_ERROR = "chrome-error://chromewebdata/"  # the page that it shows in place of one that may not be framed


def is_refused(stranger, site):
    """A website that the assistant does not name shows an empty frame."""
    page = stranger.page
    page.goto(site)
    with (
        page.expect_console_message(lambda message: "frame-ancestors" in message.text),
        page.expect_event("framenavigated", lambda frame: frame.url == BROWSER_S_ERROR),
    ):
        page.get_by_role("button", name="Open the chat").click()
    assert [frame.url for frame in page.frames[1:]] == [BROWSER_S_ERROR]
    expected(stranger, f"request to {site}", "404 /favicon.ico", "console: ")
