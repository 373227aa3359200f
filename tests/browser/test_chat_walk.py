"""Visitors of chats in a real browser: on a phone by link, with a password, in the frame of another website."""

from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.accessibility import OPTIONS
from tests.browser.chat_model import *  # noqa: F403 - its fixtures
from tests.browser.visitors import *  # noqa: F403 - its fixtures
from tests.browser.visitors import (
    ANSWER,
    PIECES,
    QUESTION,
    answered,
    ask,
    expected,
    is_narrow,
    is_refused,
    messages,
    open_citation,
)
from tests.servers import Reply

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def _model_answers(model):
    model.released.clear()
    model.always("chat", Reply(PIECES))


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
    sheet = open_citation(turn)
    page.keyboard.press("Escape")
    expect(sheet).to_be_hidden()
    expect(turn.locator(".cite button")).to_be_focused()
    assert is_narrow(page)


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
    expect(turn.locator(".acts")).to_be_visible()
    expect(page.get_by_test_id("turn")).to_have_count(1)
    assert messages(database) == [("user", "done"), ("assistant", "done")]


def test_a_connection_that_is_lost_is_said_and_the_answer_goes_on(phone, model, database):
    page = phone().page
    page.route("**/ask/", lambda route: route.abort("connectionreset"), times=1)
    turn = ask(page)
    expect(page.locator("#network")).to_be_visible()
    expect(turn.locator(".text")).to_contain_text("润滑油")
    expect(page.locator("#network")).to_be_hidden()
    expect(turn.locator(".acts")).to_be_visible()
    assert messages(database) == [("user", "done"), ("assistant", "done")]


def test_an_answer_is_stopped_and_asked_for_again(phone, model):
    page = phone().page
    model.once("chat", Reply(PIECES * 200, pause_s=0.3))
    turn = ask(page)
    expect(turn.locator(".text")).to_contain_text("每周一")
    page.click("#stop")
    expect(turn.get_by_test_id("note-stopped")).to_be_visible()
    turn.get_by_test_id("note-stopped").locator("button").click()
    expect(page.get_by_test_id("turn").locator(".text strong")).to_have_text("每周一")
    expect(page.get_by_test_id("turn").locator(".acts")).to_be_visible()
    expect(page.get_by_test_id("turn")).to_have_count(1)


def test_an_answer_is_stopped_while_its_model_says_nothing(phone, model):
    page = phone().page
    model.once("chat", Reply(PIECES, hang=True))
    turn = ask(page)
    expect(turn.locator(".waiting")).to_have_text("正在生成回答…")
    page.click("#stop")
    expect(turn.get_by_test_id("note-stopped")).to_be_visible()
    turn.get_by_test_id("note-stopped").locator("button").click()  # the model is still silent on the first
    expect(page.get_by_test_id("turn").locator(".text strong")).to_have_text("每周一")
    model.release()


def test_where_no_model_answers_a_reader_is_told_so_in_the_language_of_the_page(phone, model):
    page = phone(language="en").page
    model.once("chat", Reply(status=401))
    turn = ask(page)
    expect(turn.get_by_test_id("note-unwritten")).to_contain_text("could not be written")
    expect(page.locator("#status")).to_have_text("The answer could not be written: the chat model did not answer.")
    expect(turn.locator(".text")).to_be_empty()
    expect(turn.locator(".sources h3")).to_have_text("Passages found")


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


