"""The frame of the admin by keyboard: palette, choice of the knowledge base, menu on a phone, skip link."""

import pytest
from playwright.sync_api import expect

from tests.browser.steps import add_texts, make_base

PHONE = {"width": 390, "height": 844}


@pytest.fixture
def page(admin):
    admin.open("")
    return admin.page


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def test_the_palette_opens_a_document_without_a_mouse(admin, page):
    kb_id = make_base(admin, "手册")
    add_texts(admin, kb_id, "冬季把温度设为二十度。", title="冬季设置")
    admin.open("")

    press(page, "Control+k")
    expect(page.get_by_role("combobox")).to_be_focused()
    page.keyboard.type("冬季设")
    option = page.get_by_role("option", name="冬季设置")
    expect(option).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("combobox")).to_have_attribute("aria-activedescendant", option.get_attribute("id"))
    with page.expect_navigation(url="**/kb/document/*/change/"):
        press(page, "Enter")

    expect(page.get_by_role("heading", level=1)).to_have_text("冬季设置")


def test_the_palette_says_that_nothing_matches_and_gives_the_focus_back(page):
    button = page.locator("[data-palette=all]")
    button.focus()
    press(page, "Enter")
    page.keyboard.type("没有这样的页面")

    expect(page.locator("#palette-status")).not_to_be_empty()
    expect(page.get_by_role("option")).to_have_count(0)
    press(page, "Escape")
    expect(page.locator("#palette")).to_be_hidden()
    expect(button).to_be_focused()


def test_arrows_go_round_the_options(page):
    press(page, "Control+k")
    options = page.get_by_role("option")
    expect(options.first).to_have_attribute("aria-selected", "true")

    press(page, "ArrowUp")
    expect(options.last).to_have_attribute("aria-selected", "true")
    press(page, "ArrowDown")
    expect(options.first).to_have_attribute("aria-selected", "true")
    press(page, "Control+k")
    expect(page.locator("#palette")).to_be_hidden()


def test_another_knowledge_base_opens_at_the_same_tab(admin, page):
    first, second = make_base(admin, "甲"), make_base(admin, "乙")
    admin.open(f"kb/knowledgebase/{first}/concepts/")

    page.locator("nav button[data-palette=bases]").focus()
    press(page, "Enter")
    expect(page.get_by_role("option", name="乙")).to_be_visible()
    page.keyboard.type("乙")
    expect(page.get_by_role("option")).to_have_count(1)
    with page.expect_navigation(url=f"**/knowledgebase/{second}/concepts/"):
        press(page, "Enter")

    admin.open("kb/evalrun/")
    expect(page.locator("header [data-palette=bases]")).to_contain_text("乙")


def test_the_first_tab_stop_skips_the_menu(page):
    press(page, "Tab")
    expect(page.locator(".kb-skip")).to_be_focused()
    press(page, "Enter")
    expect(page.locator("#content")).to_be_focused()


def test_the_menu_of_a_phone_opens_and_closes_by_keyboard(admin):
    page = admin.page
    page.set_viewport_size(PHONE)
    admin.open("")
    menu, button = page.locator("#nav-sidebar"), page.locator("#menu-button")
    expect(menu).to_be_hidden()

    button.focus()
    press(page, "Enter")
    expect(menu).to_be_visible()
    expect(page.locator("#menu-close")).to_be_focused()
    expect(button).to_have_attribute("aria-expanded", "true")
    page.locator("#account-button").focus()
    press(page, "Enter")
    expect(page.locator("#account")).to_be_visible()
    press(page, "Escape")
    expect(page.locator("#account")).to_be_hidden()
    expect(menu).to_be_visible()
    press(page, "Escape")
    expect(menu).to_be_hidden()
    expect(button).to_be_focused()
    assert page.evaluate("document.scrollingElement.scrollWidth") == PHONE["width"]


def test_what_is_read_out_of_a_list_are_names_and_no_symbols(admin, page):
    kb_id = make_base(admin, "朗读")
    add_texts(admin, kb_id, "冬季把温度设为二十度。", title="冬季设置")
    admin.open(f"kb/knowledgebase/{kb_id}/documents/")
    expect(page.get_by_role("link", name="上传", exact=True)).to_be_visible()
    expect(page.get_by_role("checkbox", name="选择“冬季设置”", exact=True)).to_be_attached()
    admin.open("kb/failedquery/")
    for role in ("link", "button"):
        names = [each.aria_snapshot() for each in page.get_by_role(role).all()]
        assert not [each for each in names if "menu_book" in each or each in (f'- {role} "search"', f"- {role}")]


def test_a_name_stands_over_a_column_as_it_is_written(admin, page):
    admin.open("retrieval-profiles/")
    page.get_by_role("link", name="balanced").first.click()
    page.locator("a[href*='retrieval-profiles/diff/']").first.click()
    names = page.locator("[data-testid=differences] thead .kb-name")
    expect(names).to_have_count(2)
    before, after = names.all()
    for each in (before, after):
        assert each.evaluate("each => getComputedStyle(each, '::first-letter').textTransform") == "none"
    expect(after).to_have_text("balanced v1")
