"""What can be said of the documentation without reading it."""

import re
from pathlib import Path

import pytest

from kb.ingest.parser.archives import ARCHIVE_EXTENSIONS
from kb.ingest.parser.parsed import SUPPORTED_EXTENSIONS
from tests import feature_graph, reference

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
NAMES = {".md": "Markdown", ".markdown": "Markdown", ".htm": "HTML"}
LISTING_FORMATS = ("docs/start.md", "docs/start.zh-CN.md", "docs/curating.md", "docs/curating.zh-CN.md")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(text):
    """What the headings of a page are called in addresses."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def test_every_block_of_code_ends():
    for page, text in TEXTS.items():
        fences = [line for line in text.splitlines() if line.lstrip().startswith("```")]
        assert all(fence.strip() == "```" for fence in fences[1::2]), page
        assert len(fences) % 2 == 0, page


def test_every_link_leads_somewhere():
    broken = []
    for page, text in TEXTS.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", text)):
            if "://" in target or target.startswith("mailto:"):
                continue
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            if not linked.exists() or (anchor and linked.suffix == ".md" and anchor not in anchors(TEXTS[linked])):
                broken.append(f"{page.name}: {target}")
    assert broken == []


def test_every_page_is_there_in_both_languages():
    for page in (ROOT / "docs").glob("*.md"):
        name = page.name.removesuffix(".md").removesuffix(".zh-CN")
        assert {page.with_name(f"{name}.md"), page.with_name(f"{name}.zh-CN.md")} <= set(PAGES), page.name


def test_the_readmes_are_short():
    assert len(TEXTS[ROOT / "README.md"].split()) <= 900
    assert len(TEXTS[ROOT / "README.zh-CN.md"]) <= 1_600


def test_the_kinds_of_files_that_can_be_uploaded_are_all_listed():
    for page in LISTING_FORMATS:
        for extension in (*SUPPORTED_EXTENSIONS, *ARCHIVE_EXTENSIONS):
            assert NAMES.get(extension, extension.removeprefix(".").upper()) in TEXTS[ROOT / page], (page, extension)


def test_the_graph_of_the_features_is_that_of_the_imports():
    for page in feature_graph.PAGES:
        assert TEXTS[page] == feature_graph.with_graph(TEXTS[page]), "run python -m tests.feature_graph"


@pytest.mark.parametrize("language", reference.PAGES)
def test_the_reference_is_what_the_code_says(language):
    assert TEXTS[reference.PAGES[language]] == reference.page(language), "run python -m tests.reference"
