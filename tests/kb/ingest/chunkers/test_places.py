from hypothesis import given, strategies as st

from kb.ingest.chunkers import places as module
from kb.ingest.chunkers.places import Place, letters, places


def test_texts_are_found_where_their_letters_stand():
    stream = letters("Menu. The pump is checked each month. Call us.")
    found = places(stream, ["The pump is\nchecked", "each — month"])
    assert [stream[place.start : place.end] for place in found] == ["Thepumpischecked", "eachmonth"]


def test_what_is_said_twice_is_found_in_order():
    stream = letters("check the oil. wait. check the oil.")
    first, second = places(stream, ["check the oil. wait", "check the oil."])
    assert first.start == 0
    assert second == Place(0, 11) or second.start > first.start


def test_a_text_that_reads_a_little_otherwise_is_found_by_its_pieces():
    words = [f"word{number} stands here" for number in range(40)]
    stream = letters(" ".join(words))
    (place,) = places(stream, [" ".join([*words[:10], "an added heading", *words[10:20]])])
    assert place.start == 0
    assert abs(place.end - len(letters(" ".join(words[:20])))) < 60


def test_texts_that_are_not_there_end_the_search_for_pieces_but_not_that_for_the_others(monkeypatch):
    monkeypatch.setattr(module, "_MOST_LETTERS", 100_000)
    words = [f"word{number} stands here" for number in range(400)]
    stream = letters(" ".join(words))
    altered, exact = " ".join([*words[:10], "an added heading", *words[10:20]]), " ".join(words[30:40])
    strangers = [f"unheard of {number} " * 20 for number in range(30)]

    assert None not in places(stream, [altered, exact])
    *_strangers, of_pieces, whole = places(stream, [*strangers, altered, exact])
    assert of_pieces is None
    assert whole is not None


def test_another_text_is_not_found():
    assert places(
        letters("The pump is checked each month."), ["Nothing of this can be read anywhere there.", "", "a"]
    ) == [
        None,
        None,
        None,
    ]


@given(st.lists(st.text("abcdefghij ", min_size=1, max_size=30), max_size=20))
def test_pieces_of_a_text_are_where_they_were_cut(texts):
    stream = letters("".join(texts))
    for text, place in zip(texts, places(stream, texts), strict=True):
        if len(letters(text)) >= 4:
            assert stream[place.start : place.end] == letters(text)
