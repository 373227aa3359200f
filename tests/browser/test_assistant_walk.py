"""From a knowledge base to a chat that is shared, in a real browser, with a chat model that is a real server on the loopback."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.steps import Clicks, add_texts, make_base, tab_to
from tests.servers import ModelServer, Reply

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser

ANSWER = "住宿费**每晚**不超过四百五十元[1]，凭发票[7]。"
QUESTION = "住宿费报销多少？"
MOST_CLICKS = 5
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def model():
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def variables(model):
    return {"LLM_BASE_URL": model.base_url, "LLM_MODEL": "test", "LLM_API_KEY": "none"}


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
    page.get_by_test_id("confirm").locator("button").click()
    expect(page.get_by_test_id("links")).to_have_count(0)
    expect(page.get_by_test_id("address")).to_have_count(0)
    assert page.evaluate("document.scrollingElement.scrollWidth") == PHONE["width"]