def test_a_thumb_down_becomes_a_query_of_an_evaluation_set(phone, admin):
    """From what a visitor presses to what a curator judges."""
    turn = answered(phone().page)
    turn.locator("[data-act=bad]").click()
    turn.locator(".chip").first.click()
    turn.locator(".why textarea").fill("周二")
    turn.locator(".why .primary").click()
    expect(turn.locator(".why")).to_have_count(0)

    page = admin.page
    admin.open("kb/failedquery/")
    row = page.locator("#result_list tbody tr", has_text=QUESTION)
    expect(row).to_contain_text(["水泵助手"])
    expect(row.locator(".fq-badge.disliked")).to_be_visible()
    with page.expect_navigation():
        row.locator("button[form=to-set]").click()
    expect(page.locator("#result_list tbody tr", has_text=QUESTION)).to_have_count(1)  # until it is resolved

    admin.open("kb/evalset/")
    page.locator("#result_list tbody th a").click()
    expect(page.get_by_test_id("queries")).to_have_text("1")
    expect(page.get_by_test_id("judged")).to_contain_text("0")  # what did not help may still hold the answer
    page.locator(".es-query a", has_text=QUESTION).click()
    expect(page.locator("[name=answerable]")).to_be_checked()
    expect(page.get_by_test_id("judgments").get_by_test_id("nothing")).to_be_visible()
    page.locator("a[href*='/judge/']").click()
    button = page.locator("[data-jd-chunk] button[data-grade='2']").first
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    admin.open("kb/evalset/")
    page.locator("#result_list tbody th a").click()
    expect(page.get_by_test_id("judged")).to_contain_text("1")

    admin.open("assistants/")
    page.get_by_role("link", name="水泵助手").first.click()
    page.locator(".kb-tabs a[href$='/conversations/']").click()
    page.get_by_test_id("visits").locator("th a", has_text=QUESTION).first.click()
    expect(page.get_by_test_id("visit")).to_contain_text("; 周二")


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
    page.context.set_offline(True)
    page.locator(".list li [data-act=delete]").click()
    page.click("#confirm-yes")
    expect(page.locator("#trouble")).not_to_be_empty()
    expect(page.get_by_test_id("turn")).to_have_count(1)
    expect(rows).to_be_focused()
    page.context.set_offline(False)
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


@contextmanager
def manual_from(database, source):
    """The manual's source, for a while."""
    database.autocommit = True
    database.execute("UPDATE kb_document SET source = %s WHERE source = 'manual.pdf'", [source])
    try:
        yield
    finally:
        database.execute("UPDATE kb_document SET source = 'manual.pdf' WHERE source = %s", [source])


def test_a_source_on_the_web_opens_in_a_window_of_its_own(phone, database):
    page = phone().page
    with manual_from(database, "https://example.org/manual"):
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


def test_a_source_whose_address_no_browser_takes_opens_without_a_link(phone, database):
    page = phone().page
    with manual_from(database, "http://999.999.999.999/manual"):
        turn = answered(page)
        turn.locator(".cite button").click()
        expect(page.locator("#passage").get_by_test_id("page-image")).to_be_visible()
        expect(page.locator("#passage").get_by_role("link")).to_have_count(0)


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


def test_a_link_that_is_made_up_takes_the_chat_from_nobody(phone, visit):
    page = phone().page
    chat = page.url
    for key in ("x" * 300, "revoked"):
        page.goto(f"{chat}?key={key}")
        expect(page.locator("#composer")).to_be_visible()
    page.evaluate("localStorage.removeItem('zhiku-chat:by-link:visit')")
    page.reload()
    expect(page.locator("#composer")).to_be_visible()

    stranger = visit(language="en")
    stranger.page.goto(f"{chat}?key=revoked")
    expect(stranger.page.locator("#entry h2")).to_contain_text("not valid any more")
    stranger.page.reload()
    expect(stranger.page.locator("#entry h2")).to_contain_text("opens with a link")
    assert set(stranger.troubles) == {"403 /chat/by-link/enter/"}
    stranger.troubles.clear()


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
    expected(visitor, f"request to {websites[0]}", "404 /favicon.ico")


def test_a_third_website_is_refused(visit, key, websites):
    is_refused(visit(language="en"), websites[1])


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
    expect(turn.locator(".why")).to_be_visible()
    check("answer")
    turn.locator(".cite button").click()
    expect(page.locator("#passage").get_by_test_id("page-image")).to_be_visible()
    check("passage")
    page.keyboard.press("Escape")
    page.click("#open-list")
    check("conversations")
