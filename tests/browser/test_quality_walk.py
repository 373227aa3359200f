"""The way of a change to the search, in a real browser: judged, measured, tried in a draft, compared, published."""

import re
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visitor
from tests.browser.steps import (
    TRAVEL_PDF,
    add_texts,
    back_to_results,
    make_base,
    save_profile,
    search,
    tab_to,
    upload,
    wait_until_ready,
)

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser

CANTEEN_TXT = {
    "name": "食堂须知.txt",
    "mimeType": "text/plain",
    "buffer": "食堂须知\n\n食堂每天十一点半开饭，凭工卡就餐，无需发票。\n".encode(),
}
QUERIES = ("住宿费报销标准", "食堂几点开饭")
TEXTS = ("食堂每天十一点半开饭，凭工卡就餐。", "住宿费每晚不超过四百五十元，凭增值税发票报销。")
SET = "行政问题"
DRAFT = "语义优先"
RELEVANT, PARTLY, IRRELEVANT = 2, 1, 0

# What stands out of the window on the right and is neither in a box that scrolls nor hidden from the eye; the first few.
READ_TOO_WIDE = """() => {
    const isKept = box => getComputedStyle(box).overflowX.match("auto|scroll") || box.getBoundingClientRect().width <= 1;
    const isBoxed = box => box && (isKept(box) || isBoxed(box.parentElement));
    const isOut = box => box.getBoundingClientRect().right > innerWidth + 1 && box.checkVisibility() && !isBoxed(box);
    const out = [...document.querySelectorAll("#content *")].filter(isOut).map(box => box.outerHTML.slice(0, 120));
    const page = document.scrollingElement;
    return [...(page.scrollWidth > innerWidth ? [`the page is ${page.scrollWidth} wide`] : []), ...out].slice(0, 3);
}"""


def grade_button(page, chunk_id, grade):
    return page.locator(f"[data-jd-chunk='{chunk_id}'] button[data-grade='{grade}']")


def judge(page, chunk_id, grade):
    """Clicks a grade; the page says at once that it is given."""
    button = grade_button(page, chunk_id, grade)
    expect(button).to_have_attribute("aria-pressed", "false")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")


def use_new_set(page, name):
    page.click(".jd-which > summary")
    page.fill("[name=new_eval_set]", name)
    page.click("[data-jd-use]")
    expect(page.locator("[name=eval_set]")).to_have_value(name)


def follow(page, link, url):
    """Clicks a link of the page; what it leads to is loaded then."""
    with page.expect_navigation(url=url):
        page.locator(link).first.click()


def make_key(visitor):
    """Makes an API key in the admin's form; returns its secret."""
    page = visitor.page
    visitor.open("kb/apikey/add/")
    page.fill("#id_name", "app")
    page.click("[name=_save]")
    return page.locator("#api-key-secret").inner_text()


def ask_api(program, key, kb_id, query):
    """The API's answer to a program that has a key and no session."""
    answer = program.page.request.post(
        f"{program.url}/api/v1/search/",
        data={"query": query, "knowledge_base_ids": [int(kb_id)]},
        headers={"Authorization": f"Bearer {key}"},
    )
    assert answer.status == 200, answer.text()
    return answer.json()


def figures(page):
    """By stage and metric, as the page shows them."""
    cells = page.locator("[data-testid=stages] [data-stage] [data-metric]")
    return {
        (stage, metric): words
        for stage, metric, words in cells.evaluate_all(
            "all => all.map(cell => [cell.closest('[data-stage]').dataset.stage, cell.dataset.metric, cell.innerText])"
        )
    }


def wait_for_figures(page):
    expect(page.locator("[data-testid=stages]")).to_be_visible()
    return figures(page)


def judge_three(curator, kb_id):
    """Three results of the first query and one of the second, in a new set."""
    page = curator.page
    rows = search(curator, kb_id, QUERIES[0], top_k="3", threshold="0")
    back_to_results(page)
    graded = dict(zip((row.chunk_id for row in rows), (RELEVANT, PARTLY, IRRELEVANT), strict=True))
    use_new_set(page, SET)
    for chunk_id, grade in graded.items():
        judge(page, chunk_id, grade)
    expect(page.locator("[data-jd-judged]")).to_contain_text("3")
    page.reload()
    for chunk_id, grade in graded.items():
        expect(grade_button(page, chunk_id, grade)).to_have_attribute("aria-pressed", "true")
    first, *_rest = search(curator, kb_id, QUERIES[1], threshold="0")
    back_to_results(page)
    judge(page, first.chunk_id, RELEVANT)


