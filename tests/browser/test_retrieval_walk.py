"""The retrieval test in a real browser: its journeys in clicks, the cut that is moved, and its keys."""

from itertools import chain

import pytest
from playwright.sync_api import expect

from tests.browser.steps import Clicks, add_documents, add_texts, tab_to

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser

SCREENS = 1.5
QUERY = "水泵多久保养一次"
SENTENCE = "保养时先断开电源，再检查油位、密封圈和轴承，发现磨损应当立即更换，并把结果写入维修日志。"
PASSAGES = tuple(f"水泵每 {number} 个月保养一次。{SENTENCE * 3}" for number in range(3, 12))
HIDDEN = "发票抬头必须是公司全称，税号由财务部提供。"
ASKED = "报销单上要写谁的名字"


@pytest.fixture(scope="module")
def furnished(chromium, served, admin_session):
    """A knowledge base with nine passages on one matter and one on another, by the ids of the chunks."""
    from tests.browser.conftest import Visitor

    context = chromium.new_context(storage_state=admin_session)
    visitor = Visitor(context.new_page(), served.url)
    kb_id = visitor.call("POST", "knowledge-bases/", {"name": "水泵手册"}).json()["id"]
    add_texts(visitor, kb_id, *PASSAGES, title="水泵手册")
    [[hidden]] = add_documents(visitor, kb_id, HIDDEN, title="财务制度")
    yield kb_id, hidden
    context.close()


@pytest.fixture
def reader(visit, admin_session):
    return visit(language="en", storage_state=admin_session)


def open_results(visitor, kb_id, query=QUERY, **asked):
    given = "".join(f"&{name}={value}" for name, value in asked.items())
    visitor.open(f"search-debug/?kb={kb_id}&q={query}{given}")
    expect(visitor.page.locator("[data-testid=results]")).to_be_visible()


def listed(page, name):
    return page.locator(f"[data-rt-list={name}] > li").evaluate_all("all => all.map(one => one.dataset.chunkId)")


@pytest.mark.parametrize("width", [1440, 390])
def test_a_long_name_makes_no_page_wider(reader, furnished, width):
    name = "Betriebshandbuch_der_Wärmepumpen_" * 2
    made = reader.call("POST", "knowledge-bases/", {"name": f"{name}{width}"}).json()["id"]
    reader.page.set_viewport_size({"width": width, "height": 900})
    kb_id, chunk_id = furnished
    for path in (
        f"search-debug/?kb={kb_id}&kb={made}&q={QUERY}",
        f"why-not/?kb={kb_id}&kb={made}&q={QUERY}&chunk={chunk_id}",
        f"ask/?kb={made}",
        f"kb/knowledgebase/{made}/delete/",
    ):
        reader.open(path)
        wide = "each => each.scrollWidth > each.clientWidth"
        assert not reader.page.locator("html").evaluate(wide), path
        assert not any(pane.evaluate(wide) for pane in reader.page.locator(".rt-pane").all()), path


def test_a_knowledge_base_is_tested_with_two_clicks_and_the_first_hit_is_in_view(reader, furnished):
    page, clicks = reader.page, Clicks(reader)
    reader.open(f"kb/knowledgebase/{furnished[0]}/documents/")

    page.get_by_test_id("hub-head").get_by_role("link", name="Test").click()
    expect(page.locator("#id_q")).to_be_focused()
    page.keyboard.type(QUERY)
    page.get_by_role("button", name="Search", exact=True).click()

    expect(page.locator("[data-rt-list=results] > li").first).to_be_in_viewport(ratio=1)
    assert clicks.count == 2


def test_five_hits_take_one_and_a_half_screens(visit, admin_session, furnished):
    visitor = visit(storage_state=admin_session)
    visitor.page.set_viewport_size({"width": 1440, "height": 900})

    open_results(visitor, furnished[0])

    assert len(listed(visitor.page, "results")) == 5
    assert visitor.page.evaluate("document.scrollingElement.scrollHeight") <= SCREENS * 900


def test_on_a_phone_results_stand_between_the_query_and_the_rest(visit, admin_session, furnished):
    visitor = visit(storage_state=admin_session)
    page = visitor.page
    page.set_viewport_size({"width": 390, "height": 844})

    open_results(visitor, furnished[0])

    places = [page.locator(each).bounding_box()["y"] for each in ("#id_q", "[data-rt-list=results]", "#id_top_k")]
    assert places == sorted(places)
    expect(page.locator("[data-rt-list=results] > li").first).to_be_in_viewport()
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


def test_a_hit_is_edited_with_two_clicks(reader, furnished):
    page, clicks = reader.page, Clicks(reader)
    open_results(reader, furnished[0])
    first = page.locator("[data-rt-list=results] > li").first

    first.locator("[data-rt-edit]").click()
    box = first.get_by_label("Text of the passage")
    expect(box).to_be_focused()
    box.fill(f"{box.input_value()} 由设备部负责。")
    with page.expect_navigation():
        first.get_by_role("button", name="Save").click()

    expect(page.get_by_text("The passage was saved")).to_be_visible()
    assert clicks.count == 2


