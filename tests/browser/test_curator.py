"""What a curator does, from the first log-in to the search that explains itself, in a real browser."""

import re
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import expect

from kb.operations.services.bootstrap import demo_files
from tests.browser.steps import TRAVEL_PDF, back_to_results, make_base, read_rows, search, upload, wait_until_ready

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser

# 㐂 and 𠮷 are in GB18030 and not in GBK.
CANTEEN_TXT = {
    "name": "食堂须知.txt",
    "mimeType": "text/plain",
    "buffer": "食堂须知\n\n食堂每天十一点半开饭，凭工卡就餐。𠮷野窗口供应牛肉饭，㐂庆窗口供应饺子。\n".encode(
        "gb18030"
    ),
}
BATTERY_TXT = {
    "name": "电池.txt",
    "mimeType": "text/plain",
    "buffer": "石墨烯电池\n\n石墨烯电池的保修期是两年，请勿拆解。\n".encode(),
}
LAST_DIGIT = 1e-5


def read_weights(page):
    """Of the only searched knowledge base, by channel that was asked."""
    shown = dict(
        page.locator("[data-kb-id] [data-channel]:has([data-testid=weight])").evaluate_all(
            "all => all.map(one => [one.dataset.channel, one.querySelector('[data-testid=weight]').textContent])"
        )
    )
    return {channel: float(re.search(r"\d+(\.\d+)?", words)[0]) for channel, words in shown.items()}


def read_form(page):
    return page.locator("[data-sd-form]").evaluate(
        "form => [...form.elements].filter(field => field.name).map(field => "
        "[field.name, field.type === 'checkbox' ? field.checked : field.value])"
    )


def tier(page):
    return page.locator("[data-testid=cache-tier]").get_attribute("data-tier")


def debug_path(kb_id, query):
    return f"search-debug/?{urlencode({'kb': kb_id, 'q': query})}"


def test_a_curator_uploads_two_files_and_sees_why_each_result_stands_where_it_does(make_curator, served):
    curator = make_curator("lin")
    page = curator.page
    kb_id = make_base(curator, "行政制度")

    with served.worker_resting():
        upload(curator, kb_id, TRAVEL_PDF, CANTEEN_TXT)
        expect(page.locator("[data-status=pending]")).to_have_count(2)
        page.evaluate("window.wasNotReloaded = true")
    wait_until_ready(page, 2)
    assert page.evaluate("window.wasNotReloaded")

    rows = search(curator, kb_id, "住宿费报销", top_k="2", threshold="0")
    first, weights = rows[0], read_weights(page)
    assert weights == {"vector": 0.1, "bm25": 0, "characters": 0.9, "lexical": 0.45}
    assert "住宿费每晚不超过四百五十元" in first.text
    assert re.search(r"第\s*2\s*页", first.text)
    assert first.place == "1"
    assert first.ranks == {"vector": 1, "bm25": 1, "characters": 1, "lexical": 1, "fused": 1, "rerank": 1}
    assert 0 < first.scores["vector"] <= 1
    assert first.scores["bm25"] > 0
    assert {"住宿费", "报销"} <= first.marked

    assert len(rows) == 3
    assert [row.cut_by for row in rows] == ["", "", "top_k"]
    for row in rows:
        assert row.ranks["vector"] is not None
        assert row.scores["fused"] == pytest.approx(row.fused(weights), abs=LAST_DIGIT)
        assert 0 <= row.scores["rerank"] <= 1
    assert [row.ranks["rerank"] for row in rows] == [1, 2, 3]
    assert [row.scores["order"] for row in rows] == sorted((row.scores["order"] for row in rows), reverse=True)

    page.click("[data-testid=all-notices] > summary")
    assert page.locator("[data-testid=degraded] [data-code=hashing_embedder]").is_visible()
    spent = page.locator("[data-testid=stages] tr[data-stage]").evaluate_all(
        "all => Object.fromEntries(all.map(one => [one.dataset.stage, Number(one.cells[1].textContent)]))"
    )
    assert {"analysis", "vector", "bm25", "fusion", "passages", "rerank", "gate"} <= spent.keys()
    assert min(spent.values()) >= 0
    assert tier(page) == "process"  # the search whose results were shown before has built it

    shared, form = page.url, read_form(page)
    asked = {"kb": [kb_id], "q": ["住宿费报销"], "top_k": ["2"], "threshold": ["0"], "view": ["process"]}
    assert parse_qs(urlsplit(shared).query) == asked
    page.reload()
    assert page.url == shared
    assert read_form(page) == form
    assert [row.chunk_id for row in read_rows(page)] == [row.chunk_id for row in rows]

    rows = search(curator, kb_id, "𠮷野窗口有什么")
    assert "𠮷野窗口供应牛肉饭，㐂庆窗口供应饺子" in rows[0].text
    assert tier(page) == "process"


