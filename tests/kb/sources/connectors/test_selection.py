import pytest

from kb.sources.connectors.selection import Selection


def taken(paths, include="", exclude="", *, hidden=False):
    selection = Selection.parse(include, exclude, hidden=hidden)
    return [path for path in paths if selection.takes(path)]


PATHS = ["a.md", "manuals/a.md", "manuals/old/b.pdf", "notes/manuals/c.txt", "手册/说明.docx"]


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("*.md", ["a.md", "manuals/a.md"]),
        ("/*.md", ["a.md"]),
        ("manuals", ["manuals/a.md", "manuals/old/b.pdf", "notes/manuals/c.txt"]),
        ("manuals/", ["manuals/a.md", "manuals/old/b.pdf", "notes/manuals/c.txt"]),
        ("/manuals", ["manuals/a.md", "manuals/old/b.pdf"]),
        ("manuals/**", ["manuals/a.md", "manuals/old/b.pdf"]),
        ("manuals/*.pdf", []),
        ("manuals/**/*.pdf", ["manuals/old/b.pdf"]),
        ("**/old/*", ["manuals/old/b.pdf"]),
        ("?.md, [b]*", ["a.md", "manuals/a.md", "manuals/old/b.pdf"]),
        ("手册\n*.txt", ["notes/manuals/c.txt", "手册/说明.docx"]),
    ],
)
def test_a_pattern_includes_what_it_excludes(pattern, matched):
    assert taken(PATHS, include=pattern) == matched
    assert taken(PATHS, exclude=pattern) == [path for path in PATHS if path not in matched]


def test_files_that_cannot_be_read_and_hidden_ones_are_left_out():
    paths = ["a.exe", "README", ".env.md", ".git/x.md", "docs/.x/y.md", "A.MD"]

    assert taken(paths) == ["A.MD"]
    assert taken(paths, hidden=True) == [".env.md", ".git/x.md", "docs/.x/y.md", "A.MD"]


def test_an_excluded_folder_is_not_entered():
    selection = Selection.parse("docs/**/*.md", "drafts", hidden=False)

    assert [selection.enters(folder) for folder in ("docs", "docs/drafts", "docs/.git", "other")] == [
        True,
        False,
        False,
        True,
    ]


def test_a_pattern_of_many_stars_is_matched_in_the_time_of_any_other():
    deep = "/".join(["a" * 100] * 100) + "/x.md"

    assert taken([deep], include="/".join(["**", "*a*a*a*a*b*"] * 50)) == []