def test_a_question_makes_a_passage_the_first_hit_with_three_clicks(reader, furnished):
    kb_id, hidden = furnished
    page, clicks = reader.page, Clicks(reader)
    open_results(reader, kb_id, ASKED)
    assert str(hidden) not in listed(page, "results")
    row = page.locator(f"#chunk-{hidden}")

    page.click("[data-testid=others] > summary")
    row.locator("[data-rt-open]").click()
    row.locator("[data-rt-question]").click()
    expect(row.get_by_label("A question that this passage answers")).to_have_value(ASKED)
    expect(row.get_by_label("A question that this passage answers")).to_be_focused()
    with page.expect_navigation():
        page.keyboard.press("Enter")

    expect(page.locator("[data-rt-list=results] > li").first).to_have_attribute("data-chunk-id", str(hidden))
    assert clicks.count == 3


def test_why_a_passage_is_missing_takes_two_clicks(reader, furnished):
    page, clicks = reader.page, Clicks(reader)
    open_results(reader, furnished[0], "设备的颜色")

    page.click("[data-testid=ask-why]")
    expect(page.locator("#id_text")).to_be_focused()
    page.keyboard.type("发票抬头必须是公司全称")
    page.get_by_role("button", name="Find out why").click()

    expect(page.locator("[data-testid=verdict] h2")).to_be_in_viewport()
    assert clicks.count == 2


def test_the_cut_splits_the_results_again_without_a_request_and_is_saved_as_a_draft(reader, furnished):
    page = reader.page
    open_results(reader, furnished[0], "水泵 保养 油位 税号", top_k=20)
    before = {name: listed(page, name) for name in ("results", "near", "others")}
    scores = page.locator("[data-rt-list=results] > li").evaluate_all(
        "all => all.map(one => Number(one.dataset.score))"
    )
    cut = page.get_by_role("slider")
    reader.page.on("request", lambda request: reader.troubles.append(f"asked {request.url}"))

    cut.fill(f"{sorted(scores)[2] + 0.001:.3f}")

    assert len(listed(page, "results")) == sum(score >= sorted(scores)[2] + 0.001 for score in scores)
    assert 0 < len(listed(page, "near")) <= 3
    moved = {name: listed(page, name) for name in before}
    assert sorted(chain(*moved.values())) == sorted(chain(*before.values()))
    page.get_by_role("button", name="Reset").click()
    assert {name: listed(page, name) for name in before} == before
    assert reader.troubles == []

    cut.focus()
    at = float(cut.input_value())
    page.keyboard.press("ArrowRight")
    assert float(cut.input_value()) == pytest.approx(at + 0.01, abs=0.0011)
    page.get_by_role("button", name="Save as a draft").first.click()
    expect(page.locator("#id_draft-name")).to_be_focused()
    page.fill("#id_draft-name", "moved")
    with page.expect_navigation(url="**profile=*"):
        page.locator("[data-testid=draft] [type=submit]").click()
    expect(page.locator("[data-testid=profile]")).to_have_text("moved v1")
    expect(page.locator("[data-rt-value]")).to_have_text(f"{at + 0.01:.3g}")
    reader.troubles.clear()  # what was asked for after the cut was moved


def test_keys_move_judge_edit_and_ask_why_and_leave_typing_alone(reader, furnished):
    page = reader.page
    open_results(reader, furnished[0])
    hits = page.locator("[data-rt-list=results] > li")

    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(hits.nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(hits.first).to_be_focused()
    page.keyboard.press("1")
    expect(hits.first.locator("[data-grade='2']")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("3")
    expect(hits.first.locator("[data-grade='0']")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("3")
    expect(hits.first.locator("[data-grade='0']")).to_have_attribute("aria-pressed", "false")

    page.keyboard.press("e")
    box = hits.first.get_by_label("Text of the passage")
    expect(box).to_be_focused()
    text = box.input_value()
    page.keyboard.press("Control+End")
    page.keyboard.type("jw")
    assert box.input_value() == f"{text}jw"
    hits.first.get_by_role("button", name="Cancel").click()
    expect(hits.first).to_be_focused()

    page.keyboard.press("/")
    expect(page.locator("#id_q")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("?")
    expect(page.locator("[data-testid=keys]")).to_have_attribute("open", "")
    page.uncheck("[data-rt-keys-on]")
    page.locator("[data-testid=keys] summary").focus()
    page.keyboard.press("/")
    expect(page.locator("#id_q")).not_to_be_focused()
    page.check("[data-rt-keys-on]")
    page.locator("[data-testid=keys] summary").focus()
    with page.expect_navigation(url="**/why-not/?*"):
        page.keyboard.press("w")


def test_a_hit_is_edited_without_a_mouse_or_a_shortcut(reader, furnished):
    page = reader.page
    open_results(reader, furnished[0])

    tab_to(page, "[data-rt-list=results] > li:first-child [data-rt-edit]")
    page.keyboard.press("Enter")

    expect(page.get_by_label("Text of the passage")).to_be_focused()
