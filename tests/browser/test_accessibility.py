"""Every page once but those that look alike, in settings that pair language, theme, width and state of the data with each
other; and without a mouse."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.accessibility import ALIKE, ALL, CHECKS, OPENED, PAGES, PARTS, SETTLED, Walker, furnish, pairwise
from tests.browser.steps import tab_to
from tests.kb.admin.pages import ALL_PAGES

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser

SETTINGS = pairwise()
SHOWN = [name for name in PAGES if name not in ALIKE]
SHARES = [SHOWN[share :: len(SETTINGS)] for share in range(len(SETTINGS))]
MOST_STOPS = 250
FEWEST_STOPS = 8


@pytest.fixture(scope="module")
def walker(chromium, served, data_dir, admin_session):
    return Walker(chromium, served.url, furnish(data_dir), admin_session)


@pytest.fixture
def opened(walker):
    """Opens pages; their windows close after the test."""
    pages = []

    def open_page(name, **settings):
        pages.append(walker.open(name, **settings))
        return pages[-1]

    yield open_page
    for page in pages:
        page.context.close()


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


@pytest.mark.parametrize("share", range(len(SETTINGS)), ids=lambda share: str(vars(SETTINGS[share]).values()))
def test_nothing_is_inaccessible_too_wide_too_small_or_only_for_a_mouse(walker, share):
    found = {name: wrong for name, wrong in walker.walk(SETTINGS[share], SHARES[share]) if wrong}

    assert found == {}


def test_the_settings_hold_every_pair():
    assert len(SETTINGS) < len(ALL) / 2
    fields = list(vars(ALL[0]))
    for one in fields:
        for other in fields:
            pairs = {(getattr(each, one), getattr(each, other)) for each in SETTINGS}
            assert pairs == {(getattr(each, one), getattr(each, other)) for each in ALL}


def test_what_is_opened_and_what_is_fetched_belong_to_pages_of_the_list():
    assert ALL_PAGES.keys() >= PARTS
    assert {page for page, _act in OPENED.values()} <= ALL_PAGES.keys() - PARTS


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize(
    "name",
    [
        "index",
        "documents of a knowledge base",
        "document",
        "search debug",
        "conversation",
        "knowledge base",
        "new model",
    ],
)
def test_tab_goes_round_a_page_in_order_and_the_focus_is_always_in_sight(opened, name, width):
    page = opened(name, viewport={"width": width, "height": 900})
    page.evaluate(CHECKS)
    page.evaluate("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")
    wrong, stops = [], 0

    while stops < MOST_STOPS:
        press(page, "Tab")
        if (problem := page.evaluate("pageChecks.nextStop()")) is None:
            break
        stops += 1
        wrong += [problem] if problem else []
    else:
        wrong.append("the focus does not come round")

    assert wrong == []
    assert stops >= FEWEST_STOPS


def test_filters_of_a_list_open_take_the_focus_and_give_it_back(opened):
    page = opened("documents")

    tab_to(page, "#filters-button")
    press(page, "Enter")
    expect(page.get_by_role("dialog", name="Filters")).to_be_focused()
    press(page, "Tab")
    expect(page.get_by_role("button", name="Close the filters")).to_be_focused()
    press(page, "Escape")

    expect(page.get_by_role("dialog", name="Filters")).to_be_hidden()
    expect(page.locator("#filters-button")).to_be_focused()


def test_documents_are_filtered_chosen_and_opened(opened):
    page = opened("documents of a knowledge base")

    tab_to(page, ".kb-hub-menu summary")
    press(page, "Enter", "Tab")
    expect(page.locator(".kb-hub-menu a").first).to_be_focused()
    press(page, "Escape")
    expect(page.locator(".kb-hub-menu summary")).to_be_focused()
    tab_to(page, ".kb-filter[href*='status']")
    with page.expect_navigation():
        press(page, "Enter")
    page.goto(page.url.partition("?")[0])
    tab_to(page, "#result_list .action-select")
    press(page, "Space")
    expect(page.locator("#result_list .action-select").first).to_be_checked()
    tab_to(page, "#result_list .kb-row-button")
    with page.expect_navigation(url=re.compile("/kb/document/")):
        press(page, "Enter")


def test_a_chunk_is_edited_split_and_switched_off(opened):
    page = opened("document")
    card = page.locator(".kd-chunk").first

    tab_to(page, "[data-testid=edit]")
    press(page, "Enter")
    expect(card.locator("textarea")).to_be_focused()
    press(page, "Control+End")
    page.keyboard.type("，诉讼费由败诉方负担")
    tab_to(page, ".kd-save")
    press(page, "Enter")
    expect(card.locator(".kd-note")).to_be_visible()
    expect(card.locator(".kd-body")).to_contain_text("败诉方")
    expect(card.locator(".kd-number")).to_be_focused()

    other = page.locator(".kd-chunk").nth(1)
    at = f"#{other.get_attribute('id')}"
    tab_to(page, f"{at} summary")
    press(page, "Enter", "Tab")
    expect(other.locator("[hx-get$='form=split']")).to_be_focused()
    press(page, "Enter")
    expect(other.locator("[name=at]")).to_be_focused()
    page.keyboard.type("5")
    tab_to(page, f"{at} .kd-save")
    press(page, "Enter")
    expect(page.locator(".kd-chunk").nth(2)).to_contain_text("间为三年")

    page.evaluate("document.activeElement.blur()")
    tab_to(page, ".kd-chunk summary")
    press(page, "Enter")
    tab_to(page, "[hx-vals*=disable]")
    press(page, "Enter")
    expect(card).to_have_class(re.compile(r"\boff\b"))


def test_a_passage_that_an_answer_names_opens_and_escape_gives_the_focus_back(opened):
    page = opened("ask")
    expect(page.locator("#id_query")).to_be_focused()
    page.keyboard.type("合同自什么时候生效")
    press(page, "Enter")
    expect(page.locator("[data-ask-answer]").last).to_have_attribute("aria-busy", "false")
    page.evaluate("document.activeElement.blur()")

    tab_to(page, ".ask-where a")
    press(page, "Enter")
    expect(page.locator("[data-ask-drawer]")).to_be_visible()
    assert page.evaluate("document.activeElement.closest('[data-ask-drawer]') !== null")
    press(page, "Escape")

    expect(page.locator("[data-ask-drawer]")).to_be_hidden()
    assert page.evaluate("document.activeElement.closest('.ask-where') !== null")


def test_settings_of_a_knowledge_base_are_saved(opened):
    page = opened("knowledge base")

    tab_to(page, "[name=description]")
    page.keyboard.type("All about contracts.")
    tab_to(page, "[name=_save], [name=_continue]")
    with page.expect_navigation():
        press(page, "Enter")

    expect(page.locator("main, #main").first).to_contain_text("legal")
    assert not page.locator(".errornote").count()


def test_a_model_is_chosen_tested_and_refused(opened):
    page = opened("models")

    tab_to(page, "[data-testid=preset-ollama]")
    with page.expect_navigation():
        press(page, "Enter")
    page.wait_for_function(SETTLED)
    tab_to(page, "#id_base_url")
    press(page, "Control+a")
    page.keyboard.type("http://127.0.0.1:9/v1")
    tab_to(page, "#id_model")
    page.keyboard.type("any")
    press(page, "Escape")  # closes the browser's list of names
    tab_to(page, "[data-testid=test]")
    press(page, "Enter")
    expect(page.locator("#md-tested")).not_to_be_empty()
