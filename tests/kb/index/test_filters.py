import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, strategies as st

from kb.base.text import InvalidFilter
from kb.index.conditions import STRICT_OPERATORS, Condition, Operator
from kb.index.filters import Filters, chunk_ids
from kb.models import Chunk, Concept, ConceptTerm, Document
from tests.factories import make_document, make_kb, make_member, make_user, principal

NOW = datetime(2026, 3, 1, 8, tzinfo=UTC)


@pytest.fixture
def kb():
    return make_kb()


def add(kb, *texts, **fields):
    return make_document(kb, *(texts or ["文"]), **fields)


def passing(kb, mapping, *, user=None, **scope):
    """The documents whose chunks pass."""
    found = chunk_ids(kb.pk, principal(user or kb.owner, **scope), Filters.parse(mapping))
    return set(Document.objects.filter(chunks__in=found.tolist()))


def where(key, op, *value):
    return {"metadata": [{"key": key, "op": op, **dict(zip(["value"], value, strict=False))}]}


class TestParse:
    def test_every_field_is_read(self):
        given = {
            "document_ids": [3, 1],
            "tags": ["保修"],
            "concepts": [7, "温控器"],
            "source_types": ["qa", "web"],
            "metadata": [{"key": "year", "op": "gte", "value": 2020}, {"key": "draft", "op": "exists", "value": False}],
            "created_after": "2026-03-01T08:00:00Z",
            "created_before": "2026-03-02T08:00:00+00:00",
        }

        assert Filters.parse(given) == Filters(
            document_ids=(3, 1),
            tags=("保修",),
            concepts=(7, "温控器"),
            source_types=("qa", "web"),
            metadata=(Condition(("year",), Operator.GTE, 2020), Condition(("draft",), Operator.EXISTS, value=False)),
            created_after=NOW,
            created_before=NOW + timedelta(days=1),
        )

    def test_what_it_writes_it_reads_again(self):
        filters = Filters.parse(
            {"tags": ["a"], "created_after": "2026-03-01", **where("year", "in", [1, "2", None])},
        )

        assert Filters.parse(json.loads(json.dumps(filters.as_dict()))) == filters

    def test_nothing_and_null_are_no_filter(self):
        assert Filters.parse({}).is_empty
        assert Filters.parse({"tags": None, "metadata": []}).is_empty
        assert not Filters.parse({"tags": ["a"]}).is_empty

    def test_a_date_is_its_first_moment_where_the_installation_is(self, settings):
        settings.TIME_ZONE = "Asia/Shanghai"

        assert Filters.parse({"created_after": "2026-03-01"}).created_after == NOW - timedelta(hours=16)

    @pytest.mark.parametrize(
        ("mapping", "field"),
        [
            ([], "filters"),
            ({"tag": ["a"]}, "tag"),
            ({"document_ids": 3}, "document_ids"),
            ({"document_ids": []}, "document_ids"),
            ({"document_ids": [1, "2"]}, "document_ids[1]"),
            ({"document_ids": [True]}, "document_ids[0]"),
            ({"document_ids": [2**63]}, "document_ids[0]"),
            ({"document_ids": list(range(1, 1_002))}, "document_ids"),
            ({"tags": "保修"}, "tags"),
            ({"tags": [""]}, "tags[0]"),
            ({"tags": ["a\0"]}, "tags[0]"),
            ({"concepts": [1.5]}, "concepts[0]"),
            ({"source_types": ["film"]}, "source_types[0]"),
            ({"created_after": "yesterday"}, "created_after"),
            ({"created_after": "2026-02-30"}, "created_after"),
            ({"created_after": "0001-01-01T00:00:00+21:54"}, "created_after"),
            ({"created_before": "9999-12-31T23:59:59-12:00"}, "created_before"),
            ({"created_before": 5}, "created_before"),
            ({"metadata": {"year": 2020}}, "metadata"),
            ({"metadata": ["year"]}, "metadata[0]"),
            ({"metadata": [{"key": "year"}]}, "metadata[0]"),
            ({"metadata": [{"key": "year", "op": "eq", "value": 1, "or": 2}]}, "metadata[0]"),
            ({"metadata": [{"key": "year", "op": "like", "value": 1}]}, "metadata[0].op"),
            ({"metadata": [{"key": "", "op": "eq", "value": 1}]}, "metadata[0].key"),
            ({"metadata": [{"key": "year", "op": ["eq"], "value": 1}]}, "metadata[0].op"),
            (where("year", "eq", {"a": 1}), "metadata[0].value"),
            (where("year", "eq", float("nan")), "metadata[0].value"),
            (where("year", "eq", 10**400), "metadata[0].value"),
            (where("year", "eq", "\ud800"), "metadata[0].value"),
            (where("year", "gt", True), "metadata[0].value"),
            (where("year", "lt", None), "metadata[0].value"),
            (where("year", "in", 3), "metadata[0].value"),
            (where("year", "in", []), "metadata[0].value"),
            (where("year", "in", [[1]]), "metadata[0].value[0]"),
            (where("year", "exists", "yes"), "metadata[0].value"),
        ],
    )
    def test_what_cannot_be_used_is_refused_by_name(self, mapping, field):
        with pytest.raises(InvalidFilter) as refused:
            Filters.parse(mapping)

        assert refused.value.field == field
        assert str(refused.value)

    @given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
    def test_whatever_is_given_is_read_or_refused(self, value):
        for mapping in ({"tags": value}, {"created_after": value}, {"metadata": value}, where("a", "lt", value)):
            with suppress(InvalidFilter):
                assert Filters.parse(Filters.parse(mapping).as_dict()) == Filters.parse(mapping)


