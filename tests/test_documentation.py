"""What can be said of the documentation without reading it."""

from pathlib import Path

import pytest

from kb.ingest.parser.archives import ARCHIVE_EXTENSIONS
from kb.ingest.parser.parsed import SUPPORTED_EXTENSIONS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_code_ends(page):
    fences = [line for line in page.read_text(encoding="utf-8").splitlines() if line.lstrip().startswith("```")]

    assert all(fence.strip() == "```" for fence in fences[1::2])
    assert len(fences) % 2 == 0


NAMES = {".md": "Markdown", ".markdown": "Markdown", ".htm": "HTML"}


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "docs/curating.md", "docs/curating.zh-CN.md"])
@pytest.mark.parametrize("extension", [*SUPPORTED_EXTENSIONS, *ARCHIVE_EXTENSIONS])
def test_the_kinds_of_files_that_can_be_uploaded_are_all_listed(page, extension):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert NAMES.get(extension, extension.removeprefix(".").upper()) in text
