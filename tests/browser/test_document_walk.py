"""A document beside its chunks, as its reader sees it: what is chosen on one side is marked on the other."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.steps import Clicks
from tests.kb.ingest.parser.documents import make_pdf

PAGES = 300
LONG = make_pdf(
    *[[f"Page {page}: the pump with number {page} is checked."] for page in range(1, PAGES + 1)], title="Long"
)
TEXT = "# Pumps\n\n" + "\n\n".join(
    f"## Pump {number}\n\nPump {number} is oiled {number} times a year." for number in range(1, 41)
)


def add(visitor, kb_id, name, data):
    data = data if isinstance(data, bytes) else data.encode()
    cookies = {cookie["name"]: cookie["value"] for cookie in visitor.page.context.cookies()}
    answer = visitor.page.request.post(
        f"{visitor.url}/api/v1/knowledge-bases/{kb_id}/documents/",
        multipart={"file": {"name": name, "mimeType": "application/octet-stream", "buffer": data}},
        headers={"X-CSRFToken": cookies["csrftoken"], "Referer": visitor.url},
    )
    assert answer.status == 201, answer.text()
    return answer.json()["id"]


@pytest.fixture
def base(admin):
    """Makes a knowledge base with files; returns the ids of its documents, once they are read."""

    def make(name, **files):
        admin.open("")
        kb_id = admin.call("POST", "knowledge-bases/", {"name": name, "language": "en"}).json()["id"]
        ids = [add(admin, kb_id, file.replace("_", "."), data) for file, data in files.items()]
        admin.open(f"kb/knowledgebase/{kb_id}/documents/")
        unread = "[data-status=pending], [data-status=processing]"
        expect(admin.page.locator(unread)).to_have_count(0)
        return kb_id, ids

    return make


def open_document(visitor, document_id, query=""):
    visitor.open(f"kb/document/{document_id}/change/{query}")


def test_pages_are_drawn_as_they_come_into_view_and_marked_both_ways(admin, base):
    page = admin.page
    drawn = []
    page.on(
        "request",
        lambda request: (
            drawn.append(int(parse_qs(urlsplit(request.url).query)["n"][0])) if "/page/?n=" in request.url else None
        ),
    )
    _kb, (document,) = base("pages", long_pdf=LONG)

    open_document(admin, document)
    expect(page.locator("[data-testid=page-image]").first).to_be_visible()
    expect(page.locator(".kd-page")).to_have_count(100)
    assert set(drawn) <= {1, 2, 3}

    card = page.locator(".kd-chunk").nth(20)
    number = card.locator(".kd-number").inner_text()
    card.locator(".kd-body").click()
    expect(page.locator(".kd-place.current")).to_be_in_viewport()
    assert page.locator(".kd-place.current span").inner_text() == number
    assert len(set(drawn)) < 12

    chosen = page.locator(".kd-page .kd-place[aria-label]:not(.current)").last.get_attribute("data-chunk")
    place = page.locator(f".kd-page .kd-place[data-chunk='{chosen}'][aria-label]").first
    other = place.locator("span").inner_text()
    place.click()
    expect(page.locator(".kd-chunk.current .kd-number")).to_have_text(other)
    expect(page.locator(".kd-chunk.current")).to_be_in_viewport()


def test_a_question_is_written_beside_what_was_pressed_and_saved_by_keys(admin, base):
    _kb, (document,) = base("questions", pumps_md="Pumps are oiled once a year. " * 40)
    page = admin.page
    page.set_viewport_size({"width": 1440, "height": 900})
    open_document(admin, document)
    assert page.evaluate("document.scrollingElement.scrollHeight <= innerHeight")  # only its two sides scroll
    card = page.locator(".kd-chunk").first
    card.get_by_role("button", name="添加问题").click()
    expect(card.locator("textarea")).to_be_focused()
    expect(card.locator(".kd-save")).to_be_in_viewport(ratio=1)
    page.keyboard.type("How often are pumps oiled?")
    page.keyboard.press("Control+Enter")
    expect(card.locator(".kd-questions")).to_contain_text("How often are pumps oiled?")


def test_a_link_to_a_chunk_far_away_opens_at_it_on_both_sides(admin, base):
    _kb, (document,) = base("links", long_pdf=LONG)
    found = admin.call("GET", f"documents/{document}/chunks/?page_size=200").json()
    later = admin.page.request.get(found["next"]).json()["results"]
    admin.open(f"kb/chunk/{later[40]['id']}/place/")
    page = admin.page
    expect(page.locator(".kd-chunk.current")).to_be_in_viewport()
    expect(page.locator(".kd-place.current")).to_be_in_viewport()
    expect(page.locator(".kd-place.current span")).to_have_text(str(later[40]["position"] + 1))


def test_text_is_marked_both_ways_also_without_a_mouse(admin, base):
    _kb, (document,) = base("text", pumps_md=TEXT)
    page = admin.page
    open_document(admin, document)
    expect(page.locator(".kd-text")).to_be_visible()

    page.locator(".kd-chunk").nth(25).locator("[data-show]").focus()
    page.keyboard.press("Enter")
    marked = page.locator("#kd-original .current")
    expect(marked.last).to_be_in_viewport()
    number = page.locator(".kd-chunk.current .kd-number").inner_text()

    page.locator(".kd-mark").nth(3).focus()
    page.keyboard.press("Enter")
    expect(page.locator(".kd-chunk.current .kd-number")).not_to_have_text(number)
    assert page.evaluate("document.activeElement.className") == "kd-number"


def test_a_chunk_is_edited_from_the_list_of_documents_in_three_clicks(admin, base):
    kb_id, (document,) = base("edit", pumps_md=TEXT)
    page, clicks = admin.page, Clicks(admin)
    admin.open(f"kb/knowledgebase/{kb_id}/documents/")
    page.locator("#result_list th a, #result_list td a").filter(has=page.locator(f"#document-{document}-name")).click()
    page.locator(".kd-chunk [data-testid=edit]").first.click()
    page.locator(".kd-chunk textarea").fill("The first pump is painted green.")
    page.locator(".kd-save").click()
    expect(page.locator(".kd-chunk .kd-note")).to_be_visible()
    assert clicks.count == 3
    assert "green" in admin.call("GET", f"documents/{document}/chunks/").json()["results"][0]["text"]


def test_a_chunk_is_seen_beside_its_page_with_two_clicks(admin, base):
    kb_id, (document,) = base("beside", long_pdf=LONG)
    page, clicks = admin.page, Clicks(admin)
    admin.open(f"kb/knowledgebase/{kb_id}/documents/")

    page.locator("#result_list a").filter(has=page.locator(f"#document-{document}-name")).click()
    chunk = page.locator(".kd-chunk").nth(1)
    chunk.locator(".kd-body").click()

    expect(chunk).to_be_in_viewport()
    expect(page.locator(".kd-place.current")).to_be_in_viewport()
    expect(page.locator(".kd-page:has(.kd-place.current) [data-testid=page-image]")).to_be_in_viewport()
    assert clicks.count == 2


def test_text_that_was_not_saved_is_asked_about(admin, base):
    _kb, (document,) = base("unsaved", pumps_md=TEXT)
    page = admin.page
    open_document(admin, document)
    page.locator(".kd-chunk [data-testid=edit]").first.click()
    page.locator(".kd-chunk textarea").fill("Half a sentence")
    asked = []
    page.once("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
    page.locator(".kd-cancel").click()
    expect(page.locator(".kd-chunk textarea")).to_have_value("Half a sentence")
    assert asked == ["confirm"]
    page.once("dialog", lambda dialog: dialog.accept())
    page.locator(".kd-cancel").click()
    expect(page.locator(".kd-chunk textarea")).to_have_count(0)


def test_a_broken_file_is_replaced_in_two_clicks(admin, base):
    kb_id, (document,) = base("broken", broken_pdf=LONG[:2_000])
    page, clicks = admin.page, Clicks(admin)
    admin.open(f"kb/knowledgebase/{kb_id}/documents/")
    expect(page.locator("[data-status=failed]")).to_have_count(1)
    page.locator(f"a[href$='/document/{document}/replace/']").click()

    page.locator("[name=file]").set_input_files({"name": "tool.exe", "mimeType": "x/y", "buffer": b"words"})
    expect(page.locator("#replace-trouble")).to_contain_text("tool.exe")
    page.locator("[name=file]").set_input_files(
        {"name": "a.pdf", "mimeType": "x/y", "buffer": b"MZ\x90\x00" + bytes(50)}
    )
    expect(page.locator("#replace-trouble")).to_contain_text("a.pdf")
    page.locator("[name=file]").set_input_files({"name": "empty.txt", "mimeType": "x/y", "buffer": b""})
    expect(page.locator("#replace-trouble")).to_be_visible()

    with page.expect_file_chooser() as chooser:
        page.locator("#drop-zone").click()
    with page.expect_navigation(url=re.compile(rf"/document/{document}/change/")):
        chooser.value.set_files(
            {"name": "good.txt", "mimeType": "text/plain", "buffer": b"The pump is oiled each year."}
        )
    expect(page.locator("[data-status=ready]")).to_have_count(1)
    assert clicks.count == 2
    assert "oiled" in admin.call("GET", f"documents/{document}/chunks/").json()["results"][0]["text"]


def test_on_a_phone_one_side_is_shown_at_a_time(visit, admin_session, admin, base):
    _kb, (document,) = base("phone", pumps_md=TEXT)
    phone = visit(storage_state=admin_session, is_mobile=True, has_touch=True)
    page = phone.page
    page.set_viewport_size({"width": 390, "height": 844})
    open_document(phone, document)
    expect(page.locator("#kd-chunks")).to_be_visible()
    expect(page.locator("#kd-original")).to_be_hidden()
    page.locator(".kd-chunk").nth(5).locator("[data-show]").click()
    expect(page.locator("#kd-original")).to_be_visible()
    expect(page.locator("#kd-original .current").last).to_be_in_viewport()
    page.locator(".kd-sides [data-side=chunks]").click()
    expect(page.locator("#kd-chunks")).to_be_visible()
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
