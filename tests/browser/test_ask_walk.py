"""Questions and answers in a real browser, with a chat model that is a real server on the loopback."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.chat_model import *  # noqa: F403 - its fixtures
from tests.browser.conftest import SECONDS
from tests.browser.steps import (
    MANUAL,
    PHONE,
    PUMPS,
    add_texts,
    chunks_of,
    make_base,
    post_texts,
    tab_to,
    upload,
    wait_until_ready,
)
from tests.servers import Reply

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser

ANSWER = "住宿费每晚不超过四百五十元[1]。"
DOGS = "狗可以带进办公室吗？"


@pytest.fixture(autouse=True)
def _model_answers(model):
    model.released.clear()
    model.disconnected.clear()
    model.always("chat", Reply(ANSWER))


@pytest.fixture
def kb_id(admin, database):
    """One of its own for every test, with a heading that can be asked for."""
    with database.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM kb_knowledgebase")
        (count,) = cursor.fetchone()
    made = make_base(admin, f"制度 {count}")
    texts = {
        "差旅": "住宿费每晚不超过四百五十元，凭增值税发票报销。",
        "食堂": "食堂中午十一点半开门，供应两荤两素。",
        "年假": "工作满一年的员工每年享有五天带薪年假。",
    }
    added = [post_texts(admin, made, f"# {title}\n\n{text}", title=title) for title, text in texts.items()]
    chunks_of(admin, [document_id for (document_id,) in added])
    return made


def open_ask(visitor, kb_id):
    visitor.open(f"ask/?kb={kb_id}")
    return visitor.page


def ask(page, words):
    page.fill("#id_query", words)
    page.press("#id_query", "Enter")
    turn = page.locator("[data-ask-turn]").last
    expect(turn.locator("[data-ask-query]")).to_have_text(words)
    expect(turn.locator("[data-ask-answer]")).to_have_attribute("aria-busy", "false")
    return turn


def apart(one, other):
    """By how many pixels their middles differ in height, both measured at one moment: the page may scroll meanwhile."""
    middles = "[a, b].map(each => each.getBoundingClientRect()).map(box => box.top + box.height / 2)"
    first, second = one.evaluate(f"(a, b) => {middles}", other.element_handle())
    return abs(first - second)


def logged(database, page):
    """Returns once the search of the last answer is in the log, which is written within a second."""
    trace_id = re.search(r"traces/([^/]+)/", page.locator("[data-feedback]").last.get_attribute("data-feedback"))[1]
    database.autocommit = True
    with database.cursor() as cursor:
        for _attempt in range(10 * SECONDS):
            cursor.execute("SELECT pg_sleep(0.1), EXISTS (SELECT FROM kb_searchlog WHERE id = %s)", [trace_id])
            if cursor.fetchone()[1]:
                return
    raise AssertionError(f"the search {trace_id} was not logged")


def test_a_suggested_question_is_one_click_from_its_answer_and_that_one_from_its_passage(admin, kb_id):
    page = open_ask(admin, kb_id)
    suggested = page.locator("[data-testid=suggestions] button")
    expect(suggested).to_have_count(3)
    words = suggested.filter(has_text="差旅").inner_text()

    suggested.filter(has_text="差旅").click()
    turn = page.locator("[data-ask-turn]")
    expect(turn.locator("h2")).to_have_text(words)
    expect(turn.locator("[data-testid=answer]")).to_contain_text("四百五十元")
    expect(page).to_have_url(re.compile(r"\?conversation="))

    turn.locator(".answer-cite a").click()
    drawer = page.locator("[data-ask-drawer]")
    expect(drawer.locator("mark")).to_contain_text("凭增值税发票报销")
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    assert page.evaluate("document.activeElement.closest('.answer-cite') !== null")


def test_the_passage_leads_to_its_document_and_the_way_back_to_the_conversation(admin, kb_id):
    page = open_ask(admin, kb_id)
    ask(page, "住宿费报销多少？").locator(".answer-cite a").click()
    page.locator("[data-testid=open-document]").click()
    page.wait_for_url(re.compile(r"/kb/(chunk|document)/\d+/"))
    page.go_back()
    expect(page.locator("[data-testid=answer]")).to_contain_text("四百五十元")
    expect(page.locator("[data-ask-query]").first).to_have_text("住宿费报销多少？")


@pytest.fixture
def cited(admin):
    """Asks about a file that a new knowledge base has; returns the page and the citation."""

    def made(name, data, question):
        kb_id = make_base(admin, f"文件 {name}")
        upload(admin, kb_id, {"name": name, "mimeType": "application/octet-stream", "buffer": data})
        wait_until_ready(admin.page, 1)
        page = open_ask(admin, kb_id)
        return page, ask(page, question).locator(".answer-cite a").first

    return made


def test_a_citation_of_a_pdf_opens_its_page_at_the_passage_beside_the_text(admin, cited):
    admin.page.set_viewport_size({"width": 1440, "height": 700})
    page, citation = cited("manual.pdf", MANUAL, "水泵的油位多久检查一次？")
    citation.click()
    drawer = page.locator("[data-ask-drawer]")
    expect(drawer.get_by_test_id("page-image")).to_be_visible()
    expect(drawer.locator(".kd-place").last).to_be_in_viewport()
    expect(drawer.locator("mark")).to_contain_text(PUMPS)
    expect(drawer.locator("[data-passage-side]").first).to_be_hidden()
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(citation).to_be_focused()


def test_on_a_phone_the_page_and_the_text_are_a_press_apart(admin, cited):
    page, citation = cited("phone.pdf", MANUAL, "水泵的油位多久检查一次？")
    page.set_viewport_size(PHONE)
    citation.click()
    drawer = page.locator("[data-ask-drawer]")
    expect(drawer.locator(".kd-place").last).to_be_in_viewport()
    expect(drawer.locator("mark")).to_be_hidden()
    tab_to(page, "[data-passage-side=text]")
    page.keyboard.press("Enter")
    expect(drawer.locator("mark")).to_be_in_viewport()
    expect(drawer.get_by_test_id("page-image")).to_be_hidden()
    expect(drawer.locator("[data-passage-side=text]")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("document.scrollingElement.scrollWidth") == PHONE["width"]


def test_a_page_that_does_not_come_leaves_the_text_and_says_so(admin, cited):
    page, citation = cited("lost.pdf", MANUAL, "水泵的油位多久检查一次？")
    page.set_viewport_size(PHONE)
    page.route("**/passage/page/?n=*", lambda route: route.abort())
    citation.click()
    drawer = page.locator("[data-ask-drawer]")
    expect(drawer.locator(".kd-page .kb-notice")).to_be_visible()
    expect(drawer.locator("mark")).to_be_visible()
    admin.troubles.clear()


def test_a_citation_of_a_text_opens_it_as_its_file_has_it(admin, cited):
    sections = "\n\n".join(f"## 第{number}节\n\n阀门的**安装**另行规定。" for number in range(60))
    text = f"# 手册\n\n{sections}\n\n## 水泵\n\n{PUMPS}\n\n{sections}"
    page, citation = cited("manual.md", text.encode(), "水泵的油位多久检查一次？")
    citation.click()
    drawer = page.locator("[data-ask-drawer]")
    expect(drawer.get_by_test_id("original-text").locator("strong").first).to_be_attached()
    marked = drawer.locator("[data-chunks]").filter(has_text=PUMPS)
    expect(marked).to_be_in_viewport()


def test_the_way_back_closes_the_passage_and_stays_on_the_page(admin, kb_id):
    admin.page.set_viewport_size(PHONE)
    admin.page.emulate_media(reduced_motion="reduce")
    page = open_ask(admin, kb_id)
    ask(page, "住宿费报销多少？").locator(".answer-cite a").click()
    drawer = page.locator("[data-ask-drawer]")
    expect(drawer.locator("mark")).to_be_visible()
    assert drawer.bounding_box() == {"x": 0, "y": 0, **PHONE}
    page.go_back()
    expect(drawer).to_be_hidden()
    expect(page.locator("[data-testid=answer]")).to_be_visible()
    expect(page).to_have_url(re.compile(r"\?conversation="))


def test_from_a_miss_to_an_answer_that_is_found(admin, kb_id, model):
    page = open_ask(admin, kb_id)
    missed = ask(page, DOGS)
    expect(missed.locator("h3").first).to_have_text("没有足够相关的内容")

    missed.locator("[data-testid=write]").click()
    form = missed.locator("[data-testid=write-form]")
    expect(form.locator("input[name=question]")).to_have_value(DOGS)
    expect(form.locator("textarea")).to_be_focused()
    form.locator("textarea").fill("周五可以，其他日子不行。")
    form.locator("[type=submit]").click()
    model.always("chat", Reply("周五可以[1]。"))
    missed.locator("[data-ask-again]").click()

    found = page.locator("[data-ask-turn]").last
    expect(found.locator("[data-testid=answer]")).to_contain_text("周五可以")
    expect(found.locator("[data-testid=sources]")).to_contain_text(DOGS)


def test_a_near_passage_that_is_the_answer_is_found_from_then_on(admin, kb_id, database):
    page = open_ask(admin, kb_id)
    missed = ask(page, "年会抽奖的奖品清单")
    logged(database, page)  # with the question that is to be resolved
    near = missed.locator("[data-testid=near] li").filter(has_text="工作满一年")
    near.locator("[data-testid=is-answer]").click()
    save = near.locator("[data-testid=write-form] [type=submit]")
    assert apart(save, near.locator("[data-ask-cancel]")) < 1
    save.click()
    expect(near.locator("[data-testid=written]")).to_be_visible()
    assert apart(near.locator("[data-ask-again]"), near.locator(".ask-written a")) < 1
    expect(near.locator("[data-testid=resolved]")).to_contain_text("年会抽奖的奖品清单")
    near.locator("[data-ask-again]").click()
    expect(page.locator("[data-ask-turn]").last.locator("[data-testid=sources]")).to_be_visible()


def test_the_nearest_passage_leads_to_why_it_was_not_found(admin, kb_id):
    page = open_ask(admin, kb_id)
    ask(page, "年会抽奖的奖品清单").locator("[data-testid=why]").click()
    page.wait_for_url("**/why-not/?*")
    expect(page.locator("[name=q]")).to_have_value("年会抽奖的奖品清单")


def test_enter_within_an_input_method_sends_nothing(admin, kb_id, model):
    page = open_ask(admin, kb_id)
    typist = page.context.new_cdp_session(page)
    page.focus("#id_query")
    typist.send("Input.imeSetComposition", {"text": "nian jia", "selectionStart": 8, "selectionEnd": 8})
    is_composing = {"key": "Enter", "bubbles": True, "cancelable": True, "isComposing": True}
    page.dispatch_event("#id_query", "keydown", is_composing)
    typist.send("Input.insertText", {"text": "年假几天？"})
    expect(page.locator("#id_query")).to_have_value("年假几天？")
    expect(page.locator("[data-ask-turn]")).to_have_count(0)

    page.keyboard.press("Shift+Enter")
    expect(page.locator("#id_query")).to_have_value("年假几天？\n")
    page.keyboard.press("Enter")
    expect(page.locator("[data-ask-turn]")).to_have_count(1)
    expect(page.locator("[data-ask-answer]")).to_have_attribute("aria-busy", "false")


def test_an_answer_s_markdown_is_shown_while_it_is_written_and_once_it_is_kept(admin, kb_id, model):
    said = ["**每晚**", "不超过", "四百五十元[1]，见数组 a[0]。\n\n| 项目 | 标准 |\n| --- | --- |\n| 住宿 | 450 元 |"]
    model.once("chat", Reply(said, hang_after=2))
    page = open_ask(admin, kb_id)
    page.fill("#id_query", "住宿费报销多少？")
    page.press("#id_query", "Enter")
    turn = page.locator("[data-ask-turn]")
    expect(turn.locator("[data-ask-text] strong")).to_have_text("每晚")
    page.reload()  # it is read on where it is
    expect(page.get_by_test_id("writing").locator("strong")).to_have_text("每晚")
    model.release()
    answer = page.get_by_test_id("answer")
    expect(answer.locator("td").last).to_have_text("450 元")
    page.reload()
    expect(answer.locator("td").last).to_have_text("450 元")
    expect(answer).not_to_contain_text("**")
    expect(answer).to_contain_text("a[0]")  # no source has this number
    cite = answer.locator(".answer-cite a")
    expect(cite).to_have_attribute("aria-label", re.compile("^来源 1："))
    cite.click()
    expect(page.locator("[data-ask-drawer] mark")).to_contain_text("四百五十元")


def test_an_answer_is_stopped_and_asked_for_again(admin, kb_id, model):
    model.once("chat", Reply(ANSWER * 400, pause_s=0.1))
    page = open_ask(admin, kb_id)
    page.fill("#id_query", "住宿费报销多少？")
    page.press("#id_query", "Enter")
    turn = page.locator("[data-ask-turn]")
    expect(turn.locator("[data-ask-text]")).to_contain_text("住宿费")
    expect(page.locator("[data-ask-send]")).to_be_hidden()

    page.click("[data-ask-stop]")

    expect(turn.locator("[data-testid=failure]")).to_contain_text("已停止")
    assert model.disconnected.wait(SECONDS)
    turn.locator("[data-ask-again]").click()
    expect(page.locator("[data-ask-turn] [data-testid=answer]")).to_contain_text("四百五十元")
    page.reload()
    stopped, whole = page.locator("[data-ask-turn]").all()
    expect(stopped.locator("[data-testid=answer]")).to_contain_text("住宿费")
    expect(stopped.locator("[data-testid=broken]")).to_be_visible()
    expect(whole.locator("[data-testid=broken]")).to_have_count(0)


def test_an_answer_is_taken_up_again_after_a_reload_in_its_middle(admin, kb_id, model):
    model.once("chat", Reply([*ANSWER * 3], hang_after=20))
    page = open_ask(admin, kb_id)
    page.fill("#id_query", "住宿费报销多少？")
    page.press("#id_query", "Enter")
    expect(page.locator("[data-ask-text]")).to_contain_text("住宿费")
    page.reload()
    expect(page.locator("[data-testid=writing]")).to_be_visible()
    model.release()
    expect(page.locator("[data-ask-turn] [data-testid=answer]")).to_contain_text("四百五十元")
    expect(page.locator("[data-ask-turn]")).to_have_count(1)
    expect(page.locator("[data-testid=broken]")).to_have_count(0)


def test_a_connection_that_breaks_is_said_and_the_question_can_be_asked_again(admin, kb_id):
    page = open_ask(admin, kb_id)
    page.route("**/ask/answer/", lambda route: route.abort())
    page.fill("#id_query", "住宿费报销多少？")
    page.press("#id_query", "Enter")
    failure = page.locator("[data-testid=failure]")
    expect(failure).to_be_visible()
    page.unroute("**/ask/answer/")
    failure.locator("[data-ask-again]").click()
    expect(page.locator("[data-testid=answer]")).to_contain_text("四百五十元")
    admin.troubles.clear()


def test_a_session_that_has_ended_keeps_the_question_over_the_login(visit, served, admin, kb_id):
    visitor = visit()
    visitor.log_in("admin", served.password)
    page = open_ask(visitor, kb_id)
    page.context.clear_cookies(name="sessionid")
    page.fill("#id_query", "住宿费报销多少？")
    page.press("#id_query", "Enter")
    page.locator("[data-ask-login]").click()
    page.fill("#id_username", "admin")
    page.fill("#id_password", served.password)
    page.press("#id_password", "Enter")
    expect(page.locator("#id_query")).to_have_value("住宿费报销多少？")
    visitor.troubles.clear()


def test_other_knowledge_bases_bring_other_suggestions_and_the_choice_is_remembered(admin, kb_id):
    other = make_base(admin, f"另外 {kb_id}")
    add_texts(admin, other, "打印机在三楼。", title="打印机")
    page = open_ask(admin, kb_id)
    page.click("[data-ask-bases] summary")
    page.locator(f"[name=kb][value='{kb_id}']").uncheck()
    page.locator(f"[name=kb][value='{other}']").check()
    expect(page.locator("[data-testid=suggestions] button")).to_have_text(["打印机？"])
    page.keyboard.press("Escape")
    expect(page.locator("[data-ask-bases] .ask-panel")).to_be_hidden()
    ask(page, "打印机？")
    admin.open("ask/")
    expect(page.locator("[data-ask-chosen]")).to_have_text(f"另外 {kb_id}")


def test_all_of_it_works_without_a_mouse(admin, kb_id, database):
    page = open_ask(admin, kb_id)
    expect(page.locator("#id_query")).to_be_focused()
    tab_to(page, "[data-ask-bases] summary")
    page.keyboard.press("Enter")
    tab_to(page, "[name=kb]")
    page.keyboard.press("Escape")
    expect(page.locator("[data-ask-bases] summary")).to_be_focused()
    page.focus("#id_query")
    page.keyboard.type("住宿费报销多少？")
    page.keyboard.press("Enter")
    expect(page.locator("[data-testid=answer]")).to_be_visible()
    page.evaluate("document.activeElement.blur()")
    tab_to(page, ".answer-cite a")
    page.keyboard.press("Enter")
    expect(page.locator("[data-ask-drawer] mark")).to_be_visible()
    page.keyboard.press("Escape")
    logged(database, page)
    tab_to(page, "[data-value='1']")
    page.keyboard.press("Enter")
    expect(page.locator("[data-value='1']")).to_have_attribute("aria-pressed", "true")
    tab_to(page, "[data-testid=info] summary")
    page.keyboard.press("Enter")
    tab_to(page, "[data-testid=debug]")


def test_conversations_are_renamed_and_the_list_stays_closed(admin, kb_id):
    page = open_ask(admin, kb_id)
    ask(page, "住宿费报销多少？")
    line = page.locator("[data-testid=conversation].current")
    line.hover()
    # Whether htmx has the form by the time at which a key that is pressed meanwhile is seen to.
    form = "document.querySelector('.ask-rename')"
    page.evaluate(
        "document.addEventListener('htmx:afterSwap',"
        f" () => setTimeout(() => window.works = 'htmx-internal-data' in {form}), {{once: true}})"
    )
    line.locator("button").click()
    page.wait_for_function("'works' in window")
    assert page.evaluate("window.works")
    line.locator("input[name=title]").fill("住宿费")
    line.locator("input[name=title]").press("Enter")
    expect(line.locator(".ask-title")).to_have_text("住宿费")

    page.click("[data-ask-list-close]")
    expect(page.locator("[data-ask-nav]")).to_be_hidden()
    expect(page.locator("[data-ask-list-open]")).to_be_focused()
    page.reload()
    expect(page.locator("[data-ask-nav]")).to_be_hidden()
    page.click("[data-ask-list-open]")
    expect(page.locator("[data-ask-nav]")).to_be_visible()


def test_on_a_phone_the_list_is_a_sheet_and_nothing_is_wider(admin, kb_id):
    admin.page.set_viewport_size(PHONE)
    page = open_ask(admin, kb_id)
    ask(page, "住宿费报销多少？")
    assert page.evaluate("document.scrollingElement.scrollWidth") == PHONE["width"]
    expect(page.locator("[data-ask-nav]")).to_be_hidden()
    page.evaluate("scrollTo(0, 0)")
    page.click("[data-ask-list-open]")
    expect(page.locator("[data-ask-sheet] [data-ask-nav]")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("[data-ask-nav]")).to_be_hidden()


def test_the_question_is_read_whole_above_its_answer(admin, kb_id):
    page = open_ask(admin, kb_id)
    page.set_viewport_size({"width": 1280, "height": 500})
    for words in ("住宿费报销多少？", "食堂几点开门？"):
        ask(page, words)

    top = page.evaluate(
        "document.querySelector('[data-ask-turn]:last-of-type').getBoundingClientRect().top"
        " - document.querySelector('.kb-header').getBoundingClientRect().bottom"
    )
    assert top >= 0


def test_no_text_shows_below_the_composer_and_no_focus_hides_behind_it(admin, kb_id):
    """However far a long conversation is scrolled."""
    page = open_ask(admin, kb_id)
    for words in ("住宿费报销多少？", "食堂几点开门？", "年假几天？"):
        ask(page, words)
    page.set_viewport_size({"width": 1280, "height": 420})
    for share in (0, 0.4, 0.8):
        page.evaluate("share => scrollTo(0, share * document.body.scrollHeight)", share)
        below = page.evaluate(
            """() => [0.2, 0.5, 0.8].map(share => document.elementFromPoint(
                document.querySelector('.ask-form').getBoundingClientRect().left + 20 + share * 600, innerHeight - 3
            ).closest('.ask-form') !== null)"""
        )
        assert below == [True] * 3
    page.evaluate("scrollTo(0, 0)")
    page.locator(".ask-actions .ask-act").last.focus()
    covered = page.evaluate(
        """() => document.activeElement.getBoundingClientRect().bottom <= document.querySelector('.ask-form').getBoundingClientRect().top"""
    )
    assert covered
