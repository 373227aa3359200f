"""What can be said of the documentation without reading it. Links are checked by `python -m tests.docs.links`."""

import re
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from kb.ingest.parser.archives import ARCHIVE_EXTENSIONS
from kb.ingest.parser.parsed import SUPPORTED_EXTENSIONS
from tests import feature_graph, reference

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
NAMES = {".md": "Markdown", ".markdown": "Markdown", ".htm": "HTML"}
LISTING_FORMATS = ("docs/start.md", "docs/start.zh-CN.md", "docs/curating.md", "docs/curating.zh-CN.md")


def test_every_block_of_code_ends():
    for page, text in TEXTS.items():
        fences = [line for line in text.splitlines() if line.lstrip().startswith("```")]
        assert all(fence.strip() == "```" for fence in fences[1::2]), page
        assert len(fences) % 2 == 0, page


def test_the_readmes_are_short():
    assert len(TEXTS[ROOT / "README.md"].split()) <= 900
    assert len(TEXTS[ROOT / "README.zh-CN.md"]) <= 2_000


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


def test_commands_and_options_are_those_of_the_code():
    """Wherever a page calls `manage.py`, and in the table of commands."""
    known, wrong, seen = {}, [], 0
    for page, text in TEXTS.items():
        if page in reference.PAGES.values() or page.name == "CHANGELOG.md":
            continue
        called = re.findall(r"\bmanage\.py ([a-z_]+)([^`|;#&\n)]*)", text.replace("\\\n", " ").replace("\\|", "/"))
        if page.name.startswith("commands."):
            called += re.findall(r"`([a-z_]+) ([^`]*)`", text.replace("\\|", "/"))
        for name, rest in called:
            if name not in known:
                known[name] = options(name)
            seen += 1
            wrong += [
                (page.name, name, option)
                for option in re.findall(r"(?<!\S)\[?(--[a-z0-9-]+)", rest)
                if option not in known[name]
            ]
    assert wrong == []
    assert seen > 100


def options(name):
    """Those of a command and of its subcommands."""
    module = get_commands().get(name)
    assert module, name
    command = module if not isinstance(module, str) else load_command_class(module, name)
    parsers, found = [command.create_parser("manage.py", name)], set()
    for parser in parsers:
        found |= set(parser._option_string_actions)
        parsers += [
            each for action in parser._actions if isinstance(action.choices, dict) for each in action.choices.values()
        ]
    return found
