import pytest
from hypothesis import given, settings, strategies as st

from kb.ingest.parser.parsed import Section
from tests.kb.ingest.chunkers.cutting import cut, texts, visible

SENTENCES = [f"这是第{number}句话，说的是检索。" for number in range(30)]
TEXT = "".join(SENTENCES)


def test_small_chunks_know_the_large_passage_that_they_were_cut_from():
    drafts = cut("parent_child", Section("".join(SENTENCES[:12]), 3, ("一",)), size=40, overlap=0, parent_size=200)
    assert all(len(draft.text) <= 40 for draft in drafts)
    assert all(draft.text in draft.parent.text and len(draft.parent.text) <= 200 for draft in drafts)
    assert {(draft.parent.page, draft.parent.heading_path) for draft in drafts} == {(3, ("一",))}


def test_parents_hold_the_whole_text_once_and_in_order():
    drafts = cut("parent_child", TEXT, size=40, overlap=10, parent_size=200)
    parents = {draft.parent.position: draft.parent.text for draft in drafts if draft.parent}
    alone = [draft.text for draft in drafts if not draft.parent]
    assert list(parents) == list(range(len(parents)))
    assert "".join([*parents.values(), *alone]) == TEXT


def test_a_passage_that_one_chunk_fills_needs_no_parent():
    assert cut("parent_child", "短。", parent_size=1_000)[0].parent is None


def test_a_parent_crosses_pages_and_its_chunks_know_theirs():
    drafts = cut("parent_child", Section("甲" * 20, 1), Section("乙" * 20, 2), size=20, overlap=0, parent_size=200)
    assert [(draft.text, draft.page) for draft in drafts] == [("甲" * 20, 1), ("乙" * 20, 2)]
    assert drafts[0].parent is drafts[1].parent
    assert drafts[0].parent.page == 1


def test_a_parent_crosses_no_heading():
    sections = [Section(TEXT, None, path) for path in (("一",), ("二",))]
    drafts = cut("parent_child", *sections, size=40, overlap=0, parent_size=10_000)
    assert {(draft.heading_path, draft.parent.heading_path) for draft in drafts} == {(("一",),) * 2, (("二",),) * 2}


def test_positions_count_through_the_whole_document():
    drafts = cut("parent_child", TEXT, TEXT, size=40, overlap=0, parent_size=200)
    assert [draft.position for draft in drafts] == list(range(len(drafts)))


@pytest.mark.parametrize("unit", ["characters", "tokens"])
@settings(max_examples=30)
@given(st.lists(st.sampled_from(["一句话。", "Two words. ", "\n\n", "字" * 30]), max_size=60))
def test_no_text_is_lost(unit, parts):
    text = "".join(parts)
    drafts = cut("parent_child", text, size=20, overlap=0, parent_size=100, unit=unit)
    assert visible("".join(texts(drafts))) == visible(text)