def evaluate(curator, served):
    """From the list of sets to a run's figures, which come without the page being loaded again by hand."""
    page = curator.page
    curator.open("kb/evalset/")
    with page.expect_navigation(url=re.compile(r"/kb/evalset/\d+/change/")):
        page.get_by_role("link", name=SET, exact=True).click()
    expect(page.locator("[data-testid=judged]")).to_contain_text("4")
    follow(page, "a[href*='/kb/evalrun/add/?eval_set=']", "**/kb/evalrun/add/?eval_set=*")
    with served.worker_resting():
        with page.expect_navigation(url=re.compile(r"/kb/evalrun/\d+/change/")):
            page.click("#er-form [type=submit]")
        expect(page.locator("[data-testid=live]")).to_have_attribute("data-status", "pending")
    return wait_for_figures(page)


def change_weights(curator, kb_id):
    """Tries other weights in the retrieval test and saves them there as a draft."""
    page = curator.page
    search(curator, kb_id, QUERIES[0], vector_weight="0.9", keyword_weight="0.1")
    back_to_results(page)
    page.click("[data-testid=draft] summary")
    page.fill("[name=draft-name]", DRAFT)
    with page.expect_navigation(url="**/search-debug/?*profile=*"):
        page.click("[data-testid=draft] [type=submit]")
    expect(page.locator("[data-testid=profile]")).to_have_text(f"{DRAFT} v1")


def compare_on_the_set(curator, served, kb_id):
    """From the search under the draft to the figures of both, the draft being B."""
    page = curator.page
    follow(page, "[data-testid=compare]", "**/compare/?*")
    follow(page, "[data-testid=summary] a[href^='?']", "**/compare/?*")
    follow(page, "[data-testid=summary] a[href*='/compare/runs/start/']", "**/compare/runs/start/?*")
    expect(page.locator("#id_a_profile")).to_have_value("")
    expect(page.locator("#id_b_profile")).to_have_value(f"{kb_id}/{DRAFT}@1")
    of_the_set = page.locator("#id_eval_set option", has_text=SET)
    page.select_option("#id_eval_set", of_the_set.get_attribute("value"))
    with served.worker_resting():
        with page.expect_navigation(url="**/compare/runs/?*"):
            page.click("[data-testid=start] [type=submit]")
        expect(page.locator("[data-testid=live] [data-status=pending]")).to_have_count(2)
    return wait_for_figures(page)


def publish(page):
    """From the comparison by way of B's run and its profile."""
    follow(page, "[data-testid=runs] .cp-run:last-child h2 a", "**/kb/evalrun/*/change/")
    follow(page, "[data-testid=profile] a", "**/retrieval-profiles/*/")
    follow(page, "[data-testid=versions] a[href$='/publish/']", "**/publish/")
    expect(page.locator("[data-testid=differences] [data-setting=vector_weight]")).to_contain_text("0.9")
    expect(page.locator("#id_adopt")).to_be_checked()
    with page.expect_navigation(url="**/retrieval-profiles/*/"):
        page.click("[data-testid=confirm] [type=submit]")


def test_a_change_is_judged_measured_compared_and_published_and_then_the_api_goes_by_it(make_curator, visit, served):
    curator = make_curator("lin")
    page = curator.page
    kb_id = make_base(curator, "行政制度")
    upload(curator, kb_id, TRAVEL_PDF, CANTEEN_TXT)
    wait_until_ready(page, 2)
    key, program = make_key(curator), visit()

    judge_three(curator, kb_id)
    measured = evaluate(curator, served)
    assert {stage for stage, _metric in measured} == {"bm25", "vector", "fused", "reranked"}
    assert measured["fused", "recall@5"].startswith("1.000")

    change_weights(curator, kb_id)
    compared = compare_on_the_set(curator, served, kb_id)
    assert compared.keys() == measured.keys()
    assert compared["fused", "recall@5"].startswith("1.000 → 1.000")
    expect(page.locator("[data-testid=changes]")).to_contain_text("0.9")
    expect(page.locator("[data-testid=verdicts] li").first).to_be_visible()
    expect(page.locator("[data-testid=queries] [data-list]").first).to_be_visible()
    assert ask_api(program, key, kb_id, QUERIES[0])["profile"] == {"name": "keyword-led", "version": 1}

    publish(page)
    assert ask_api(program, key, kb_id, QUERIES[0])["profile"] == {"name": DRAFT, "version": 1}


