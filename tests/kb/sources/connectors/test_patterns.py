import pytest

from kb.sources.connectors.patterns import Patterns, wild_match


@pytest.mark.parametrize(
    ("include", "taken", "left"),
    [
        ("", ["a.md", "d/e/a.PDF"], ["a.exe", "Makefile", "d.md/x"]),
        ("*.md", ["a.md", "d/e/b.md"], ["a.txt", "d/a.mdx"]),
        ("docs/*.md", ["docs/a.md"], ["docs/d/a.md", "a.md", "x/docs/a.md"]),
        ("docs/**", ["docs/a.md", "docs/d/e/a.md"], ["a.md", "x/docs/a.md"]),
        ("docs/**/a.md", ["docs/a.md", "docs/d/e/a.md"], ["docs/b.md"]),
        ("/docs/a?.md", ["docs/a1.md"], ["docs/a.md", "docs/a12.md"]),
        ("手册/", ["手册/a.md", "x/手册/d/a.md"], ["手册.md"]),
        ("a.md, b.md\n c.md ", ["a.md", "d/b.md", "c.md"], ["d.md"]),
        ("[a].md", ["[a].md"], ["a.md"]),
    ],
)
def test_patterns_take_what_gitignore_would_name(include, taken, left):
    patterns = Patterns.parse(include, "")
    assert [path for path in [*taken, *left] if patterns.accepts(path)] == taken
    assert [path for path in taken if Patterns.parse("", include or "*").accepts(path)] == []


def test_many_stars_take_no_more_comparisons_than_the_lengths_multiply_to():
    pattern, text = "*a" * 60 + "b", "a" * 2_000
    compared = []
    assert not wild_match(pattern, text, "*", lambda mask, sign: compared.append(sign) or mask == sign)
    assert len(compared) <= len(pattern) * len(text)


def test_hidden_files_are_left_out_where_they_are_not_wanted():
    paths = ["a.md", ".env.md", ".git/x.md", "docs/.x/y.md"]

    assert [path for path in paths if Patterns.parse("", "", hidden=False).accepts(path)] == ["a.md"]
    assert all(Patterns.parse("", "", hidden=True).accepts(path) for path in paths)


def test_a_folder_of_which_nothing_is_taken_is_not_entered():
    patterns = Patterns.parse("docs/**/*.md", "drafts/, old/**, *.md", hidden=False)

    entered = [patterns.enters(folder) for folder in ("docs", "docs/drafts", "old", "docs/.git", "other", "x.md")]
    assert entered == [True, False, False, False, True, True]
