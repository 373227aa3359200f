from hypothesis import given, strategies as st

from kb.ingest.chunkers.matching import Pin, joined, pin_texts, shared_length, squeezed, stream
from kb.ingest.chunkers.strategies import ChunkDraft


def drafts_of(*texts):
    return [ChunkDraft(text, position, (), len(text)) for position, text in enumerate(texts)]


def pinned(texts, *pins):
    drafts = pin_texts(drafts_of(*texts), [Pin(text, start, always=True) for start, text in pins], len)
    assert [draft.position for draft in drafts] == list(range(len(drafts)))
    assert [draft.token_count for draft in drafts] == [len(draft.text) for draft in drafts]
    return [draft.text for draft in drafts]


def test_a_pinned_passage_takes_whole_drafts():
    assert pinned(["aaa.", "bbb.", "ccc."], (4, "bbb.\nccc.")) == ["aaa.", "bbb.\nccc."]


def test_what_a_pinned_passage_leaves_of_drafts_stays():
    assert pinned(["aaa. bbb.", "ccc. ddd."], (4, "bbb. ccc.")) == ["aaa.", "bbb. ccc.", "ddd."]


def test_two_parts_of_one_draft_are_two_drafts():
    assert pinned(["aaa. bbb. ccc."], (0, "aaa."), (4, "bbb. ccc.")) == ["aaa.", "bbb. ccc."]


def test_a_draft_that_shares_only_its_overlap_stays_whole():
    texts = ["first part. shared sentence.", "shared sentence. second part.", "third part."]
    assert pinned(texts, (0, texts[0])) == texts
    assert pinned(texts, (0, "first part. shared sentence. second part.")) == [
        "first part. shared sentence. second part.",
        "third part.",
    ]


def test_of_repeated_texts_the_one_at_its_place_is_taken():
    texts = ["aaaa bbbb", "same text here", "cccc dddd", "same text here", "eeee"]
    start = stream(texts).spans[3][0]
    assert pinned(texts, (start, "same text here eeee")) == [*texts[:3], "same text here eeee"]


def test_a_passage_that_is_gone_changes_nothing():
    assert pinned(["aaa.", "bbb."], (0, "zzz")) == ["aaa.", "bbb."]


def test_a_passage_that_is_no_curator_s_cut_is_left_to_drafts_that_do_not_divide_it():
    drafts = drafts_of("aaa. bbb. ccc.", "ddd.", "eee.")
    inside, whole = Pin("bbb.", 4, always=False), Pin("ddd. eee.", 12, always=False)
    assert pin_texts(drafts, [inside, whole], len) == tuple(drafts)


def test_neighbours_are_joined_with_their_overlap_once():
    assert joined("one. the overlap.", "the overlap. two.") == "one. the overlap. two."
    assert joined("one. ", " two.") == "one.\ntwo."
    assert shared_length("abcdefghij", "abcdefghij") == 0


WORDS = st.lists(st.text("abcdefgh", min_size=1, max_size=5), min_size=2, max_size=30)


@given(WORDS, st.data())
def test_no_character_is_lost_or_doubled(words, data):
    """Whatever is pinned, the drafts are the document; sizes below the least overlap keep chance out of it."""
    text = " ".join(words)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(words) - 1), max_size=6)))
    texts = [" ".join(words[a:b]) for a, b in zip([0, *cuts], [*cuts, len(words)], strict=True)]
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first + 1, len(words)))
    passage = " ".join(words[first:last])
    pin = Pin(passage, len(squeezed(" ".join(words[:first]))), always=True)
    if len(stream(texts).text) != len(squeezed(text)):
        return  # a chance overlap

    after = pin_texts(drafts_of(*texts), [pin], len)

    assert "".join(squeezed(draft.text) for draft in after) == squeezed(text)
    assert passage in [draft.text for draft in after]