def test_an_edited_chunk_shows_its_new_text_and_is_found_by_a_new_word(make_curator):
    curator = make_curator("chen")
    page = curator.page
    kb_id = make_base(curator, "可改的制度")
    upload(curator, kb_id, TRAVEL_PDF)
    wait_until_ready(page, 1)
    assert search(curator, kb_id, "磁悬浮")[0].ranks["bm25"] is None
    before = search(curator, kb_id, "高速铁路")[0]

    back_to_results(page)
    row = page.locator(f"#chunk-{before.chunk_id}")
    row.locator("[data-rt-edit]").click()
    row.locator("textarea").fill("交通工具优先选择磁悬浮列车。")
    with page.expect_navigation():
        row.locator("[type=submit]:not([form])").click()

    after = search(curator, kb_id, "磁悬浮")[0]
    assert after.chunk_id == before.chunk_id
    assert after.ranks["bm25"] == 1
    assert "磁悬浮" in after.marked
    assert "交通工具优先选择磁悬浮列车。" in after.text
    assert "高速铁路" not in after.text
    assert all("高速铁路" not in row.text for row in search(curator, kb_id, "高速铁路"))


def test_for_a_stranger_the_knowledge_base_does_not_exist(make_curator):
    owner, stranger = make_curator("zhao"), make_curator("sun")
    kb_id = make_base(owner, "赵的私房库")
    upload(owner, kb_id, CANTEEN_TXT)
    wait_until_ready(owner.page, 1)
    asked = {"query": "食堂", "knowledge_base_ids": [int(kb_id)]}
    paths = [debug_path(kb_id, "食堂"), f"kb/knowledgebase/{kb_id}/change/", f"kb/document/upload/?kb={kb_id}"]

    assert [owner.open(path).status for path in paths] == [200] * 3
    assert owner.call("GET", f"knowledge-bases/{kb_id}/").status == 200
    assert owner.call("POST", "search/", asked).json()["results"]

    assert [stranger.open(path).status for path in paths[:2]] == [404] * 2
    assert stranger.troubles == ["404 /admin/search-debug/", f"404 /admin/kb/knowledgebase/{kb_id}/change/"]
    stranger.troubles.clear()
    assert stranger.call("GET", f"knowledge-bases/{kb_id}/").status == 404
    assert stranger.call("POST", "search/", asked).status == 404
    for path in ("search-debug/", "kb/knowledgebase/", "kb/document/", paths[2]):
        assert stranger.open(path).status == 200
        assert "赵的私房库" not in stranger.page.content()


def test_a_deleted_document_is_gone_from_the_next_search(make_curator):
    curator = make_curator("qian")
    page = curator.page
    kb_id = make_base(curator, "会变小的库")
    upload(curator, kb_id, TRAVEL_PDF, CANTEEN_TXT)
    wait_until_ready(page, 2)
    rows = search(curator, kb_id, "食堂几点开饭")
    assert "食堂每天十一点半开饭" in rows[0].text

    curator.open(f"kb/document/?knowledge_base__id__exact={kb_id}")
    page.get_by_role("link", name="食堂须知").first.click()
    with page.expect_navigation(url="**/delete/"):
        page.click("#details summary")
        page.locator("a[href*='/kb/document/'][href$='/delete/']").click()
    expect(page.locator("form:has([name=post])")).to_be_visible()
    assert "食堂须知" in page.locator("body").inner_text()
    with page.expect_navigation(url=re.compile(r"/documents/(\?.*)?$")):
        page.locator("form:has([name=post]) [type=submit]").click()

    left = search(curator, kb_id, "食堂几点开饭")
    assert {row.chunk_id for row in left} == {row.chunk_id for row in rows} - {rows[0].chunk_id}
    assert all("食堂" not in row.text for row in left)


