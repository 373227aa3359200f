"""Each comparison against PostgreSQL, and any mixture of them against a few lines of Python."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from kb.base.text import InvalidFilter
from kb.index.conditions import LENIENT_OPERATORS, Logic
from kb.index.filters import Filters, chunk_ids
from kb.models import Document
from tests.factories import make_document, make_kb, principal

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb(db):
    return make_kb()


def passing(kb, conditions, logic="and"):
    filters = Filters.parse({"matching": {"logic": logic, "conditions": conditions}})
    found = chunk_ids(kb.pk, principal(kb.owner), filters)
    return set(Document.objects.filter(chunks__in=found.tolist()))


def holds(kb, metadata, comparison, value=None, name="field", **fields):
    """Whether a document with these metadata meets the condition, beside one that lacks the key."""
    document = make_document(kb, "文", metadata=metadata, **fields)
    other = make_document(kb, "文", metadata={"别的": 1})
    found = passing(kb, [{"names": [name], "comparison": comparison, "value": value}])
    negative = comparison in {"not_contains", "is_not", "not_in", "ne", "empty"}
    if name == "field":
        assert (other in found) is negative, "a document without the key meets the negations, and only them"
    return document in found


COMPARED = [
    ("contains", "合同", "采购合同范本", True),
    ("contains", "合同", "发票", False),
    ("contains", "人事", ["财务", "人事"], True),
    ("contains", "人事", ["财务"], False),
    ("contains", "深圳", [["北京", "上海"], ["深圳"]], True),
    ("contains", "广州", [["北京", "上海"], ["深圳"]], False),
    ("contains", "%", "100%", True),
    ("contains", "_", "100%", False),
    ("contains", ["甲", "乙"], "乙方", True),
    ("contains", 20, 2024, True),
    ("contains", "深", {"城市": {"名": "深圳"}}, True),
    ("not_contains", "合同", "发票", True),
    ("not_contains", "合同", "采购合同范本", False),
    ("not_contains", "a", [["a"], "b"], False),
    ("starts_with", "采购", "采购合同", True),
    ("starts_with", "合同", "采购合同", False),
    ("starts_with", "采购", ["销售", "采购部"], True),
    ("ends_with", "合同", "采购合同", True),
    ("ends_with", "采购", "采购合同", False),
    ("ends_with", ".pdf", "a.pdf.txt", False),
    ("is", "人事", "人事", True),
    ("is", "人事", "人事部", False),
    ("is", "2024", 2024, True),
    ("is", 2024, "2024", True),
    ("is", "007", "7", False),
    ("is", "2024.0", 2024, True),
    ("is", True, True, True),
    ("is", "true", True, True),
    ("is", True, "yes", False),
    ("is", "b", ["a", ["b"]], True),
    ("is_not", "人事", "财务", True),
    ("is_not", "人事", "人事", False),
    ("is_not", "a", ["a", "b"], False),
    ("in", ["人事", "财务"], "财务", True),
    ("in", ["人事", "财务"], "销售", False),
    ("in", "人事, 财务", "财务", True),
    ("in", "人事，财务", "财务", True),
    ("in", "Li, Wei", "Li, Wei", True),
    ("in", [1, 2], 2, True),
    ("in", ["1", "2"], 2.0, True),
    ("in", [1, 2], 3, False),
    ("not_in", ["人事", "财务"], "销售", True),
    ("not_in", ["人事", "财务"], "财务", False),
    ("not_in", "人事,财务", ["财务"], False),
    ("empty", None, "", True),
    ("empty", None, None, True),
    ("empty", None, [], True),
    ("empty", None, [[], [None, ""]], True),
    ("empty", None, {}, True),
    ("empty", None, 0, False),
    ("empty", None, False, False),
    ("empty", None, "文", False),
    ("not_empty", None, "文", True),
    ("not_empty", None, [[], ["a"]], True),
    ("not_empty", None, 0, True),
    ("not_empty", None, [""], False),
    ("eq", 3, 3.0, True),
    ("eq", "3", 3, True),
    ("eq", 3, "3.00", True),
    ("eq", 3, 4, False),
    ("eq", 3, "三", False),
    ("eq", "三", "三", True),
    ("eq", "2026-03-01", "2026年3月1日", True),
    ("eq", "2026-03-01", "2026-03-02", False),
    ("ne", 3, 4, True),
    ("ne", 3, "3.0", False),
    ("ne", 3, [1, 3], False),
    ("gt", 3, 4, True),
    ("gt", 3, 3, False),
    ("gt", "3", "10", True),
    ("gt", 3, "10个", False),
    ("gt", -1.5, "-1.4", True),
    ("gt", 3, [1, [5]], True),
    ("gt", "2026-03-01", "2026-03-02", True),
    ("gt", "2026-03-01", "2026-03-01T23:00", False),
    ("lt", 3, 2, True),
    ("lt", 3, 3, False),
    ("lt", "2026-03-01", "2026/2/28", True),
    ("gte", 3, 3, True),
    ("gte", 3, 2.9, False),
    ("gte", "2026-03-01", "2026-03-01", True),
    ("lte", 3, 3, True),
    ("lte", 3, 3.1, False),
    ("lte", "2026-03-01", "2026-03-01T23:59", True),
    ("lte", "2026-03-01", "2026-03-02", False),
    ("before", "2026-03-01", "2026-02-28T23:59:59", True),
    ("before", "2026-03-01", "2026-03-01", False),
    ("before", "2026-03-01", "随时", False),
    ("before", "2026-03-01", "2026-13-45", False),
    ("before", "2026年3月1日", "2025年12月31日", True),
    ("before", "2026-03-01T08:00:00Z", "2026-03-01T09:00:00+02:00", True),
    ("before", "2026-03-01T08:00:00Z", "2026-03-01T09:00:00+01:00", False),
    ("before", 1_772_352_000, 1_772_351_999, True),
    ("before", "1772352000", 1_772_352_001, False),
    ("before", "2026-03-01", 1e300, False),
    ("after", "2026-03-01", "2026-03-02", True),
    ("after", "2026-03-01", "2026-03-01T23:00:00", False),
    ("after", "2026-03-01T08:00:00", "2026-03-01T08:00:01", True),
    ("after", "2026-03-01", ["2025-01-01", "2026-06-01"], True),
    ("after", "2026-03-01", True, False),
]


@pytest.mark.parametrize(("comparison", "value", "held", "expected"), COMPARED)
def test_a_comparison(kb, comparison, value, held, expected):
    assert holds(kb, {"field": held}, comparison, value) is expected


def test_a_time_without_a_zone_is_one_of_the_installation(kb, settings):
    settings.TIME_ZONE = "Asia/Shanghai"

    assert holds(kb, {"field": "2026-03-01 07:59:00"}, "before", "2026-03-01T00:00:00Z")
    assert not holds(kb, {"field": "2026-03-01 08:01:00"}, "before", "2026-03-01T00:00:00Z")


@pytest.mark.parametrize(
    ("name", "comparison", "value", "expected"),
    [
        ("title", "contains", "手册", True),
        ("title", "is", "手册", False),
        ("document_name", "starts_with", "员工", True),
        ("source", "ends_with", ".pdf", True),
        ("path", "is", "handbook.pdf", True),
        ("tags", "contains", "人事", True),
        ("tags", "is", "财务", False),
        ("tags", "not_empty", None, True),
        ("source_type", "is", "web", True),
        ("created_at", "after", "2026-02-28", True),
        ("created_at", "before", "2026-02-28", False),
        ("upload_date", "eq", "2026-03-01", True),
        ("updated_at", "not_empty", None, True),
        ("document_id", "empty", None, False),
    ],
)
def test_fields_of_a_document(kb, settings, name, comparison, value, expected):
    settings.TIME_ZONE = "Asia/Shanghai"
    document = make_document(
        kb, "文", title="员工手册", source="handbook.pdf", tags=["人事", "制度"], source_type="web", metadata={"a": 1}
    )
    Document.objects.filter(pk=document.pk).update(created_at=datetime(2026, 3, 1, 8, tzinfo=UTC))

    found = passing(kb, [{"names": [name], "comparison": comparison, "value": value}])

    assert (document in found) is expected


def test_a_documents_own_metadata_come_before_its_fields(kb):
    assert holds(kb, {"title": "自己的"}, "is", "自己的", name="title", title="文档的")


def test_a_condition_on_several_names_holds_for_any_of_them_and_its_negation_for_none(kb):
    by_tag, by_category, neither = (
        make_document(kb, "文", metadata=each) for each in ({"tag": "AI"}, {"category": "AI"}, {"tag": "B"})
    )
    names = ["category", "tag"]

    assert passing(kb, [{"names": names, "comparison": "contains", "value": "AI"}]) == {by_tag, by_category}
    assert passing(kb, [{"names": names, "comparison": "not_contains", "value": "AI"}]) == {neither}
    assert passing(kb, [{"names": names, "comparison": "empty"}]) == set()


def test_no_condition_filters_nothing():
    assert Filters.parse({"matching": {"logic": None, "conditions": None}}).is_empty
    assert Filters.parse({"matching": {"conditions": []}}).is_empty


@pytest.mark.parametrize(
    ("matching", "field"),
    [
        ([], "matching"),
        ({"conditions": {}, "else": 1}, "matching"),
        ({"logic": "xor"}, "matching.logic"),
        ({"conditions": {"a": 1}}, "matching.conditions"),
        ({"conditions": ["a"]}, "matching.conditions[0]"),
        ({"conditions": [{"names": ["a"]}]}, "matching.conditions[0]"),
        ({"conditions": [{"names": [], "comparison": "is", "value": 1}]}, "matching.conditions[0].names"),
        ({"conditions": [{"names": ["a\0"], "comparison": "is", "value": 1}]}, "matching.conditions[0].names[0]"),
        ({"conditions": [{"names": ["a"], "comparison": "like", "value": 1}]}, "matching.conditions[0].comparison"),
        ({"conditions": [{"names": ["a"], "comparison": "is"}]}, "matching.conditions[0].value"),
        ({"conditions": [{"names": ["a"], "comparison": "is", "value": {}}]}, "matching.conditions[0].value"),
        ({"conditions": [{"names": ["a"], "comparison": "in", "value": []}]}, "matching.conditions[0].value"),
        ({"conditions": [{"names": ["a"], "comparison": "gt", "value": "高"}]}, "matching.conditions[0].value"),
        ({"conditions": [{"names": ["a"], "comparison": "before", "value": "soon"}]}, "matching.conditions[0].value"),
        ({"conditions": [{"names": ["a"], "comparison": "after", "value": True}]}, "matching.conditions[0].value"),
        ({"conditions": [{"names": ["a"], "comparison": "after", "value": 1e12}]}, "matching.conditions[0].value"),
        (
            {"conditions": [{"names": ["a"], "comparison": "after", "value": "9999-12-31"}]},
            "matching.conditions[0].value",
        ),
        ({"conditions": [{"names": ["a"], "comparison": "is", "value": "a"}] * 51}, "matching.conditions"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(matching, field):
    with pytest.raises(InvalidFilter) as refused:
        Filters.parse({"matching": matching})

    assert refused.value.field == field


# -- Any mixture, against what it should find ---------------------------------------------------------------------------
TEXTS = st.sampled_from(["", "人事", "人事部", "财务", "AI", "1", "2.5", "12", "100%", "a,b"])
NUMBERS = st.sampled_from([0, 1, 2.5, 12, -3, 2024])
LEAVES = st.one_of(TEXTS, NUMBERS, st.booleans(), st.none())
HELD = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
METADATA = st.dictionaries(st.sampled_from(["甲", "乙"]), HELD, max_size=2)
NAMES = st.lists(st.sampled_from(["甲", "乙", "丙"]), min_size=1, max_size=2)
OF_TEXT = ["contains", "not_contains", "starts_with", "ends_with", "is", "is_not", "in", "not_in", "empty", "not_empty"]
CONDITIONS = st.one_of(
    st.fixed_dictionaries({"names": NAMES, "comparison": st.sampled_from(OF_TEXT), "value": TEXTS}),
    st.fixed_dictionaries(
        {"names": NAMES, "comparison": st.sampled_from(["eq", "ne", "gt", "lt", "gte", "lte"]), "value": NUMBERS}
    ),
)
OPPOSITE = {"not_contains": "contains", "is_not": "is", "not_in": "in", "ne": "eq", "empty": "not_empty"}


def leaves(held):
    if isinstance(held, list):
        return [leaf for each in held for leaf in leaves(each)]
    return [] if held is None else [held]


def as_text(leaf):
    return leaf if isinstance(leaf, str) else json.dumps(leaf)


def as_number(leaf):
    if isinstance(leaf, bool):
        return None
    try:
        return float(leaf)
    except ValueError:
        return None


TESTS = {
    "contains": lambda leaf, value: value in as_text(leaf),
    "starts_with": lambda leaf, value: as_text(leaf).startswith(value),
    "ends_with": lambda leaf, value: as_text(leaf).endswith(value),
    "is": lambda leaf, value: as_text(leaf) == value or (is_number(leaf) and as_number(value) == leaf),
    "in": lambda leaf, value: any(TESTS["is"](leaf, each) for each in [value, *filter(None, value.split(","))]),
    "not_empty": lambda leaf, value: as_text(leaf) != "",
    "eq": lambda leaf, value: as_number(leaf) == value,
    "gt": lambda leaf, value: as_number(leaf) is not None and as_number(leaf) > value,
    "lt": lambda leaf, value: as_number(leaf) is not None and as_number(leaf) < value,
    "gte": lambda leaf, value: as_number(leaf) is not None and as_number(leaf) >= value,
    "lte": lambda leaf, value: as_number(leaf) is not None and as_number(leaf) <= value,
}


def is_number(leaf):
    return isinstance(leaf, int | float) and not isinstance(leaf, bool)


def meets(metadata, condition):
    comparison = condition["comparison"]
    test = TESTS[OPPOSITE.get(comparison, comparison)]
    fits = any(test(leaf, condition["value"]) for name in condition["names"] for leaf in leaves(metadata.get(name)))
    return fits != (comparison in OPPOSITE)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    conditions=st.lists(CONDITIONS, min_size=1, max_size=4),
    logic=st.sampled_from(list(Logic)),
    held=st.lists(METADATA, min_size=1, max_size=4),
)
def test_and_and_or_find_what_python_finds(kb, rows, conditions, logic, held):
    for row, metadata in zip(rows, [*held, {}, {}, {}, {}], strict=False):
        Document.objects.filter(pk=row.pk).update(metadata=metadata)
    held = [*held, {}, {}, {}, {}][: len(rows)]
    joined = all if logic is Logic.AND else any

    expected = {
        row
        for row, metadata in zip(rows, held, strict=True)
        if joined(meets(metadata, condition) for condition in conditions)
    }

    assert passing(kb, conditions, logic) == expected


@pytest.fixture
def rows(kb):
    return [make_document(kb, "文") for _ in range(4)]


@given(conditions=st.lists(CONDITIONS, min_size=1, max_size=3), logic=st.sampled_from(list(Logic)))
def test_what_filters_write_they_read_again(conditions, logic):
    filters = Filters.parse({"matching": {"logic": logic, "conditions": conditions}})

    assert Filters.parse(json.loads(json.dumps(filters.as_dict()))) == filters


def test_every_comparison_is_shown_to_hold_and_not_to_hold():
    assert {(comparison, held) for comparison, _value, _field, held in COMPARED} == {
        (comparison.value, held) for comparison in LENIENT_OPERATORS for held in (True, False)
    }
