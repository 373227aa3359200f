import json

import pytest

from kb.web.admin.charts import LABEL_WIDTH, Chart, Series, percentage


def make(**fields):
    values = {"labels": ["a", "b"], "series": [Series("x", [0.5, 2], "red-500")], **fields}
    return Chart("name", "title", "verdict", **values)


def test_the_theme_is_given_data_and_colours_of_its_own():
    data = json.loads(make().data)

    assert data["labels"] == ["a", "b"]
    assert data["datasets"][0]["data"] == [0.5, 2]
    assert data["datasets"][0]["backgroundColor"] == "var(--color-red-500)"


@pytest.mark.parametrize(("is_horizontal", "axis", "values"), [(False, "x", "y"), (True, "y", "x")])
def test_values_stand_along_the_axis_across_from_the_labels(is_horizontal, axis, values):
    options = json.loads(make(is_horizontal=is_horizontal, is_stacked=True).options)

    assert options["indexAxis"] == axis
    assert options["scales"][values]["beginAtZero"]
    assert options["scales"][values]["stacked"]


def test_a_share_reaches_from_none_to_all():
    value_axis = json.loads(make(is_share=True).options)["scales"]["y"]

    assert (value_axis["min"], value_axis["max"], value_axis["ticks"]["format"]["style"]) == (0, 1, "percent")


def test_a_line_of_shares_is_not_held_down_by_all():
    value_axis = json.loads(make(is_share=True, is_line=True).options)["scales"]["y"]

    assert "max" not in value_axis


@pytest.mark.parametrize("count", [1, 2])
def test_a_legend_tells_several_series_apart(count):
    options = json.loads(make(series=[Series(f"{number}", [1, 2], "red-500") for number in range(count)]).options)

    assert options["plugins"]["legend"]["display"] == (count > 1)


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ({}, (("a", ("0",)), ("b", ("2",)))),
        ({"unit": "millisecond"}, (("a", ("0.5",)), ("b", ("2.0",)))),
        ({"is_share": True}, (("a", ("50 %",)), ("b", ("100 %",)))),
        ({"series": [Series("x", [None, 1], "red-500")]}, (("a", ("–",)), ("b", ("1",)))),
        ({"series": []}, (("a", ()), ("b", ()))),
    ],
    ids=str,
)
def test_the_figures_come_as_a_table_too(fields, rows):
    assert make(**fields).rows == rows


def test_long_labels_beside_bars_are_cut_into_lines_between_words():
    labels = ["Searched without an embedding model: vectors compare words", "没有关键词的搜索：关键词索引仍在建立中"]
    english, chinese = json.loads(make(labels=labels, is_horizontal=True).data)["labels"]

    assert " ".join(english) == labels[0]
    assert all(len(line) <= LABEL_WIDTH for line in english)
    assert "".join(chinese) == labels[1]
    assert all(len(line) <= LABEL_WIDTH / 2 for line in chinese)


def test_a_chart_of_lying_bars_grows_with_them():
    few, many = (
        make(labels=["a"] * count, series=[Series("x", [1] * count, "red-500")], is_horizontal=True) for count in (2, 8)
    )

    assert few.height < many.height


@pytest.mark.parametrize(("share", "words"), [(0, "0 %"), (0.1234, "12.3 %"), (0.999, "99.9 %"), (1, "100 %")])
def test_a_percentage_has_three_digits(share, words):
    assert percentage(share) == words