@pytest.mark.django_db
class TestChunkIds:
    def test_no_filter_is_told_apart_from_finding_nothing(self, kb):
        assert chunk_ids(kb.pk, principal(kb.owner), Filters()) is None
        assert chunk_ids(kb.pk, principal(kb.owner), Filters(tags=("a",))).tolist() == []

    def test_ids_ascend_and_come_in_one_query(self, kb, django_assert_num_queries):
        first, second = add(kb, "甲", "乙", tags=["a"]), add(kb, "丙", tags=["a"])
        reader = principal(kb.owner)

        with django_assert_num_queries(1):
            found = chunk_ids(kb.pk, reader, Filters(tags=("a",)))

        expected = Chunk.objects.filter(document__in=[first, second]).order_by("pk").values_list("pk", flat=True)
        assert found.tolist() == list(expected)

    def test_disabled_chunks_do_not_pass(self, kb):
        Chunk.objects.filter(document=add(kb, tags=["a"])).update(enabled=False)

        assert passing(kb, {"tags": ["a"]}) == set()

    def test_other_knowledge_bases_do_not_pass(self, kb):
        add(make_kb(kb.owner), tags=["a"])

        assert passing(kb, {"tags": ["a"]}) == set()

    def test_only_those_who_may_see_the_knowledge_base_find_anything(self, kb):
        document = add(kb, tags=["a"])

        assert passing(kb, {"tags": ["a"]}, user=make_member(kb)) == {document}
        assert passing(kb, {"tags": ["a"]}, user=make_user()) == set()
        assert passing(kb, {"tags": ["a"]}, kb_ids=frozenset({kb.pk + 1})) == set()
        kb.owner.is_active = False
        assert passing(kb, {"tags": ["a"]}) == set()

    def test_documents_by_id(self, kb):
        wanted, _ = add(kb), add(kb)

        assert passing(kb, {"document_ids": [wanted.pk, wanted.pk + 1_000]}) == {wanted}

    def test_documents_with_any_of_the_tags(self, kb):
        first, second, _ = add(kb, tags=["a", "x"]), add(kb, tags=["b"]), add(kb, tags=["c"])

        assert passing(kb, {"tags": ["a", "b"]}) == {first, second}

    def test_documents_by_source_type(self, kb):
        question, _ = add(kb, source_type="qa"), add(kb, source_type="book")

        assert passing(kb, {"source_types": ["qa", "video"]}) == {question}

    def test_documents_by_the_time_they_were_added(self, kb):
        before, at, after = add(kb), add(kb), add(kb)
        for document, moment in ((before, NOW - timedelta(seconds=1)), (at, NOW), (after, NOW + timedelta(days=1))):
            Document.objects.filter(pk=document.pk).update(created_at=moment)

        assert passing(kb, {"created_after": NOW.isoformat()}) == {at, after}
        far = NOW.astimezone(timezone(timedelta(hours=21, minutes=54)))  # PostgreSQL knows no such zone
        assert passing(kb, {"created_after": far.isoformat()}) == {at, after}
        assert passing(kb, {"created_before": NOW.isoformat()}) == {before}
        assert passing(kb, {"created_after": NOW.isoformat(), "created_before": "2026-03-02"}) == {at}

    def test_all_conditions_must_be_met(self, kb):
        both, _, _ = add(kb, tags=["a"], source_type="qa"), add(kb, tags=["a"]), add(kb, source_type="qa")

        assert passing(kb, {"tags": ["a"], "source_types": ["qa"]}) == {both}


