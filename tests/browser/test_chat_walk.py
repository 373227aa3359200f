"""Visitors of chats in a real browser: on a phone by link, with a password, in the frame of another website."""

import contextlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.accessibility import OPTIONS
from tests.browser.conftest import ROOT, Visitor
from tests.browser.steps import make_base, upload, wait_until_ready
from tests.browser.test_ask_walk import MANUAL, PHONE, PUMPS
from tests.servers import ModelServer, Reply
from tests.serving import environment

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser

QUESTION = "水泵的油位多久检查一次？"
ANSWER = "油位**每周一**检查，低于刻度线时补充润滑油[1]。"
PIECES = [ANSWER[at : at + 4] for at in range(0, len(ANSWER), 4)]


@pytest.fixture(scope="module")
def model():
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def variables(model):
    return {"LLM_BASE_URL": model.base_url, "LLM_MODEL": "test", "LLM_API_KEY": "none"}


@pytest.fixture(autouse=True)
def _model_answers(model):
    model.released.clear()
    model.always("chat", Reply(PIECES))


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

    def made(**options):
        visitor = visit(is_mobile=True, has_touch=True, **options)
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


def is_narrow(page):
    return page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


def test_a_visitor_by_link_asks_reads_as_it_is_written_and_opens_the_page(phone, model):
    visitor = phone()
    page = visitor.page
    assert "key=" not in page.url
    assert is_narrow(page)
    model.once("chat", Reply(PIECES, hang_after=3))
    page.locator(".suggestion").click()
    turn = page.get_by_test_id("turn")
    expect(turn.locator(".text")).to_contain_text("每周一")
    expect(turn.locator(".answer")).to_have_attribute("aria-busy", "true")
    model.release()
    expect(turn.locator(".acts")).to_be_visible()
    expect(turn.locator(".text strong")).to_have_text("每周一")
    turn.locator(".cite button").click()
    sheet = page.locator("#passage")
    expect(sheet.get_by_test_id("page-image")).to_be_visible()
    expect(sheet.locator(".place").last).to_be_in_viewport()
    sheet.locator(".choice button").last.click()
    expect(sheet.locator("mark")).to_contain_text(PUMPS)
    page.keyboard.press("Escape")
    expect(sheet).to_be_hidden()
    expect(turn.locator(".cite button")).to_be_focused()
    assert is_narrow(page)


def messages(database):
    database.autocommit = True
    with database.cursor() as cursor:
        cursor.execute(
            "SELECT m.role, m.status FROM kb_message m JOIN kb_conversation c ON c.id = m.conversation_id"
            " WHERE c.visitor_id = (SELECT visitor_id FROM kb_conversation WHERE visitor_id IS NOT NULL"
            " ORDER BY updated_at DESC LIMIT 1) AND NOT m.is_replaced ORDER BY m.id"
        )
        return cursor.fetchall()


def test_a_reload_in_the_middle_takes_the_answer_up_again(phone, model, database):
    page = phone().page
    model.once("chat", Reply(PIECES, hang_after=3))
    turn = ask(page)
    expect(turn.locator(".text")).to_contain_text("每周一")
    page.reload()
    turn = page.get_by_test_id("turn")
    expect(turn.locator("h2")).to_contain_text(QUESTION)
    expect(turn.locator(".answer")).to_have_attribute("aria-busy", "true")
    model.release()
    expect(turn.locator(".text")).to_contain_text("润滑油")
    expect(page.get_by_test_id("turn")).to_have_count(1)
    assert messages(database) == [("user", "done"), ("assistant", "done")]


def test_a_connection_that_is_lost_is_said_and_the_answer_goes_on(phone, model, database):
    page = phone().page
    page.route("**/ask/", lambda route: route.abort("connectionreset"), times=1)
    turn = ask(page)
    expect(page.locator("#network")).to_be_visible()
    expect(turn.locator(".text")).to_contain_text("润滑油")
    expect(page.locator("#network")).to_be_hidden()
    assert messages(database) == [("user", "done"), ("assistant", "done")]


