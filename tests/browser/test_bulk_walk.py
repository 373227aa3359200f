"""Many files at once, in a real browser: dropped, watched to their end, and what failed of them tried again."""

import os
import re

import pytest
from playwright.sync_api import expect

from tests.browser.steps import make_base, tab_to

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser

FILES = 30
BROKEN = {7: b"%PDF-1.7\n" + b"\0" * 4_000, 21: b"%PDF-1.7\n" + b"\1" * 4_000}
DROP = """files => {
    const data = new DataTransfer();
    for (const [name, content] of files) data.items.add(new File([Uint8Array.from(content)], name));
    const zone = document.getElementById("drop-zone");
    for (const type of ["dragenter", "dragover", "drop"]) {
        zone.dispatchEvent(new DragEvent(type, {dataTransfer: data, bubbles: true, cancelable: true}));
    }
}"""

REFRESHED = "new Promise(done => document.addEventListener('htmx:afterSettle', () => done(), {once: true}))"


def picture(page, name):
    """Kept where someone wants to look at the pages."""
    if folder := os.environ.get("ZHIKU_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def contents(prefix=""):
    """By name; two of them cannot be read."""
    return {
        f"{prefix}{number:02}.{'pdf' if number in BROKEN else 'txt'}": BROKEN.get(number)
        if number in BROKEN
        else f"{prefix}第{number}条讲的是保修期限与退货办法。".encode()
        for number in range(FILES)
    }


def drop(curator, kb_id, files):
    """Drags files onto the page and uploads them."""
    page = curator.page
    curator.open(f"kb/document/upload/?kb={kb_id}")
    page.evaluate(DROP, [[name, list(content)] for name, content in files.items()])
    expect(page.locator("#chosen-files li")).to_have_count(min(len(files), 20))
    picture(page, "upload-chosen")
    page.click("#upload-submit button")
    page.wait_for_url("**/documents/?upload=*")
    # Not by a click: the bar is drawn anew every two seconds, and one of those may come between its two halves.
    page.goto(curator.url + page.locator("[data-testid=upload-bar] a[href*=ingestbatch]").get_attribute("href"))
    page.wait_for_url(re.compile(r"/kb/ingestbatch/\d+/change/"))


def counts(page):
    """Documents by status, as the page's links tell."""
    links = page.locator("[data-testid=batch-counts] a").evaluate_all(
        "links => links.map(link => [new URL(link.href).searchParams.get('status__exact'), link.textContent])"
    )
    return {status: int(re.search(r"\d+", text)[0]) for status, text in links}


def watch(page):
    """Every state that the page shows by itself until nothing moves any more."""
    seen = []
    while page.locator("#batch-progress[hx-get]").count():
        percent = int(page.locator("#batch-progress [data-percent]").get_attribute("data-percent"))
        if not seen or seen[-1] != percent:
            seen.append(percent)
        page.wait_for_timeout(200)
    return seen


def press(page, value):
    with page.expect_navigation():
        page.press(f"#batch-progress button[value={value}]", "Enter")


def test_thirty_dropped_files_are_watched_to_their_end_and_the_broken_ones_are_tried_again(admin, served):
    page = admin.page
    kb_id = make_base(admin, "bulk")
    with served.worker_resting():
        drop(admin, kb_id, contents())
        assert counts(page) == {"pending": FILES}
        picture(page, "batch-waiting")
    page.reload()
    seen = watch(page)

    assert seen == sorted(seen)
    assert counts(page) == {"ready": FILES - 2, "failed": 2}
    expect(page.locator("#batch-progress [role=progressbar]")).to_have_attribute("aria-valuenow", "100")
    first = page.locator("[data-testid=batch-documents] li")
    expect(first.nth(0).locator("[data-status=failed]")).to_have_count(1)
    expect(first.nth(1).locator("[data-status=failed]")).to_have_count(1)
    picture(page, "batch-done")

    press(page, "retry_failed")
    watch(page)

    assert counts(page) == {"ready": FILES - 2, "failed": 2}


def test_an_upload_is_paused_resumed_cancelled_and_taken_up_again(admin, served):
    page = admin.page
    kb_id = make_base(admin, "steered")
    with served.worker_resting():
        drop(admin, kb_id, {name: data for name, data in contents("s").items() if data and not name.endswith("pdf")})
        with page.expect_navigation():
            # Of a click, a refresh could come between the mouse button's going down and up.
            page.press("#batch-progress button[value=pause]", "Enter")
        expect(page.locator("#batch-progress")).to_contain_text(re.compile("Paused|暂停"))
        picture(page, "batch-paused")
    press(page, "cancel")
    watch(page)
    assert counts(page).keys() <= {"ready", "cancelled"}
    assert counts(page)["cancelled"] >= 20
    picture(page, "batch-cancelled")

    press(page, "resume")
    press(page, "retry_cancelled")
    watch(page)

    assert counts(page) == {"ready": 28}


def test_a_folder_and_a_table_come_in_with_their_paths(admin, tmp_path):
    for name, content in (("a/1.txt", "甲条"), ("a/b/2.txt", "乙条"), ("a/.hidden", "丙条")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    table = {"name": "t.csv", "mimeType": "text/csv", "buffer": "filename,title\na/b/2.txt,第二条\n".encode()}
    page = admin.page
    kb_id = make_base(admin, "folder")
    admin.open(f"kb/document/upload/?kb={kb_id}")

    page.set_input_files("#folder-field", tmp_path / "a")
    page.set_input_files("[name=table]", table)
    expect(page.locator("#chosen-files li")).to_have_count(2)
    with page.expect_navigation(url="**/documents/?upload=*"):
        page.click("#upload-submit button")

    expect(page.locator("[data-status=ready]")).to_have_count(2)
    expect(page.locator("#result_list, main")).to_contain_text(["第二条"])


def test_the_buttons_are_reached_by_keyboard(admin, served):
    page = admin.page
    kb_id = make_base(admin, "keys")
    with served.worker_resting():
        drop(admin, kb_id, {f"k{number}.txt": f"键{number}".encode() for number in range(12)})
        tab_to(page, "#batch-progress button[value=pause]")
        page.evaluate(REFRESHED)  # which takes the focus from nobody
        with page.expect_navigation():
            page.keyboard.press("Enter")
        expect(page.locator("#batch-progress button[value=resume]")).to_be_visible()