def test_a_result_is_judged_with_the_keyboard_alone(make_curator):
    curator = make_curator("wang")
    page = curator.page
    kb_id = make_base(curator, "键盘库")
    add_texts(curator, kb_id, *TEXTS)

    curator.open("search-debug/")
    tab_to(page, "#id_q")
    page.keyboard.type("食堂几点开饭")
    tab_to(page, f"[name=kb][value='{kb_id}']")
    if not page.is_checked(f"[name=kb][value='{kb_id}']"):
        page.keyboard.press("Space")
    with page.expect_navigation(url="**/search-debug/?*"):
        page.keyboard.press("Enter")
    tab_to(page, "[data-jd-chunk] button[data-grade='2']")
    page.keyboard.press("Enter")

    expect(page.locator("[data-jd-chunk] button[data-grade='2']").first).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("document.activeElement.matches(\"[data-jd-chunk] button[data-grade='2']\")")


@pytest.fixture(scope="module")
def pages(chromium, served, admin_session):
    """The pages of the group with something on each of them, by name."""
    context = chromium.new_context(storage_state=admin_session)
    visitor = Visitor(context.new_page(), served.url)
    visitor.open("")
    kb_id = visitor.call("POST", "knowledge-bases/", {"name": "窄屏上的知识库"}).json()["id"]
    chunk_id, *_others = add_texts(visitor, kb_id, *TEXTS)
    profile = save_profile(visitor, kb_id, "向量优先", vector_weight=0.9, keyword_weight=0.1)
    query = "食堂几点开饭"
    eval_set = visitor.call("POST", "eval-sets/", {"knowledge_base_id": kb_id, "name": "窄屏"}).json()["id"]
    judged = {"query": query, "chunk_id": chunk_id, "grade": 2}
    assert visitor.call("PUT", f"eval-sets/{eval_set}/judgments/", judged).ok
    a, b = (
        visitor.call("POST", "eval-runs/", {"eval_set_id": eval_set, **under}).json()["id"]
        for under in ({}, {"profile": profile})
    )
    visitor.open(f"compare/runs/?a={a}&b={b}")
    wait_for_figures(visitor.page)
    visitor.open("retrieval-profiles/")
    of_profile = (
        visitor.page.get_by_role("link", name=profile, exact=True).get_attribute("href").removeprefix("/admin/")
    )
    context.close()
    asked = urlencode({"kb": kb_id, "q": query})
    return {
        "search debug": f"search-debug/?{asked}&threshold=0",
        "why not": f"why-not/?{asked}&chunk={chunk_id}&threshold=0.99",
        "compare a query": f"compare/?{asked}&{urlencode({'b_profile': profile})}",
        "compare on a set": "compare/runs/start/",
        "compare runs": f"compare/runs/?a={a}&b={b}",
        "calibration": f"calibration/?run={a}",
        "evaluation sets": "kb/evalset/",
        "evaluation set": f"kb/evalset/{eval_set}/change/",
        "evaluation runs": "kb/evalrun/",
        "evaluation run": f"kb/evalrun/{a}/change/",
        "queries of a run": f"kb/evalrun/{a}/queries/",
        "new run": "kb/evalrun/add/",
        "profiles": "retrieval-profiles/",
        "profile": of_profile,
        "publishing": f"{of_profile}publish/",
        "draft of a profile": f"{of_profile}edit/",
        "new profile": "retrieval-profiles/add/",
        "failed queries": "kb/failedquery/",
        "dashboard": "",
    }


@pytest.mark.parametrize("language", ["zh-CN", "en"])
def test_no_page_scrolls_sideways_on_a_narrow_screen(visit, admin_session, pages, language):
    visitor = visit(language=language, storage_state=admin_session)
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    wide = {}
    for name, path in pages.items():
        assert visitor.open(path).status == 200, name
        expect(visitor.page.locator("html")).to_have_attribute("lang", re.compile(language[:2]))
        visitor.page.evaluate("document.fonts.ready.then(() => null)")
        wide[name] = visitor.page.evaluate(READ_TOO_WIDE)
    assert wide == {name: [] for name in pages}