def test_an_answer_is_stopped_and_asked_for_again(phone, model):
    page = phone().page
    model.once("chat", Reply(PIECES * 20, pause_s=0.3))
    turn = ask(page)
    expect(turn.locator(".text")).to_contain_text("每周一")
    page.click("#stop")
    expect(turn.get_by_test_id("note-stopped")).to_be_visible()
    turn.get_by_test_id("note-stopped").locator("button").click()
    expect(page.get_by_test_id("turn").locator(".text strong")).to_have_text("每周一")
    expect(page.get_by_test_id("turn").locator(".acts")).to_be_visible()
    expect(page.get_by_test_id("turn")).to_have_count(1)


def test_the_last_question_is_edited_in_its_place(phone, database):
    page = phone().page
    turn = answered(page)
    turn.locator("[data-act=edit]").click()
    turn.locator(".editing textarea").fill("油位低了怎么办？")
    turn.locator(".editing textarea").press("Enter")
    turn = page.get_by_test_id("turn").last
    expect(turn.locator("h2")).to_contain_text("油位低了怎么办？")
    expect(turn.locator(".acts")).to_be_visible()
    expect(page.get_by_test_id("turn")).to_have_count(1)
    assert messages(database) == [("user", "done"), ("assistant", "done")]


def test_a_thumb_down_is_kept_with_its_reason(phone, database):
    page = phone().page
    turn = answered(page)
    turn.locator("[data-act=bad]").click()
    turn.locator(".chip").first.click()
    turn.locator(".why textarea").fill("周二")
    turn.locator(".why .primary").click()
    expect(turn.locator(".why")).to_have_count(0)
    database.autocommit = True
    with database.cursor() as cursor:
        cursor.execute("SELECT feedback_text FROM kb_message WHERE feedback = -1")
        assert [text.endswith("; 周二") for (text,) in cursor.fetchall()] == [True]


def test_conversations_are_kept_by_the_browser_and_renamed_and_deleted(phone):
    page = phone().page
    answered(page)
    page.click("#new")
    expect(page.get_by_test_id("turn")).to_have_count(0)
    page.click("#open-list")
    rows = page.locator("[data-conversation]")
    expect(rows).to_have_text([QUESTION])
    page.locator(".list li [data-act=edit]").click()
    page.fill("#confirm-input", "油位")
    page.press("#confirm-input", "Enter")
    expect(rows).to_have_text(["油位"])
    rows.click()
    expect(page.get_by_test_id("turn").locator(".text")).to_contain_text("润滑油")
    page.click("#open-list")
    page.locator(".list li [data-act=delete]").click()
    page.click("#confirm-yes")
    expect(rows).to_have_count(0)
    expect(page.get_by_test_id("turn")).to_have_count(0)


def test_a_conversation_is_saved_as_markdown(phone):
    page = phone().page
    answered(page)
    page.click("#open-list")
    with page.expect_download() as saved:
        page.click("#export")
    text = saved.value.path().read_text()
    assert f"## {QUESTION}" in text
    assert ANSWER in text
    assert "manual.pdf" in text


def test_the_head_of_the_page_stays_in_sight_in_a_long_conversation(phone):
    page = phone().page
    for number in range(4):
        answered(page, f"{QUESTION} {number}")
    expect(page.locator(".bar")).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.scrollingElement.scrollTop") == 0


def test_a_model_that_was_made_to_can_have_the_page_load_nothing(phone, model):
    """What would be loaded, or stopped by the policy, is a trouble that `visit` refuses."""
    page = phone().page
    away = "https://evil.example/x.png"
    model.once(
        "chat",
        Reply(
            f"![x]({away}) ![y][z] <img src={away}> <script src={away}></script> <https://evil.example> {away} "
            f"[here](javascript:alert(1)) <iframe src={away}></iframe> | [1]\n\n[z]: {away}\n\n<svg onload=alert(1)>"
        ),
    )
    turn = answered(page, "</question> <img src=https://evil.example/q.png> ![x](https://evil.example/q.png) 油位")
    expect(turn.locator(".text")).to_contain_text("evil.example")
    assert page.locator("#turns :is(img, script, iframe, object, embed, link, style)").count() == 0
    addresses = [link.get_attribute("href") for link in turn.locator(".text a").all()]
    assert {address.partition(":")[0] for address in addresses} <= {"https"}
    page.reload()
    expect(page.get_by_test_id("turn").locator(".text")).to_contain_text("evil.example")


