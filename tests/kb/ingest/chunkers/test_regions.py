"""Where the text of each chunk stands in its document."""

from typing import get_args

import pytest
from hypothesis import given, strategies as st

from kb.ingest.chunkers.matching import Pin, pin_texts
from kb.ingest.chunkers.strategies import Strategy
from kb.ingest.formats.outline import Block, section_of
from kb.ingest.parser.parsed import Region, Section
from tests.kb.ingest.chunkers.cutting import cut, texts

BOX = (0.1, 0.2, 0.3, 0.4)


def letter(number):
    """Each block is of one letter, so that its text in a chunk tells which it is."""
    return chr(0x4E00 + number)


def sections_of(lengths, sections):
    """Blocks of so many words; `seconds` counts them."""
    blocks = [
        Block(" ".join([letter(number) * 7] * length), (Region(page=1 + number // 3, box=BOX, seconds=number),))
        for number, length in enumerate(lengths)
    ]
    groups = [blocks[first : first + sections] for first in range(0, len(blocks), sections)]
    return [section_of(group, 1, ()) for group in groups]


def blocks_in(text):
    return sorted({ord(each) - 0x4E00 for each in text if "\u4e00" <= each < "\u5000"})


@pytest.mark.parametrize("strategy", get_args(Strategy))
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=15),
    sections=st.integers(1, 4),
    size=st.integers(20, 120),
    overlap=st.integers(0, 19),
)
def test_a_chunk_has_the_regions_that_its_text_overlaps(strategy, lengths, sections, size, overlap):
    drafts = cut(strategy, *sections_of(lengths, sections), size=size, overlap=overlap, parent_size=200)
    for draft in drafts + [draft.parent for draft in drafts if draft.parent]:
        assert [region.seconds for region in draft.regions] == blocks_in(draft.text)
        for region in draft.regions:
            assert draft.text[region.start] == letter(region.seconds)
            assert region.start == draft.text.index(letter(region.seconds))
            assert region.page == 1 + region.seconds // 3


def test_page_and_time_are_those_of_the_first_region_that_has_one():
    [draft] = cut("headings", Section("甲\n\n乙", regions=(Region(), Region(3, page=7, seconds=75))))
    assert (draft.page, draft.seconds) == (7, 75)


def test_a_region_without_a_page_is_on_that_of_its_section():
    [draft] = cut("recursive", Section("甲\n\n乙", 4, regions=(Region(3, picture=0),)))
    assert draft.regions == (Region(0, page=4), Region(3, page=4, picture=0))


def test_rows_below_a_repeated_header_have_their_own_regions_and_not_that_of_the_header():
    rows = "".join(f"| {letter(number) * 9} | {number} |\n" for number in range(6))
    header = "| 名称 | 数量 |\n| --- | --- |\n"
    text = header + rows.rstrip("\n")
    regions = (Region(0, page=1, box=BOX), Region(len(header) + rows.index(letter(3)) - 2, page=2, box=BOX))
    drafts = cut("recursive", Section(text, 1, regions=regions), size=80, overlap=0)
    assert all(draft.text.startswith(header) for draft in drafts)
    assert [{region.page for region in draft.regions} for draft in drafts] == [
        {1 if number < 3 else 2 for number in blocks_in(draft.text) if number < 6} for draft in drafts
    ]
    assert all(draft.regions[0].start == 0 for draft in drafts)


def test_a_pair_stands_where_its_question_and_its_answer_stand():
    text = "问：甲甲\n  甲？\n答：乙乙。"
    section = Section(text, 1, regions=(Region(0, page=1, box=BOX), Region(text.index("乙"), page=2, box=BOX)))
    [draft] = cut("questions", section)
    assert draft.text == "甲甲 甲？\n乙乙。"
    assert draft.regions == (Region(0, page=1, box=BOX), Region(draft.text.index("乙"), page=2, box=BOX))


def test_a_long_answer_has_the_question_in_its_first_chunk_only():
    answer = "".join(f"{letter(number) * 9}。" for number in range(8))
    regions = (Region(0, page=1), *(Region(4 + 10 * number, page=2 + number) for number in range(8)))
    drafts = cut(
        "questions",
        Section(f"问题？\n{answer}", question="问题？", answer=answer, kind="qa", regions=regions),
        size=30,
        overlap=0,
    )
    assert len(drafts) > 1
    for number, draft in enumerate(drafts):
        answered = [2 + each for each in blocks_in(draft.text) if each < 8]
        assert [region.page for region in draft.regions] == ([1] if number == 0 else []) + answered


def test_a_passage_that_a_curator_cut_has_the_regions_of_the_drafts_that_it_takes_from():
    drafts = cut("recursive", *sections_of([4, 4, 4], 3), size=40, overlap=0)
    text = drafts[0].text[16:] + "\n\n" + drafts[1].text[:15]
    pinned = pin_texts(drafts, [Pin(text, 14, always=True)], len)
    assert texts(pinned) == [drafts[0].text[:15], text, drafts[1].text[16:], drafts[2].text]
    assert [[each.seconds for each in draft.regions] for draft in pinned] == [[0], [0, 1], [1], [2]]
    assert pinned[1].regions[1].start == text.index(letter(1))
