import pytest
from hypothesis import given, strategies as st

from kb.graph.admin.picture import MOST_DRAWN, NAME_SIZE, NARROW, WIDE, draw, shortened, text_width

NEIGHBOURS = st.lists(st.tuples(st.text(max_size=60), st.text(max_size=60)), max_size=60)
SHAPES = st.sampled_from([WIDE, NARROW])


def overlap(one, other):
    return (
        one["left"] < other["left"] + other["width"]
        and other["left"] < one["left"] + one["width"]
        and one["top"] < other["top"] + other["height"]
        and other["top"] < one["top"] + one["height"]
    )


@given(NEIGHBOURS, SHAPES)
def test_no_label_covers_another_or_leaves_the_picture(neighbours, shape):
    picture = draw("IBM", neighbours, shape)

    for place, node in enumerate(picture["nodes"]):
        assert not any(overlap(node, other) for other in picture["nodes"][:place])
        assert node["left"] >= 0
        assert node["left"] + node["width"] <= shape.width + 0.2
        assert node["top"] >= 0
        assert node["top"] + node["height"] <= picture["height"]


@given(NEIGHBOURS, SHAPES)
def test_at_most_forty_are_drawn_in_their_order(neighbours, shape):
    picture = draw("IBM", neighbours, shape)

    assert len(picture["nodes"]) == min(len(neighbours), MOST_DRAWN)


def test_both_sides_of_a_wide_picture_are_even_and_a_narrow_one_has_one():
    neighbours = [(f"n{number}", "is") for number in range(10)]

    wide, narrow = draw("IBM", neighbours, WIDE), draw("IBM", neighbours, NARROW)

    assert [node["anchor"] for node in wide["nodes"]] == ["start"] * 5 + ["end"] * 5
    assert {node["anchor"] for node in narrow["nodes"]} == {"start"}
    for right, left in zip(wide["nodes"][:5], wide["nodes"][5:], strict=True):
        assert right["y"] == left["y"]
        assert right["x"] - WIDE.centre_x == pytest.approx(WIDE.centre_x - left["x"], abs=0.2)


def test_an_entity_alone_has_a_picture():
    picture = draw("国际商业机器公司", [], WIDE)

    assert picture["nodes"] == []
    assert picture["name"] == "国际商业机器公司"


def test_a_chinese_character_takes_the_room_of_two_narrow_ones():
    assert text_width("知识", 10) == 20
    assert text_width("ab", 10) < 13


@given(st.text(), st.floats(20, 400))
def test_a_shortened_text_fits(text, width):
    assert text_width(shortened(text, width, NAME_SIZE), NAME_SIZE) <= width


def test_a_text_that_fits_stays_whole():
    assert shortened("知识库", 100, NAME_SIZE) == "知识库"
    assert shortened("知识库的图谱里的一个很长的名字", 100, NAME_SIZE) == "知识库的图谱…"


def test_a_label_of_any_length_is_shortened():
    """In steps of one character, each measured again, this one would take days."""
    assert text_width(shortened("关系 " * 500_000, 120.0, NAME_SIZE), NAME_SIZE) <= 120.0