def colours(page):
    return page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.documentElement).colorScheme]"
    )


def test_the_appearance_is_chosen_without_a_mouse_and_kept_by_the_browser(phone):
    page = phone(language="en", color_scheme="light").page
    light = colours(page)
    page.click("#open-list")
    appearance = page.get_by_role("group", name="Appearance")
    expect(appearance.get_by_role("radio", name="Auto")).to_be_checked()
    appearance.get_by_role("radio", name="Auto").focus()
    page.keyboard.press("ArrowLeft")
    expect(appearance.get_by_role("radio", name="Dark")).to_be_checked()
    dark = colours(page)
    assert (light[1], dark[1]) == ("light dark", "dark")
    assert dark[0] != light[0]
    page.reload()
    expect(page.locator("#composer")).to_be_visible()
    assert colours(page) == dark
    other = page.context.new_page()
    other.goto(page.url.replace("by-link", "by-password"))
    assert colours(other) == dark
    other.close()
    assert page.context.cookies() == []
    page.click("#open-list")
    appearance.get_by_role("radio", name="Auto").check()
    page.reload()
    assert colours(page) == light


def test_an_address_in_a_chinese_text_ends_where_the_text_goes_on(phone, model):
    page = phone().page
    model.always("chat", Reply("详见（https://example.org/a_(b)?c=1）。另见https://example.org，每周一检查[1]。"))
    turn = answered(page)
    links = turn.locator(".text a")
    expect(links).to_have_count(2)
    hrefs = [link.get_attribute("href") for link in links.all()]
    assert hrefs == ["https://example.org/a_(b)?c=1", "https://example.org/"]
    expect(turn.locator(".cite button")).to_have_count(1)


def test_a_source_on_the_web_opens_in_a_window_of_its_own(phone, database):
    page = phone().page
    database.autocommit = True
    with database.cursor() as cursor:
        cursor.execute("UPDATE kb_document SET source = 'https://example.org/manual' WHERE source = 'manual.pdf'")
    try:
        turn = answered(page)
        turn.locator(".cite button").click()
        sheet = page.locator("#passage")
        expect(sheet.get_by_test_id("page-image")).to_be_visible()
        link = sheet.get_by_role("link")
        expect(link).to_contain_text("example.org")
        expect(link).to_have_attribute("href", "https://example.org/manual")
        expect(link).to_have_attribute("target", "_blank")
        expect(link).to_have_attribute("rel", "noopener nofollow ugc")
        expect(turn.get_by_role("link")).to_have_count(0)
    finally:
        with database.cursor() as cursor:
            cursor.execute("UPDATE kb_document SET source = 'manual.pdf' WHERE source = 'https://example.org/manual'")


def test_a_password_holds(visit, key):
    visitor = visit(language="en")
    page = visitor.page
    page.goto(f"{visitor.url}/chat/by-password/")
    page.fill("#password", "wrong")
    page.press("#password", "Enter")
    expect(page.locator("#entry h2")).to_contain_text("not the password")
    expect(page.locator("#composer")).to_be_hidden()
    page.fill("#password", "correct horse")
    page.press("#password", "Enter")
    expect(page.locator("#composer")).to_be_visible()
    page.reload()
    expect(page.locator("#composer")).to_be_visible()
    assert set(visitor.troubles) == {"403 /chat/by-password/enter/"}
    visitor.troubles.clear()


def test_who_came_by_a_link_is_asked_for_a_new_password_and_for_no_link(phone, database):
    visitor = phone(language="en")
    page = visitor.page
    database.autocommit = True
    with database.cursor() as cursor:
        cursor.execute(
            "UPDATE kb_assistant SET password = (SELECT password FROM kb_assistant WHERE slug = 'by-password')"
        )
    try:
        page.fill("#question", QUESTION)
        page.press("#question", "Enter")
        expect(page.locator("#password")).to_be_visible()
        page.reload()
        page.fill("#password", "correct horse")
        page.press("#password", "Enter")
        expect(page.locator("#composer")).to_be_visible()
        assert page.input_value("#question") == QUESTION
    finally:
        with database.cursor() as cursor:
            cursor.execute("UPDATE kb_assistant SET password = '' WHERE slug <> 'by-password'")
    assert {trouble.split()[0] for trouble in visitor.troubles} == {"403"}
    visitor.troubles.clear()


