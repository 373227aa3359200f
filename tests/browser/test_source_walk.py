"""A curator keeps a Git repository in a knowledge base, in a real browser: adds it, asks for a row of its tables, runs it again."""

import re
import threading

import pytest
from playwright.sync_api import expect

from retrieval.eval.judged_sets import squeezed
from tests.browser.conftest import SECONDS
from tests.browser.steps import make_base, search
from tests.git_server import Bare, GitServer
from tests.kb.ingest.parser.documents import make_table_pdf

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser
OWN_SERVER = True  # it may read from the loopback

PRICES = """# TH 系列价目表

## 型号与质保

| 型号 | 名称 | 单价（元） | 质保（月） |
|---|---|---|---|
| TH-01 | 智能温控器 | 399 | 24 |
| TH-02 | 无线温控器 | 459 | 36 |
| TH-03 | 地暖分水器 | 1280 | 60 |
"""
POWERS = [["Model", "Power (W)", "Weight (kg)"], ["HP-11", "1150", "38.5"], ["HP-12", "2300", "61.2"]]
FILES = {
    "价目表.md": PRICES,
    "heat-pumps.pdf": make_table_pdf(POWERS),
    "安装说明.md": "# 安装说明\n\n安装前应当切断电源，并用验电笔确认线路不带电。\n",
}
SAID = {
    "zh-CN": {"reading": "正在读取：0 / 3", "added": "新增：3", "moved": "已移动：1", "changed": "更改：1"},
    "en": {"reading": "Reading: 0 of 3", "added": "new: 3", "moved": "moved: 1", "changed": "changed: 1"},
}


@pytest.fixture(scope="module")
def variables():
    return {"WEB_ALLOWED_HOSTS": "127.0.0.1"}


@pytest.fixture
def server(tmp_path):
    with GitServer(tmp_path / "served") as each:
        yield each


@pytest.fixture
def contents_wait(server):
    """Holds the answer with the files' contents back until the event is set."""
    seen = threading.Event()

    def hold(_environ):
        if server.fetches() > 1:  # the first is of the folders
            seen.wait(SECONDS)

    server.answer = hold
    yield seen
    seen.set()


def rows_of(visitor, kb_id, query):
    return [squeezed(row.text) for row in search(visitor, kb_id, query) if not row.cut_by]


@pytest.mark.parametrize("language", ["zh-CN", "en"])
def test_a_curator_adds_a_git_source_and_finds_the_row_of_a_table(
    visit, admin_session, server, contents_wait, language
):
    said = SAID[language]
    bare = Bare(server.folder / "handbook.git")
    bare.commit(FILES)
    curator = visit(language=language, storage_state=admin_session)
    page = curator.page
    kb_id = make_base(curator, f"产品资料 {language}")

    curator.open("kb/source/add/")
    page.select_option("#id_knowledge_base", kb_id)
    page.fill("#id_name", f"handbook {language}")
    page.select_option("#id_kind", "git")
    page.fill("#id_setting_git_url", server.url("handbook.git"))
    contents_wait.set()  # a test that asks for contents, too, gets them
    page.click("[data-testid=test]")
    expect(page.locator("[data-testid=preview] li")).to_have_count(3)

    contents_wait.clear()
    server.posts.clear()
    with page.expect_navigation():
        page.click("[name=_save]")
    page.locator("#result_list a", has_text=f"handbook {language}").first.click()
    expect(page.locator("[data-testid=progress]")).to_contain_text(said["reading"])
    contents_wait.set()
    state = page.locator(".kb-state")
    expect(state).to_have_attribute("data-status", "done")
    expect(state).to_contain_text(said["added"])
    source = page.url

    curator.open(f"kb/document/?knowledge_base__id__exact={kb_id}")
    expect(page.locator("[data-status=ready]")).to_have_count(3)
    [first, *_] = rows_of(curator, kb_id, "TH-02 的质保期是多少个月？")
    assert squeezed("| 型号 | 名称 | 单价（元） | 质保（月） |") in first
    assert squeezed("| TH-02 | 无线温控器 | 459 | 36 |") in first
    [first, *_] = rows_of(curator, kb_id, "power of the HP-12")
    assert squeezed("| Model | Power (W) | Weight (kg) |") in first
    assert squeezed("| HP-12 | 2300 | 61.2 |") in first

    bare.commit(
        {"资料/价目表 2026.md": PRICES, "安装说明.md": f"{FILES['安装说明.md']}\n完工后填写验收单。\n"},
        gone=["价目表.md"],
    )
    page.goto(source)
    with page.expect_navigation():
        page.click("form[action$='/run/'] button")
    expect(state).to_have_attribute("data-status", "done")
    expect(state).to_contain_text(said["moved"])
    expect(state).to_contain_text(said["changed"])
    page.locator("#content a[href*='/kb/sourceitem/']").first.click()
    expect(page.locator("#result_list")).to_contain_text(re.compile("资料/价目表 2026.md"))
    expect(page.locator("#result_list tbody tr")).to_have_count(3)
