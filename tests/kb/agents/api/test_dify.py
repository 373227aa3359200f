"""Dify's External Knowledge API, request by request; tests/live/test_dify.py has a server behind a port."""

import pytest
from django.utils import timezone

from kb.agents.dify import COMPARISONS, RRF_HALF, unit_score
from kb.index.conditions import LENIENT_OPERATORS
from kb.models import Document, KnowledgeBase, SearchLog
from kb.search.services import search_log
from tests import factories

pytestmark = pytest.mark.django_db

URL = "/api/dify/retrieval"


@pytest.fixture
def secret(owner):
    return factories.make_api_key(owner)[1]


@pytest.fixture
def ask(client_with, secret, kb):
    """Sends what Dify sends, but for what the test says."""

    def send(secret=secret, url=URL, **fields):
        body = {
            "retrieval_setting": {"top_k": 2, "score_threshold": 0.0},
            "query": "年假有几天",
            "knowledge_id": str(kb.pk),
            "metadata_condition": None,
            **fields,
        }
        return client_with(secret).post(url, body, format="json")

    return send


@pytest.fixture
def titles(ask):
    """The titles that a condition lets through."""

    def find(*conditions, logic="and", **fields):
        condition = {"logical_operator": logic, "conditions": list(conditions)}
        setting = {"top_k": 50, "score_threshold": 0.0}
        found = ask(**{"retrieval_setting": setting, "metadata_condition": condition, **fields})
        assert found.status_code == 200, found.json()
        return {record["title"] for record in found.json()["records"]}

    return find


def where(name, operator, *value):
    condition = {"name": name, "comparison_operator": operator}
    return {**condition, "value": value[0]} if value else condition


class TestRecords:
    def test_a_record_is_a_chunk_with_its_document(self, ask, document, chunk, kb):
        found = ask()

        (first, _second) = found.json()["records"]
        trace_id = first["metadata"].pop("trace_id")
        assert first == {
            "content": chunk.text,
            "score": pytest.approx(first["score"]),
            "title": "员工手册",
            "metadata": {
                "author": "Li",
                "tags": ["人事"],
                "source_type": "book",
                "heading_path": [],
                "document_id": str(document.pk),
                "chunk_id": str(chunk.pk),
                "knowledge_base_id": str(kb.pk),
                "path": "notes.txt",
                "source": "notes.txt",
                "page": None,
                "score_scale": "overlap",
                "relevance": first["metadata"]["relevance"],
                "degraded": ["hashing_embedder"],
            },
        }
        assert found.headers["Zhiku-Trace-Id"] == trace_id
        assert found.headers["Zhiku-Degraded"] == "hashing_embedder"
        assert set(found.json()) == {"records"}

    def test_near_misses_are_no_records(self, ask, document, cut_at):
        cut_at(0.98)
        found = ask(retrieval_setting={"top_k": 2, "score_threshold": None})
        assert found.json() == {"records": []}
        search_log.flush()
        assert any(each["near_miss"] for each in SearchLog.objects.get().trace["candidates"])

    def test_the_search_is_in_the_log_under_its_trace(self, ask, document):
        trace_id = ask().headers["Zhiku-Trace-Id"]
        search_log.flush()

        assert SearchLog.objects.get(pk=trace_id).query == "年假有几天"

    def test_scores_are_from_0_to_1_and_fall(self, ask, document):
        scores = [record["score"] for record in ask(query="年假 员工 home").json()["records"]]

        assert scores == sorted(scores, reverse=True)
        assert all(0 <= score <= 1 for score in scores)

    def test_fused_scores_are_too(self):
        assert 0 < unit_score(0.0164, "rrf") < unit_score(0.0328, "rrf") < 1
        assert unit_score(RRF_HALF, "rrf") == 0.5
        assert unit_score(0, "rrf") == 0
        assert unit_score(-0.4, "cosine") == 0
        assert unit_score(1.0000001, "cross_encoder") == 1
        assert unit_score(0.7, "overlap") == 0.7

    def test_a_documents_own_keys_do_not_hide_its_ids(self, ask, kb):
        document = factories.make_document(
            kb, "年假五天。", metadata={"document_id": "A-1", "path": "/x"}, source="s.md"
        )

        (record,) = ask().json()["records"]

        assert record["metadata"]["document_id"] == str(document.pk)
        assert record["metadata"]["path"] == "s.md"
        assert record["title"] == "s.md"

    def test_showing_a_record_loads_nothing(self, ask, kb):
        link = "![](https://evil.example/p.png)"
        factories.make_document(kb, f"annual leave {link}", title=f"leave{link}")

        records = [each for each in ask(query="annual leave").json()["records"] if "evil.example" in each["title"]]

        assert len(records) == 1
        assert "](" not in records[0]["title"] + records[0]["content"]

    def test_nothing_found_is_an_empty_list(self, ask, kb):
        assert ask().json() == {"records": []}


