"""What is shown of a longer passage when some of its chunks are off, edited or deleted."""

import re

import pytest
from hypothesis import given, strategies as st

from kb.content.parents import Child, shown_text
from kb.ingest.chunkers.strategies import ChunkSettings, split
from kb.ingest.formats.outline import markdown_table
from kb.ingest.parser.parsed import ParsedDocument, Section

HEADER = ("型号", "质保")
ROWS = [(f"TH-{number:02d}", f"{number} 个月") for number in range(1, 31)]
TABLE = markdown_table([HEADER, *ROWS])
MARKS = re.compile(r"m\d{3}")


def drafts_of(text, size=70, overlap=0, parent_size=2_000):
    settings = ChunkSettings(size=size, overlap=overlap, strategy="parent_child", parent_size=parent_size)
    return split(ParsedDocument("", (Section(text),)), settings)


def child(draft, *, text=None, enabled=True):
    spans = [place for span in draft.parent_spans for place in span]
    return Child(text or draft.text, spans, text is not None, enabled)


def shown_without(text, *off, **settings):
    drafts = drafts_of(text, **settings)
    children = [child(draft, enabled=number not in off) for number, draft in enumerate(drafts)]
    return shown_text(drafts[0].parent.text, children)


@pytest.mark.parametrize("text", [TABLE, f"前言。\n\n{TABLE}\n\n后记。"])
def test_with_all_chunks_on_it_is_what_was_cut(text):
    assert shown_without(text) == text.strip()


def test_the_rows_of_a_later_part_of_a_table_go_and_the_header_stays():
    drafts = drafts_of(TABLE)
    off = {row for row, _months in ROWS if row in drafts[1].text}
    shown = shown_without(TABLE, 1)
    assert off
    assert {row for row, _months in ROWS if row in shown} == {row for row, _months in ROWS} - off
    assert shown == markdown_table([HEADER, *(row for row in ROWS if row[0] not in off)])


def test_the_header_stays_without_the_first_part_of_its_table():
    first = drafts_of(TABLE)[0].text
    shown = shown_without(TABLE, 0)
    assert shown == markdown_table([HEADER, *(row for row in ROWS if row[0] not in first)])


def test_a_word_goes_where_it_stands_and_not_within_another():
    words = ["November", "No", "vember"]
    children = [
        Child(word, [0, 0, at, at + len(word)], False, word != "No") for word, at in zip(words, (0, 9, 12), strict=True)
    ]
    assert shown_text("November No vember", children) == "November vember"


def test_an_edited_part_of_a_table_stands_in_its_place_without_the_header_that_it_repeats():
    drafts = drafts_of(TABLE)
    edited = drafts[1].text.replace("个月", "年")
    shown = shown_text(
        drafts[0].parent.text,
        [child(draft, text=edited if number == 1 else None) for number, draft in enumerate(drafts)],
    )
    own = [row for row in ROWS if row[0] in drafts[1].text]
    assert shown == markdown_table([HEADER, *((n, m.replace("个月", "年") if (n, m) in own else m) for n, m in ROWS)])


def test_an_edited_chunk_that_is_off_shows_neither_text():
    drafts = drafts_of(TABLE)
    children = [child(draft) for draft in drafts]
    children[1] = child(drafts[1], text="geheim", enabled=False)
    shown = shown_text(drafts[0].parent.text, children)
    assert "geheim" not in shown
    assert shown == shown_without(TABLE, 1)


def test_an_edit_of_what_two_chunks_share_is_shown_once_and_as_edited():
    children = [Child("一。二。", [0, 0, 0, 4], False, True), Child("2。三。", [0, 0, 2, 6], True, True)]
    assert shown_text("一。二。三。", children) == "一。2。三。"


def test_a_deleted_chunk_leaves_the_break_between_its_neighbours():
    paragraphs = ["甲" * 30, "乙" * 30, "丙" * 30]
    drafts = drafts_of("\n\n".join(paragraphs), size=40)
    assert (
        shown_text(drafts[0].parent.text, [child(drafts[0]), child(drafts[2])]) == f"{paragraphs[0]}\n\n{paragraphs[2]}"
    )


@pytest.mark.parametrize(
    ("is_edited", "enabled", "shown"),
    [(False, True, "Nonsense. No."), (True, True, "Nonsense.\nNo."), (False, False, "Nonsense.")],
)
def test_where_places_are_not_known_the_texts_follow_one_another_once_one_has_changed(is_edited, enabled, shown):
    children = [Child("Nonsense.", None, False, True), Child("No.", None, is_edited, enabled)]
    assert shown_text("Nonsense. No.", children) == shown


@given(
    st.lists(st.tuples(st.sampled_from(["paragraph", "table", "break", "line"]), st.integers(1, 12)), max_size=6),
    st.integers(20, 90),
    st.integers(0, 18),
    st.integers(100, 600),
    st.randoms(use_true_random=False),
)
def test_nothing_that_only_chunks_that_are_off_have_is_shown_and_all_else_is(
    blocks, size, overlap, parent_size, random
):
    marks = iter(range(100, 1_000))
    parts = []
    for kind, count in blocks:
        words = [f"m{next(marks)}" for _ in range(2 * count)]
        if kind == "table":
            parts.append(markdown_table([("a", "b"), *zip(words[::2], words[1::2], strict=True)]))
        else:
            parts.append({"paragraph": ". ", "break": "\n\n", "line": "\n"}[kind].join(words))
    drafts = drafts_of("\n\n".join(parts), size=size, overlap=overlap, parent_size=parent_size)
    by_parent = {}
    for draft in drafts:
        if draft.parent:
            by_parent.setdefault(draft.parent.position, []).append(draft)
    for members in by_parent.values():
        whole = members[0].parent.text
        assert shown_text(whole, [child(draft) for draft in members]) == whole.strip()
        children = [child(draft, enabled=random.random() < 0.6) for draft in members]
        shown = shown_text(whole, children)
        on, everything = (
            {mark for each in children if each.enabled or every for mark in MARKS.findall(each.text)}
            for every in (False, True)
        )
        assert set(MARKS.findall(shown)) == on
        assert set(MARKS.findall(whole)) == everything
        assert [mark for mark in MARKS.findall(whole) if mark in on] == MARKS.findall(shown)