@pytest.mark.django_db
class TestConcepts:
    @pytest.fixture
    def device(self, kb):
        return Concept.objects.create(knowledge_base=kb, name="设备")

    @pytest.fixture
    def thermostat(self, kb, device):
        return Concept.objects.create(knowledge_base=kb, name="Thermostat", parent=device)

    @pytest.fixture
    def document(self, kb, thermostat):
        document = add(kb)
        add(kb)
        document.concepts.add(thermostat)
        return document

    def test_by_id(self, kb, document, thermostat):
        assert passing(kb, {"concepts": [thermostat.pk]}) == {document}

    def test_by_name_however_it_is_written(self, kb, document):
        assert passing(kb, {"concepts": ["\uff34HERMO\uff33TAT"]}) == {document}

    def test_by_a_synonym(self, kb, document, thermostat):
        ConceptTerm.objects.create(concept=thermostat, text="温控器")

        assert passing(kb, {"concepts": ["温控器"]}) == {document}

    def test_a_wider_concept_finds_the_documents_of_narrower_ones(self, kb, document, device):
        assert passing(kb, {"concepts": [device.pk]}) == {document}

    def test_a_narrower_concept_does_not_find_those_of_wider_ones(self, kb, device, thermostat):
        add(kb).concepts.add(device)

        assert passing(kb, {"concepts": [thermostat.pk]}) == set()

    def test_a_circle_of_concepts_ends(self, kb, document, device, thermostat):
        Concept.objects.filter(pk=device.pk).update(parent=thermostat)

        assert passing(kb, {"concepts": [device.pk]}) == {document}

    def test_concepts_of_other_knowledge_bases_are_unknown(self, kb, document):
        other = Concept.objects.create(knowledge_base=make_kb(), name="别处")
        document.concepts.add(other)

        assert passing(kb, {"concepts": [other.pk, "别处"]}) == set()


@pytest.mark.django_db
class TestMetadata:
    @pytest.mark.parametrize(
        ("metadata", "op", "value", "passes"),
        [
            ({"k": "a"}, "eq", "a", True),
            ({"k": "a"}, "eq", "A", False),
            ({"k": 1}, "eq", 1.0, True),
            ({"k": "1"}, "eq", 1, False),
            ({"k": True}, "eq", 1, False),
            ({"k": True}, "eq", True, True),
            ({"k": None}, "eq", None, True),
            ({}, "eq", None, False),
            ({"k": "a"}, "ne", "b", True),
            ({"k": "a"}, "ne", "a", False),
            ({"k": 1}, "ne", "1", True),
            ({}, "ne", "a", True),
            ({"k": 10}, "gt", 9, True),
            ({"k": 9}, "gt", 9, False),
            ({"k": 9}, "gte", 9, True),
            ({"k": -0.5}, "lt", 0, True),
            ({"k": 9}, "lte", 8.9, False),
            ({"k": "10"}, "gt", 9, False),
            ({"k": 10}, "gt", "9", False),
            ({"k": "2026-03-01"}, "gte", "2026-02-28", True),
            ({"k": "2026-03-01"}, "lt", "2026-02-28", False),
            ({"k": True}, "gt", 0, False),
            ({"k": None}, "lt", 5, False),
            ({"k": [1]}, "gt", 0, False),
            ({}, "lt", 5, False),
            ({"k": 2}, "in", [1, 2], True),
            ({"k": "2"}, "in", [1, 2], False),
            ({"k": "b"}, "in", ["a", "b", None], True),
            ({}, "in", ["a"], False),
            ({"k": ["a", "b"]}, "contains", "b", True),
            ({"k": ["ab"]}, "contains", "b", False),
            ({"k": [1, 2]}, "contains", 2, True),
            ({"k": [1, 2]}, "contains", "2", False),
            ({"k": "abc"}, "contains", "b", True),
            ({"k": "a%c"}, "contains", "_", False),
            ({"k": 123}, "contains", 2, False),
            ({"k": {"b": 1}}, "contains", "b", False),
            ({}, "contains", "b", False),
            ({"k": None}, "exists", True, True),
            ({}, "exists", True, False),
            ({}, "exists", False, True),
            ({"k": 0}, "exists", None, True),
        ],
    )
    def test_values_are_compared_as_what_they_are(self, kb, metadata, op, value, passes):
        document = add(kb, metadata=metadata)

        assert passing(kb, where("k", op, value)) == ({document} if passes else set())

    def test_all_conditions_must_be_met(self, kb):
        both, _ = add(kb, metadata={"a": 1, "b": 2}), add(kb, metadata={"a": 1})

        assert passing(kb, {"metadata": [*where("a", "eq", 1)["metadata"], *where("b", "eq", 2)["metadata"]]}) == {both}

    @pytest.mark.parametrize("op", [op for op in STRICT_OPERATORS if op is not Operator.EXISTS])
    @pytest.mark.parametrize("text", ["' OR true --", '"', "\\", "%s", "{}", "'::jsonb", "\U0001f600", "$1", "?"])
    def test_whatever_a_key_and_a_value_hold_they_are_values(self, kb, op, text):
        document = add(kb, metadata={text: text})
        add(kb, metadata={text: "z"} if op is not Operator.NE else {text: text})
        value = [text] if op is Operator.IN else text

        found = passing(kb, where(text, op, value))

        assert document in found if op in {"eq", "in", "contains", "gte", "lte"} else document not in found
