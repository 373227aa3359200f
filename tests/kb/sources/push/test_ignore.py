"""Which files the client of docs/ leaves out, held against git itself."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

SCRIPT = Path(__file__).parents[4] / "docs/zhiku_sync.py"


@pytest.fixture(scope="module")
def client():
    spec = importlib.util.spec_from_file_location("zhiku_sync", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["zhiku_sync"] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["zhiku_sync"]


TREE = (
    *(
        "a.md",
        "b.md",
        "c.txt",
        "docs/a.md",
        "docs/b/a.md",
        "docs/b/c/d.md",
        "build/a.md",
        "src/build/a.md",
        "x/docs/a.md",
    ),
    *("a b.md", "#a.md", "!a.md", "[x].md", "a.md.bak", "A.md", "docs.md", "trail ", "手册/说明.md", "back\\slash.md"),
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    for name in TREE:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


def of_git(tree):
    command = ["git", "-C", tree, "ls-files", "-z", "--others", "--exclude-per-directory=.zhikuignore"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\x00")
    return sorted(each for each in listed if each and not each.endswith(".zhikuignore"))


def of_client(client, tree):
    return sorted(each.path for each in client.Folder(str(tree), []).files())


def assert_as_git(client, tree, lines, folder=""):
    file = tree / folder / ".zhikuignore"
    file.write_text("\n".join(lines) + "\n")
    try:
        assert of_client(client, tree) == of_git(tree), lines
    finally:
        file.unlink()


@pytest.mark.parametrize(
    "lines",
    [
        [""],
        ["*.md"],
        ["/a.md"],
        ["docs"],
        ["docs/"],
        ["/docs/"],
        ["docs/a.md"],
        ["docs/*"],
        ["docs/**"],
        ["**/docs"],
        ["**/a.md"],
        ["docs/**/d.md"],
        ["docs/**/a.md"],
        ["a.md/"],
        ["build/", "!src/build/"],
        ["*.md", "!a.md"],
        ["docs/", "!docs/a.md"],
        ["docs/*", "!docs/b/", "docs/b/*", "!docs/b/a.md"],
        ["# a.md", "\\#a.md", "\\!a.md"],
        ["a?md", "[ab].md"],
        ["[!a].md"],
        ["[^a-c]*"],
        ["\\[x\\].md"],
        ["[[]x[]].md"],
        ["[[:upper:]].md"],
        ["a b.md   "],
        ["trail\\ "],
        ["手册"],
        ["*册/**"],
        ["a**"],
        ["/**/a.md"],
        ["/"],
        ["**"],
        ["*/"],
        ["[a.md"],
        ["back\\\\slash.md"],
        ["[z-a].md"],
    ],
)
def test_rules_are_gits(client, tree, lines):
    assert_as_git(client, tree, lines)


# Stars beside other signs are said to be as one; git itself reads past the pattern's beginning there.
LINES = st.text("ab/*?!.md[]-^\\ #", min_size=1, max_size=8).filter(
    lambda line: not re.search(r"[^/]\*\*|\*\*[^/]", line)
)


@given(st.lists(LINES, min_size=1, max_size=3))
@settings(max_examples=60)
def test_any_rules_are_gits(client, tree, lines):
    assert_as_git(client, tree, lines)


def test_an_ignore_file_in_a_folder_is_of_that_folder(client, tree):
    (tree / ".zhikuignore").write_text("*.md\n")
    try:
        assert_as_git(client, tree, ["!a.md", "/b/a.md"], folder="docs")
    finally:
        (tree / ".zhikuignore").unlink()


def test_hidden_files_links_and_git_are_left_out(client, tree, tmp_path):
    (tmp_path / ".hidden").mkdir()
    for name in ("a.md", ".b.md", ".hidden/c.md", ".git"):
        (tmp_path / name).write_text("x")
    (tmp_path / "link.md").symlink_to(tree / "a.md")
    (tmp_path / "linked").symlink_to(tree)

    assert of_client(client, tmp_path) == ["a.md"]
    assert sorted(each.path for each in client.Folder(str(tmp_path), [], hidden=True).files()) == [
        ".b.md",
        ".hidden/c.md",
        "a.md",
    ]


def test_stars_within_a_name_are_as_one(client):
    assert client.rule_of("doc**s.md").matches.match("docxs.md")
    assert not client.rule_of("doc**s.md").matches.match("doc/s.md")


def test_it_runs_on_python_3_9():
    ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 9))
