"""From a knowledge base to a chat that is shared, in a real browser, with a chat model that is a real server on the loopback."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.chat_model import *  # noqa: F403 - its fixtures
from tests.browser.steps import MANUAL, PHONE, Clicks, add_texts, make_base, tab_to, upload, wait_until_ready
from tests.browser.visitors import (
    QUESTION as PUMP_QUESTION,
    answered,
    expected,
    is_narrow,
    is_refused,
    open_citation,
    website,
)
from tests.servers import Reply

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser

ANSWER = "住宿费**每晚**不超过四百五十元[1]，凭发票[7]。"
QUESTION = "住宿费报销多少？"
MOST_CLICKS = 5


@pytest.fixture(autouse=True)
def _model_answers(model):
    model.always("chat", Reply(ANSWER))


@pytest.fixture
def kb_id(admin, database):
    """One of its own for every test."""
    with database.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM kb_knowledgebase")
        (count,) = cursor.fetchone()
    made = make_base(admin, f"制度 {count}")
    add_texts(admin, made, "# 差旅\n\n住宿费每晚不超过四百五十元，凭增值税发票报销。", title="差旅")
    return made


def copied(page):
    return page.evaluate("navigator.clipboard.readText()")


def share(admin, kb_id):
    """From the knowledge base to the copied link; returns it."""
    page = admin.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("link", name=re.compile("Share as a chat|分享为对话")).click()
    with page.expect_navigation(url="**/assistants/*/share/"):
        page.locator("[data-testid=new-assistant] [name=publish]").click()
    page.locator("[data-as-copy]").first.click()
    expect(page.locator("[data-as-said]").first).not_to_be_empty()
    return copied(page)


def test_from_a_knowledge_base_to_a_copied_link_in_few_clicks(admin, kb_id):
    clicks = Clicks(admin)
    admin.open(f"kb/knowledgebase/{kb_id}/documents/")
    link = share(admin, kb_id)
    assert clicks.count <= MOST_CLICKS
    assert re.search(r"/chat/[a-z0-9-]+/\?key=\w+", link)
    assert link == admin.page.get_by_test_id("address").input_value()


def test_from_the_menu_to_a_copied_link_in_few_clicks_without_a_mouse(admin, kb_id):
    page, clicks = admin.page, Clicks(admin)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    admin.open(f"kb/knowledgebase/{kb_id}/documents/")  # the knowledge base that they work with
    for selector, leads_to in {
        "nav a[href$='/assistants/']": "**/assistants/",
        "main a[href*='/assistants/add/']": "**/assistants/add/",
        "[name=publish]": "**/share/",
    }.items():
        tab_to(page, selector)
        with page.expect_navigation(url=leads_to):
            page.keyboard.press("Enter")
    tab_to(page, "[data-as-copy]")
    page.keyboard.press("Enter")
    expect(page.locator("[data-as-said]").first).not_to_be_empty()
    assert clicks.count <= MOST_CLICKS
    assert copied(page) == page.get_by_test_id("address").input_value()


def test_the_preview_answers_under_what_the_form_says(admin, kb_id, model):
    page = admin.page
    admin.open(f"kb/knowledgebase/{kb_id}/documents/")
    share(admin, kb_id)
    page.locator(".as .kb-tabs a").first.click()
    page.fill("#id_opening", "您好，请问有什么可以帮忙？")
    expect(page.locator("[data-as-opening]")).to_have_text("您好，请问有什么可以帮忙？")
    page.fill("#id_suggested_questions", QUESTION)
    page.fill("#id_instructions", "Answer like a pirate.")
    page.locator("[data-as-suggested] button", has_text=QUESTION).click()
    turn = page.get_by_test_id("turn")
    expect(turn.get_by_test_id("answer")).to_contain_text("四百五十元")
    expect(turn.get_by_test_id("answer").locator("strong")).to_have_text("每晚")
    expect(turn.get_by_test_id("answer").locator("sup")).to_have_text("1")
    expect(turn.get_by_test_id("sources")).to_contain_text("pasted.txt")
    assert "pirate" in str(model.requests[-1].body)

    page.fill("#as-question", "哪种发票？")
    page.press("#as-question", "Enter")
    expect(page.get_by_test_id("turn").last.get_by_test_id("answer")).to_contain_text("四百五十元")
    assert QUESTION in str(model.requests[-1].body["messages"])
    page.locator("[data-as-again]").click()
    expect(page.get_by_test_id("turn")).to_have_count(0)


def test_an_answer_that_does_not_come_leaves_a_sentence_and_the_page_can_ask_again(admin, kb_id):
    page = admin.page
    admin.open(f"kb/knowledgebase/{kb_id}/documents/")
    share(admin, kb_id)
    page.goto(page.url.replace("share/", ""))
    page.route("**/preview/", lambda route: route.abort())
    page.fill("#as-question", QUESTION)
    page.press("#as-question", "Enter")
    expect(page.locator(".as-answer .as-error")).to_be_visible()
    page.unroute("**/preview/")
    page.fill("#as-question", QUESTION)
    page.press("#as-question", "Enter")
    expect(page.get_by_test_id("turn").last.get_by_test_id("answer")).to_contain_text("四百五十元")
    admin.troubles.clear()


def test_a_draft_differs_until_it_is_published_and_a_link_is_revoked(admin, kb_id):
    page = admin.page
    page.set_viewport_size(PHONE)
    admin.open(f"kb/knowledgebase/{kb_id}/documents/")
    share(admin, kb_id)
    url = page.url.replace("share/", "")
    page.goto(url)
    page.fill("#id_opening", "您好")
    page.locator("#settings [name=draft]").click()
    expect(page.get_by_test_id("draft-differs")).to_contain_text("您好")
    page.get_by_test_id("assistant-head").locator("form button").click()
    expect(page.get_by_test_id("draft-differs")).to_have_count(0)
    page.goto(f"{url}share/")
    page.locator("a[href*='revoke=']").click()
    with page.expect_navigation():
        page.get_by_test_id("confirm").locator("button").click()
    expect(page.get_by_test_id("links")).to_have_count(0)
    expect(page.get_by_test_id("address")).to_have_count(0)
    assert page.evaluate("document.scrollingElement.scrollWidth") == PHONE["width"]


def embedding(served, address):
    """A page of a website with the line of an assistant."""
    body = f'<!doctype html><html lang=en><title>Shop</title><script src="{address}embed.js" async></script></html>'
    return body.encode(), f"default-src 'none'; script-src {served.url}; frame-src {served.url}"


def read_on_a_phone(visitor, link):
    page = visitor.page
    page.set_viewport_size(PHONE)
    page.goto(link)
    open_citation(answered(page))
    assert is_narrow(page)


def let_a_link_end(curator, friend, database):
    """Makes a link of one day, whose day is over once it was used."""
    form = "[data-testid=new-link]"
    curator.fill(f"{form} [name=name]", "朋友")
    curator.select_option(f"{form} [name=expiry]", "1")
    save(curator, form)
    link = curator.get_by_test_id("links").locator("tr", has_text="朋友").locator("[data-as-copy]")
    friend.page.goto(link.get_attribute("data-as-copy"))
    expect(friend.page.locator("#composer")).to_be_visible()
    database.execute("UPDATE kb_sharelink SET expires_at = now() WHERE expires_at IS NOT NULL")
    friend.page.reload()
    expect(friend.page.locator("#entry h2")).to_contain_text("link")
    expect(friend.page.locator("#composer")).to_be_hidden()
    expected(friend, "403 ")


def allow(curator, origin, password):
    """Opens it to everybody who has the password, on a website too."""
    access, embed = "[data-testid=access]", "[data-testid=embed] form"
    curator.check(f"{access} [name=access][value=public]")
    curator.fill(f"{access} [name=password]", password)
    save(curator, access)
    curator.fill(f"{embed} [name=origins]", origin)
    save(curator, embed)


def save(page, form):
    with page.expect_navigation(url="**/share/"):
        page.locator(f"{form} [type=submit]").click()


def give_password(page, password):
    page.locator("#password").fill(password)
    page.locator("#password").press("Enter")


def ask_in_the_frame(reader, site, password):
    reader.page.goto(site)
    reader.page.get_by_role("button", name="Open the chat").click()
    frame = reader.page.frame_locator("iframe")
    give_password(frame, "wrong")
    expect(frame.locator("#entry h2")).to_contain_text("not the password")
    expect(frame.locator("#composer")).to_be_hidden()
    give_password(frame, password)
    expect(frame.locator("#composer")).to_be_visible()
    frame.locator("#question").fill(PUMP_QUESTION)
    frame.locator("#question").press("Enter")
    expect(frame.locator(".text")).to_contain_text("每周一")
    expected(reader, f"request to {site}", "404 /favicon.ico", "403 ")


def test_what_a_curator_shares_opens_for_those_it_is_meant_for_and_nobody_else(admin, visit, database, served, model):
    model.always("chat", Reply("油位每周一检查[1]。"))
    kb_id = make_base(admin, "水泵")
    upload(admin, kb_id, {"name": "manual.pdf", "mimeType": "application/pdf", "buffer": MANUAL})
    wait_until_ready(admin.page, 1)
    clicks = Clicks(admin)
    admin.open(f"kb/knowledgebase/{kb_id}/documents/")
    link = share(admin, kb_id)
    assert clicks.count <= MOST_CLICKS

    visitor = visit(is_mobile=True, has_touch=True)
    read_on_a_phone(visitor, link)
    let_a_link_end(admin.page, visit(language="en"), database)
    visitor.page.reload()
    expect(visitor.page.get_by_test_id("turn")).to_be_visible()  # its link goes on

    embedded = lambda _query: embedding(served, link.partition("?")[0])  # noqa: E731
    with website(embedded) as named, website(embedded) as third:
        allow(admin.page, named, "correct horse")
        ask_in_the_frame(visit(language="en"), named, "correct horse")
        is_refused(visit(language="en"), third)
