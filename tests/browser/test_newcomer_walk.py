"""Somebody new uploads ten files and asks thirty questions of them and of the demo, in a real browser, at the defaults."""

from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from retrieval.eval.judged_sets import squeezed
from tests.browser.steps import make_base, read_rows, upload
from tests.newcomer import FOLDER, questions

# All in this file share one server; `--dist loadfile` keeps them in one process.
pytestmark = pytest.mark.browser

MINUTES_TO_READ_A_SCAN = 10
DEMOS = {"demo-zh": "演示知识库", "demo-en": "Demo knowledge base"}


def kb_ids(visitor):
    """By name, as the API lists them."""
    return {kb["name"]: str(kb["id"]) for kb in visitor.call("GET", "knowledge-bases/").json()["results"]}


def test_a_newcomer_finds_the_answers(admin):
    page = admin.page
    files = sorted((FOLDER / "files").iterdir())
    bases = {"files": make_base(admin, "我的文件")}
    upload(admin, bases["files"], *files)
    expect(page.locator("[data-status=ready]")).to_have_count(len(files), timeout=MINUTES_TO_READ_A_SCAN * 60_000)
    known = kb_ids(admin)
    bases |= {name: known[shown] for name, shown in DEMOS.items()}

    answered, certain, false = [], [], []
    for question in questions():
        admin.open(f"search-debug/?{urlencode({'kb': bases[question.kb], 'q': question.query, 'view': 'process'})}")
        rows = [row for row in read_rows(page) if not row.cut_by]
        is_certain = page.locator("[data-testid=candidates] [data-cut=''] .sd-relevance.high").count() > 0
        if question.document is None:
            false += [question.id] if is_certain else []
        else:
            certain += [question.id] if is_certain else []
            found = any(squeezed(question.answer) in squeezed(row.text) for row in rows)
            answered += [question.id] if found else []

    assert len(answered) >= 19
    assert len(certain) >= 12
    assert false == []