class TestSettings:
    def test_top_k_bounds_the_records(self, ask, document):
        assert len(ask(retrieval_setting={"top_k": 1, "score_threshold": 0.0}).json()["records"]) == 1

    def test_top_k_may_be_null_and_is_the_profiles_then(self, ask, document):
        assert len(ask(retrieval_setting={"top_k": None, "score_threshold": 0.0}).json()["records"]) == 2

    def test_a_threshold_of_0_gates_nothing_and_a_high_one_gates(self, ask, document):
        query = "太阳能电池的温度系数"
        low, high = ({"top_k": 5, "score_threshold": each} for each in (0.0, 0.99))

        assert ask(query=query, retrieval_setting=low).json()["records"]
        assert ask(query=query, retrieval_setting=high).json() == {"records": []}

    @pytest.mark.parametrize("setting", [{}, None, {"top_k": 3}, {"score_threshold": None}, {"reranking": True}])
    def test_absent_keys_and_new_ones_are_taken(self, ask, document, setting):
        assert ask(retrieval_setting=setting).status_code == 200

    def test_without_a_threshold_the_profiles_gate_stands(self, ask, document):
        assert ask(query="太阳能电池的温度系数", retrieval_setting={}).json() == {"records": []}

    def test_keys_that_are_not_there_at_all(self, client_with, secret, document, kb):
        body = {"knowledge_id": str(kb.pk), "query": "年假有几天"}

        assert client_with(secret).post(URL, body, format="json").json()["records"]

    def test_with_and_without_a_slash_at_the_end(self, ask, document):
        assert ask(url=URL + "/").json()["records"] == ask().json()["records"]


class TestConditions:
    @pytest.fixture(autouse=True)
    def _documents(self, kb):
        for title, metadata in (
            ("甲", {"部门": "人事部", "year": 2023, "date": "2023-05-01"}),
            ("乙", {"部门": "财务部", "year": 2024, "date": "2024-05-01"}),
            ("丙", {"部门": "", "tag": ["AI", "年假"]}),
        ):
            factories.make_document(kb, f"{title}：年假有几天", title=title, metadata=metadata)

    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            (where("部门", "contains", "人事"), "甲"),
            (where("部门", "not contains", "人事"), "乙丙"),
            (where("部门", "start with", "财务"), "乙"),
            (where("部门", "end with", "部"), "甲乙"),
            (where("部门", "is", "财务部"), "乙"),
            (where("部门", "is not", "财务部"), "甲丙"),
            (where("部门", "in", ["人事部", "财务部"]), "甲乙"),
            (where("部门", "not in", ["人事部", "财务部"]), "丙"),
            (where("部门", "empty"), "丙"),
            (where("部门", "empty", None), "丙"),
            (where("year", "null"), "丙"),
            (where("部门", "not empty"), "甲乙"),
            (where("year", "not null"), "甲乙"),
            (where("year", "=", 2023), "甲"),
            (where("year", "=", "2023"), "甲"),
            (where("year", "≠", 2023), "乙丙"),
            (where("year", "!=", 2023), "乙丙"),
            (where("year", ">", 2023), "乙"),
            (where("year", "\u203a", 2023), "乙"),
            (where("year", "<", "2024"), "甲"),
            (where("year", "\u2039", 2024), "甲"),
            (where("year", "≥", 2023), "甲乙"),
            (where("year", ">=", 2024), "乙"),
            (where("year", "≤", 2023), "甲"),
            (where("year", "<=", 2024), "甲乙"),
            (where("date", "before", "2024-01-01"), "甲"),
            (where("date", "after", "2024-01-01"), "乙"),
            (where("date", "after", 1_704_067_200), "乙"),
            (where(["tag", "部门"], "contains", "A"), "丙"),
            (where(["category", "tag"], "contains", "AI"), "丙"),
            (where("title", "is", "甲"), "甲"),
            (where("document_name", "in", "甲,丙"), "甲丙"),
            (where("upload_date", "before", "2001-01-01"), ""),
        ],
    )
    def test_a_condition(self, titles, condition, expected):
        assert titles(condition) == set(expected)

    def test_every_comparison_is_tried_above(self):
        tried = [mark.args[1] for mark in self.test_a_condition.pytestmark if mark.name == "parametrize"]

        assert {condition["comparison_operator"] for condition, _ in tried[0]} == set(COMPARISONS)
        assert set(COMPARISONS.values()) == set(LENIENT_OPERATORS)

    def test_and_wants_all_and_or_any(self, titles):
        conditions = where("year", "≥", 2023), where("部门", "contains", "财务")

        assert titles(*conditions) == {"乙"}
        assert titles(*conditions, logic="or") == {"甲", "乙"}
        assert titles(*conditions, logic=None) == {"乙"}

    @pytest.mark.parametrize("condition", [{}, {"conditions": None}, {"logical_operator": "or", "conditions": []}])
    def test_no_condition_filters_nothing(self, ask, condition):
        assert len(ask(metadata_condition=condition, retrieval_setting={"top_k": 9}).json()["records"]) == 3

    def test_documents_that_pass_are_found_however_many_do_not(self, titles, kb):
        Document.objects.filter(title="丙").update(metadata={"rare": True})

        assert titles(where("rare", "is", "true"), retrieval_setting={"top_k": 1, "score_threshold": 0.0}) == {"丙"}


