import pytest
from hypothesis import given, strategies as st

from kb.base.text import InvalidFilter
from kb.index.conditions import STRICT_OPERATORS, Operator
from kb.index.filters import Filters, read_conditions, write_conditions

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.text(max_size=20))
KEYS = st.from_regex(r"[a-z一-龥]{1,8}", fullmatch=True)
OPERATORS = st.sampled_from([op.value for op in STRICT_OPERATORS if op not in (Operator.IN, Operator.EXISTS)])


@pytest.mark.parametrize(
    ("text", "key", "op", "value"),
    [
        ("year >= 2023", "year", "gte", 2023),
        ("year≥2023.5", "year", "gte", 2023.5),
        ("by = ann=li", "by", "eq", "ann=li"),
        ('year="2024"', "year", "eq", "2024"),
        ("draft != true", "draft", "ne", True),
        ("部门 ≠ 销售", "部门", "ne", "销售"),
        ("title ~ 合同", "title", "contains", "合同"),
        ("ratio = NaN", "ratio", "eq", "NaN"),
        ("list = [1]", "list", "eq", "[1]"),
    ],
)
def test_a_condition_is_read_as_it_is_typed(text, key, op, value):
    assert read_conditions(text) == [{"key": key, "op": op, "value": value}]


def test_commas_and_line_breaks_part_conditions_but_not_a_quoted_text():
    read = read_conditions('a = 1， b = "x, y"；\nc < 2,,')
    assert [(each["key"], each["value"]) for each in read] == [("a", 1), ("b", "x, y"), ("c", 2)]


@pytest.mark.parametrize("text", ["year", "= 3", "year 2024"])
def test_what_compares_nothing_is_refused(text):
    with pytest.raises(InvalidFilter):
        read_conditions(text)


@given(st.lists(st.fixed_dictionaries({"key": KEYS, "op": OPERATORS, "value": SCALARS}), max_size=4))
def test_what_is_written_is_read_again(conditions):
    assert read_conditions(write_conditions(conditions)) == conditions


def test_what_no_sign_stands_for_is_left_out():
    assert (
        write_conditions([{"key": "a", "op": "exists", "value": True}, {"key": "b", "op": "lt", "value": 1}]) == "b < 1"
    )


def test_conditions_are_what_filters_take():
    assert Filters.parse({"metadata": read_conditions("year >= 2023")}).metadata[0].value == 2023


@pytest.mark.parametrize("text", [" " * 200_000 + "x", "x" + " " * 200_000 + "x"])
def test_a_condition_of_blanks_takes_no_time_that_grows_with_its_cube(text):
    with pytest.raises(InvalidFilter):
        read_conditions(text)


def test_a_value_of_many_quotation_marks_is_written_at_once():
    value = '""' * 200 + ","
    [read] = read_conditions(write_conditions([{"key": "k", "op": "eq", "value": value}]))
    assert read["value"] == value
