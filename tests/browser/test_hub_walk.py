"""A curator makes a knowledge base of ten files, sees what failed, and finds their way in it, in a real browser."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.steps import Clicks, tab_to
from tests.newcomer import FOLDER

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser

MINUTES_TO_READ_A_SCAN = 10
PROGRAM = {"name": "setup.exe", "mimeType": "application/octet-stream", "buffer": b"MZ\x90\0"}
BROKEN = {"name": "broken.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4 broken"}
NOTE = {"name": "note.txt", "mimeType": "text/plain", "buffer": "食堂每天十一点半开饭。".encode()}
DROP = """files => {
    const transfer = new DataTransfer();
    for (const [name, text] of files) transfer.items.add(new File([text], name));
    for (const type of ["dragenter", "dragover", "drop"]) {
        document.querySelector("h1").dispatchEvent(
            new DragEvent(type, {dataTransfer: transfer, bubbles: true, cancelable: true})
        );
    }
}"""


def new_base(visitor, name):
    page = visitor.page
    visitor.open("kb/knowledgebase/add/")
    page.fill("#id_name", name)
    with page.expect_navigation(url="**/documents/#upload"):
        page.click("[name=_save]")


def test_a_knowledge_base_of_ten_files_takes_four_clicks(admin):
    page, clicks = admin.page, Clicks(admin)
    files = sorted((FOLDER / "files").iterdir())[:10]
    admin.open("")

    page.locator("a[href$='/kb/knowledgebase/add/']").first.click()
    page.fill("#id_name", "十个文件")
    page.click("[name=_save]")
    expect(page.locator("[name=uploads]")).to_be_focused()
    with page.expect_file_chooser() as chooser:
        page.click("#drop-zone")
    with page.expect_navigation(url="**/documents/?upload=*"):
        chooser.value.set_files(files)

    assert clicks.count <= 4
    expect(page.locator("[data-status=ready]")).to_have_count(len(files), timeout=MINUTES_TO_READ_A_SCAN * 60_000)
    expect(page.locator("[data-testid=upload-bar][data-done=yes]")).to_be_visible()
    expect(page.locator("#count-ready")).to_have_text(str(len(files)))


def test_files_dropped_anywhere_come_in_and_the_page_says_which_did_not(admin):
    page = admin.page
    new_base(admin, "拖放")

    with page.expect_navigation(url="**/documents/?upload=*"):
        page.set_input_files("[name=uploads]", [PROGRAM, BROKEN, NOTE])

    expect(page.locator("#upload-troubles")).to_contain_text("setup.exe")
    expect(page.locator("[data-testid=upload-failures]")).to_contain_text("broken.pdf")
    expect(page.locator("[data-status]")).to_have_count(2)
    with page.expect_navigation(url="**/documents/?upload=*"):
        page.evaluate(DROP, [["second.txt", "加热器的报警温度是八十度。"]])
    expect(page.locator("[data-status=ready]")).to_have_count(2)
    expect(page.locator("#upload-troubles li")).to_have_count(0)


def test_a_program_alone_is_refused_before_it_is_sent(admin):
    page = admin.page
    new_base(admin, "只有程序")

    page.set_input_files("[name=uploads]", [PROGRAM])

    expect(page.locator("#upload-troubles")).to_contain_text("setup.exe")
    assert "upload=" not in page.url
    assert page.locator("[data-status]").count() == 0


def test_it_is_renamed_in_its_head_and_deleted_by_its_name_without_a_mouse(admin):
    page = admin.page
    new_base(admin, "旧名")

    tab_to(page, "[data-testid=hub-head] .kb-hub-name button")
    page.keyboard.press("Enter")
    expect(page.locator("[data-testid=hub-head] [name=name]")).to_be_focused()
    page.keyboard.type("新名")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    expect(page.locator("[data-testid=hub-head] .kb-title")).to_contain_text("新名")

    tab_to(page, ".kb-hub-menu summary")
    page.keyboard.press("Enter")
    tab_to(page, ".kb-hub-menu a[href$='/delete/']")
    with page.expect_navigation(url="**/delete/"):
        page.keyboard.press("Enter")
    expect(page.locator("#delete-name")).to_be_focused()
    page.keyboard.type("新名")
    with page.expect_navigation(url=re.compile(r"/kb/knowledgebase/(\?.*)?$")):
        page.keyboard.press("Enter")
    assert "新名" not in page.locator("#result_list").inner_text()