class TestErrors:
    @pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Token abc", "Basic YTpi", "Bearer a b"])
    def test_a_header_that_holds_no_key(self, anonymous, header):
        headers = {} if header is None else {"Authorization": header}
        refused = anonymous.post(URL, headers=headers)

        assert (refused.status_code, refused.json()["error_code"]) == (403, 1001)
        assert set(refused.json()) == {"error_code", "error_msg"}

    def test_a_key_that_opens_nothing(self, client_with, owner):
        revoked, expired = (
            factories.make_api_key(owner, **fields)[1]
            for fields in ({"revoked": True}, {"expiry_date": timezone.now()})
        )
        for secret in ("x", f"{'a' * 8}.{'b' * 40}", revoked, expired):
            refused = client_with(secret).post(URL)
            assert (refused.status_code, refused.json()["error_code"]) == (403, 1002)

    def test_the_probe_of_a_good_key(self, client_with, secret):
        refused = client_with(secret).generic("POST", URL)

        assert (refused.status_code, refused.json()["error_code"]) == (400, 400)

    def test_a_session_is_no_key(self, client, kb):
        assert client.post(URL, {}, format="json").json()["error_code"] == 1001

    @pytest.mark.parametrize("knowledge_id", ["0", "999999", "AAA-BBB-CCC", "-1", "1.0", "9" * 19, "\uff19", "no such"])
    def test_an_unknown_knowledge_base(self, ask, document, knowledge_id):
        refused = ask(knowledge_id=knowledge_id)

        assert (refused.status_code, refused.json()["error_code"]) == (404, 2001)

    def test_that_of_another_and_one_that_the_key_is_not_bound_to(self, ask, owner, kb, document):
        stranger = factories.make_kb()
        bound = factories.make_api_key(owner, factories.make_kb(owner))[1]

        for refused in (ask(knowledge_id=str(stranger.pk)), ask(secret=bound)):
            assert (refused.status_code, refused.json()["error_code"]) == (404, 2001)

    @pytest.mark.parametrize(
        "fields",
        [
            {"query": ""},
            {"query": None},
            {"query": "a" * 2_001},
            {"knowledge_id": 1},
            {"knowledge_id": None},
            {"retrieval_setting": []},
            {"retrieval_setting": {"top_k": 0}},
            {"retrieval_setting": {"top_k": "5"}},
            {"retrieval_setting": {"score_threshold": 1.5}},
            {"metadata_condition": []},
            {"metadata_condition": {"logical_operator": "xor"}},
            {"metadata_condition": {"conditions": {}}},
            {"metadata_condition": {"conditions": [where("a", "like", "b")]}},
            {"metadata_condition": {"conditions": [where([], "is", "b")]}},
            {"metadata_condition": {"conditions": [where(["a", 1], "is", "b")]}},
            {"metadata_condition": {"conditions": [where("a", 5, "b")]}},
            {"metadata_condition": {"conditions": [where("a", "is")]}},
            {"metadata_condition": {"conditions": [where("a", ">", "much")]}},
            {"metadata_condition": {"conditions": [where("a", "before", "soon")]}},
            {"metadata_condition": {"conditions": [where("a\0", "is", "b")]}},
        ],
    )
    def test_what_is_not_valid(self, ask, fields):
        refused = ask(**fields)

        assert (refused.status_code, refused.json()["error_code"]) == (400, 400)
        assert refused.json()["error_msg"]

    def test_the_place_of_what_is_not_valid_is_told_in_dify_s_words(self, ask):
        refused = ask(metadata_condition={"conditions": [where("a", "is", "b"), where("a", ">", "much")]})

        assert refused.json()["error_msg"].startswith("metadata_condition.conditions.1.value: ")
        assert "matching" not in refused.json()["error_msg"]

    @pytest.mark.parametrize(("body", "type_"), [("{", "application/json"), ("[]", "application/json")])
    def test_what_is_no_json_object(self, client_with, secret, body, type_):
        assert client_with(secret).generic("POST", URL, body, type_).json()["error_code"] == 400

    def test_other_methods(self, client_with, secret):
        refused = client_with(secret).get(URL)

        assert (refused.status_code, refused.json()["error_code"]) == (405, 405)

    def test_no_channel_at_all(self, ask, document, kb, settings):
        KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model="nobody/no-such-model", tokenizer_id="old")
        settings.RETRIEVAL = {**settings.RETRIEVAL, "enable_fts": False, "lexical_fallback": False}

        refused = ask()

        assert (refused.status_code, refused.json()["error_code"]) == (503, 503)
        assert int(refused.headers["Retry-After"]) > 0