def test_a_dictionary_word_is_tried_saved_tokenised_by_the_worker_and_then_found_whole(make_curator):
    curator = make_curator("wu")
    page = curator.page
    kb_id = make_base(curator, "材料库")
    upload(curator, kb_id, BATTERY_TXT, CANTEEN_TXT)
    wait_until_ready(page, 2)
    assert "石墨烯" not in search(curator, kb_id, "石墨烯")[0].marked

    curator.open(f"kb/knowledgebase/{kb_id}/tokenizer/")
    page.fill("[name=text]", "石墨烯电池的保修期")
    page.fill("[name=dictionary]", "石墨烯 0")
    page.click("[name=action][value=try]")
    expect(page.locator("#tokenizer-form")).to_contain_text("第 1 行")
    page.fill("[name=dictionary]", "石墨烯 1000")
    page.click("[name=action][value=try]")
    expect(page.locator("[data-testid=preview] .gained", has_text=re.compile("^石墨烯$"))).to_have_count(1)
    expect(page.locator("[data-testid=dry-run]")).to_contain_text("1")
    assert "石墨烯" not in search(curator, kb_id, "石墨烯")[0].marked  # trying changes nothing

    curator.open(f"kb/knowledgebase/{kb_id}/tokenizer/")
    former = page.locator("#tokenizer-active code").inner_text()
    page.fill("[name=dictionary]", "石墨烯 1000")
    page.click("[name=action][value=save]")
    page.click("[data-testid=confirm] [name=action][value=confirm]")
    expect(page.locator("#tokenizer-active code")).not_to_have_text(former)

    first = search(curator, kb_id, "石墨烯")[0]
    assert "石墨烯" in first.marked
    assert "石墨烯电池" in first.text
    assert first.ranks["bm25"] == 1


@pytest.mark.parametrize(
    ("language", "name", "query", "answer"),
    [
        ("zh", "演示知识库", "晚上有嗒嗒的声音正常吗", "继电器吸合和断开的声音"),
        ("en", "Demo knowledge base", "which voice assistants are supported", "Tmall Genie"),
    ],
    ids=["zh", "en"],
)
def test_the_demo_answers_in_both_languages(admin, language, name, query, answer):
    page = admin.page
    admin.open("search-debug/")
    kb_id = page.get_by_label(name, exact=True).get_attribute("value")
    admin.open(f"kb/document/?knowledge_base__id__exact={kb_id}")
    wait_until_ready(page, len(list(demo_files(language))))
    rows = search(admin, kb_id, query)
    assert answer in rows[0].text
    assert rows[0].scores["rerank"] > 0


def test_the_language_switch_changes_every_page(visit, served):
    visitor = visit(language="en")
    page = visitor.page
    visitor.open("")
    assert (page.locator("html").get_attribute("lang"), page.get_by_role("button", name="Log in").count()) == ("en", 1)
    page.click("button[name=language][value=zh-hans]")
    expect(page.locator("html")).to_have_attribute("lang", "zh-hans")
    expect(page.get_by_role("button", name="登录")).to_be_visible()

    visitor.log_in("admin", served.password)
    visitor.open("search-debug/")
    assert page.locator("h1").inner_text() == "检索测试"
    page.get_by_text("admin", exact=True).click()
    page.get_by_role("button", name="English").click()
    expect(page.locator("html")).to_have_attribute("lang", "en")
    expect(page.locator("h1")).to_have_text("Retrieval test")