def test_an_expiry_holds_in_the_middle_and_keeps_the_question(phone, database):
    visitor = phone(language="en")
    page = visitor.page
    answered(page)
    database.autocommit = True
    with database.cursor() as cursor:
        cursor.execute("UPDATE kb_sharelink SET expires_at = now() - interval '1 second'")
    try:
        page.fill("#question", "And now?")
        page.press("#question", "Enter")
        expect(page.locator("#entry h2")).to_contain_text("link")
        expect(page.locator("#composer")).to_be_hidden()
        assert page.input_value("#question") == "And now?"
    finally:
        with database.cursor() as cursor:
            cursor.execute("UPDATE kb_sharelink SET expires_at = NULL")
    assert {trouble.split()[0] for trouble in visitor.troubles} == {"403"}
    visitor.troubles.clear()


def leave_out(visitor, *beginnings):
    """Takes off the list what a page of another website has to ask for."""
    visitor.troubles[:] = [each for each in visitor.troubles if not each.startswith(beginnings)]


def test_the_website_that_is_named_embeds_it_under_a_strict_policy(visit, keys, websites, model):
    visitor = visit(language="en")
    page = visitor.page
    page.goto(f"{websites[0]}/?key={keys['embedded']}")
    button = page.get_by_role("button", name="Open the chat")
    page.get_by_role("button", name="Questions?").click()
    frame = page.frame_locator("iframe")
    expect(frame.locator("#question")).to_be_focused()
    frame.locator("#question").fill(QUESTION)
    frame.locator("#question").press("Enter")
    expect(frame.locator(".acts")).to_be_visible()
    expect(frame.locator(".text")).to_contain_text("润滑油")
    asked = str(model.requests[-1].body)
    assert "Pumps & more" in asked
    assert websites[0] in asked
    frame.locator("#question").press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(button).to_be_focused()
    button.click()
    expect(frame.locator(".text")).to_contain_text("润滑油")
    assert page.context.cookies() == []
    leave_out(visitor, f"request to {websites[0]}", "404 /favicon.ico")


def test_a_third_website_is_refused(visit, key, websites):
    visitor = visit(language="en")
    page = visitor.page
    page.goto(websites[1])
    page.get_by_role("button", name="Open the chat").click()
    expect(page.locator("iframe")).to_be_visible()
    page.wait_for_function("() => true")
    assert [frame.url for frame in page.frames[1:]] == ["chrome-error://chromewebdata/"]
    assert any("frame-ancestors" in trouble for trouble in visitor.troubles)
    leave_out(visitor, f"request to {websites[1]}", "404 /favicon.ico", "console: ")


def test_a_chat_for_members_says_that_it_cannot_be_embedded(visit, key, served):
    visitor = visit(language="en")
    page = visitor.page
    page.goto(f"{served.url}/chat/members/frame/")
    expect(page.locator("#entry h2")).to_contain_text("cannot be used inside another website")
    expect(page.locator("#entry a")).to_have_attribute("href", "/chat/members/")


@pytest.mark.parametrize("language", ["zh-CN", "en"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(phone, language, scheme):
    visitor = phone(language=language, color_scheme=scheme, reduced_motion="reduce")
    page, axe = visitor.page, Axe()

    def check(place):
        found = axe.run(page, options=OPTIONS).response["violations"]
        assert [f"{each['id']}: {node['html'][:160]}" for each in found for node in each["nodes"]] == [], place

    check("welcome")
    turn = answered(page)
    turn.locator("[data-act=bad]").click()
    check("answer")
    turn.locator(".cite button").click()
    expect(page.locator("#passage").get_by_test_id("page-image")).to_be_visible()
    check("passage")
    page.keyboard.press("Escape")
    page.click("#open-list")
    check("conversations")
