"""What the check for dead links finds, and what it lets pass."""

import pytest

from tests.docs.links import faults_of
from tests.docs.pages import Page


@pytest.fixture
def faults(tmp_path):
    """Writes the pages of a folder `docs`, by name, and says what is wrong with docs/page.md."""

    def check(text, **others):
        docs = tmp_path / "docs"
        docs.mkdir()
        (tmp_path / "README.md").write_text("# Readme\n\n## Licence\n")
        (docs / "picture.png").touch()
        pages = {"page": f"# Page\n\n[中文](page.zh-CN.md)\n\n{text}", "page.zh-CN": "# 页\n\n[English](page.md)\n"}
        for name, content in (pages | {name.replace("_", "."): text for name, text in others.items()}).items():
            (docs / f"{name}.md").write_text(content)
        return [fault.partition("page.md:")[2] for fault in faults_of(Page(docs / "page.md"))]

    return check


@pytest.mark.parametrize(
    "text",
    [
        "## A heading, `code` & more\n\n[there](#a-heading-code--more)",
        "## Twice\n\n## Twice\n\n[the second](#twice-1)",
        "## 检索 测试（A/B）\n\n[there](#检索-测试ab)",
        "[beside](../README.md#licence)",
        "![what it shows](picture.png)",
        "[outside](https://example.com/a?b=c#d), <https://example.com>, [post](mailto:a@example.com)",
        "`[no](link.md)`\n\n```\n[nor](this.md)\n```",
    ],
)
def test_what_leads_somewhere_passes(faults, text):
    assert faults(text) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[a](missing.md)", "5: missing.md: there is no such file"),
        ("one\n\n[a](#missing)", "7: #missing: there is no such heading"),
        ("[a](../README.md#licences)", "5: ../README.md#licences: there is no such heading"),
        ("[a][b]\n\n[b]: missing.md", "5: missing.md: there is no such file"),
        ("![what it shows](missing.png)", "5: missing.png: there is no such file"),
        ('<img src="missing.png" alt="what it shows">', "5: missing.png: there is no such file"),
        ("![](picture.png)", "5: a picture without a text: ![what it shows](…)"),
        ("[a](/docs/page.md)", "5: /docs/page.md: there is no such file"),
        ("[a](.)", "5: .: there is no such file"),
        ("[a](https:/example.com)", "5: https:/example.com: not an address that starts with https://, http:// or mailto:"),
        ("[a](ftp://example.com)", "5: ftp://example.com: not an address that starts with https://, http:// or mailto:"),
        ("[a](mailto:nobody)", "5: mailto:nobody: not an address that starts with https://, http:// or mailto:"),
    ],
)  # fmt: skip
def test_what_leads_nowhere_is_found(faults, text, fault):
    assert faults(text) == [fault]


def test_a_page_links_to_pages_of_its_own_language(faults):
    assert faults("[a](more.zh-CN.md)", more="# More\n", **{"more_zh-CN": "# 更多\n"}) == [
        "5: more.zh-CN.md: in another language; link to more.md"
    ]


def test_a_page_names_the_page_in_the_other_language_in_its_third_line(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "page.md").write_text("# Page\n\nText.\n")
    alone = list(faults_of(Page(docs / "page.md")))
    (docs / "page.zh-CN.md").write_text("# 页\n\n[English](page.md)\n")

    assert alone[0].endswith(":3: there is no page.zh-CN.md, and every page is there in both languages")
    assert next(faults_of(Page(docs / "page.md"))).endswith(":3: line 3 begins with [中文](page.zh-CN.md)")
