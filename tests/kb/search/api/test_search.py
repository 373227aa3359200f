import pytest

from kb.index.bm25 import BM25Store
from kb.models import KnowledgeBase, SearchLog
from kb.search.services import search_log
from tests import factories
from tests.interleaving import Gate
from tests.kb.index.searching import settle

pytestmark = pytest.mark.django_db

URL = "/api/v1/search/"


@pytest.fixture
def search(client):
    def post(*kb_ids, query="带薪年假", **fields):
        return client.post(URL, {"query": query, "knowledge_base_ids": list(kb_ids), **fields}, format="json")

    return post


def test_a_result_carries_its_text_provenance_and_scores(search, kb, document, chunk):
    response = search(kb.pk)

    assert response.status_code == 200
    first = response.json()["results"][0]
    assert first.keys() == {
        "chunk_id",
        "document_id",
        "knowledge_base_id",
        "title",
        "source",
        "page",
        "seconds",
        "regions",
        "text",
        "score",
        "score_scale",
        "relevance",
        "ranks",
        "scores",
        "metadata",
        "neighbours",
        "matched_text",
        "pictures",
        "equal_question",
    }
    assert (first["chunk_id"], first["document_id"], first["knowledge_base_id"]) == (chunk.pk, document.pk, kb.pk)
    assert (first["title"], first["text"]) == ("员工手册", chunk.text)
    assert first["ranks"]["vector"] == first["ranks"]["bm25"] == 1
    assert first["metadata"]["author"] == "Li"


def test_the_response_has_the_documented_keys(search, kb, document):
    body = search(kb.pk).json()

    assert body.keys() == {
        "query",
        "results",
        "near_misses",
        "facts",
        "degraded",
        "profile",
        "cached",
        "timings_ms",
        "trace_id",
    }
    assert body["profile"] == {"name": "keyword-led", "version": 1}
    assert body["timings_ms"]["total"] > 0


def test_an_explained_search_carries_its_trace(search, kb, document):
    trace = search(kb.pk, explain=True).json()["trace"]

    assert {candidate["chunk_id"] for candidate in trace["candidates"]} == {chunk.pk for chunk in document.chunks.all()}


def test_what_is_degraded_is_said(search, kb, document):
    degraded = search(kb.pk).json()["degraded"]

    assert [(each["stage"], each["code"]) for each in degraded] == [("vector", "hashing_embedder")]


def test_two_knowledge_bases_answer_together(search, kb, document, owner):
    other = factories.make_kb(owner, "policy")
    elsewhere = factories.make_document(other, "带薪年假由主管批准。")

    results = search(kb.pk, other.pk).json()["results"]

    assert {result["document_id"] for result in results[:2]} == {document.pk, elsewhere.pk}
    assert {result["knowledge_base_id"] for result in results} == {kb.pk, other.pk}


def test_only_the_knowledge_bases_asked_for_answer(search, kb, document, owner):
    other = factories.make_kb(owner, "policy")
    factories.make_document(other, "带薪年假由主管批准。")

    assert {result["knowledge_base_id"] for result in search(kb.pk).json()["results"]} == {kb.pk}


def test_top_k_bounds_the_results(search, kb, document):
    assert len(search(kb.pk, top_k=1).json()["results"]) == 1


def test_top_k_wins_over_the_same_setting_in_overrides(search, kb, document):
    assert len(search(kb.pk, top_k=1, overrides={"top_k": 2}).json()["results"]) == 1


def test_a_null_top_k_is_the_profiles(search, kb, document):
    assert len(search(kb.pk, top_k=None, score_threshold=0).json()["results"]) == 2


def test_a_threshold_cuts_what_scores_below_it(search, kb, document, chunk):
    results = search(kb.pk, query="带薪年假", score_threshold=0.1).json()["results"]

    assert [result["chunk_id"] for result in results] == [chunk.pk]


def test_what_lies_below_the_built_in_cut_is_given_apart(search, kb, document, chunk, cut_at):
    cut_at(0.98)
    body = search(kb.pk).json()

    assert body["results"] == []
    near = body["near_misses"][0]
    assert (near["chunk_id"], near["text"], near["relevance"]) == (chunk.pk, chunk.text, "low")
    search_log.flush()
    trace = SearchLog.objects.get().trace
    marked = {each["chunk_id"]: (each["cut_by"], each["near_miss"]) for each in trace["candidates"]}
    assert marked[chunk.pk] == ("gate", True)
    assert SearchLog.objects.get().outcome == SearchLog.Outcome.GATED


def test_results_and_near_misses_are_two_lists_of_one_shape(search, kb, document, cut_at):
    query = "员工带薪年假"
    first, second = search(kb.pk, query=query, score_threshold=0).json()["results"]
    cut_at((first["score"] + second["score"]) / 2)
    body = search(kb.pk, query=query).json()

    assert [each["chunk_id"] for each in body["results"]] == [first["chunk_id"]]
    assert [each["chunk_id"] for each in body["near_misses"]] == [second["chunk_id"]]
    assert body["near_misses"][0].keys() == body["results"][0].keys()
    assert body["results"][0]["relevance"] in {"high", "medium"}
    assert search(kb.pk, query=query, top_k=1).json()["near_misses"] == []


@pytest.mark.parametrize(
    "asked", [{"score_threshold": 0.98}, {"overrides": {"overlap_threshold": 0.98}}, {"score_threshold": 0}], ids=str
)
def test_a_cut_that_the_caller_chose_leaves_no_near_misses(search, kb, document, cut_at, asked):
    cut_at(0.98)

    assert search(kb.pk, **asked).json()["near_misses"] == []


def test_near_misses_are_of_what_the_caller_may_see(search, client_of, kb, document, chunk, cut_at):
    cut_at(0.98)
    member = factories.make_member(kb)
    hidden = factories.make_kb(factories.make_user("stranger"), "secret")
    factories.make_document(hidden, "带薪年假")
    request = {"query": "带薪年假", "knowledge_base_ids": [kb.pk]}

    found = client_of(member).post(URL, request, format="json").json()["near_misses"]
    both = client_of(member).post(URL, {**request, "knowledge_base_ids": [kb.pk, hidden.pk]}, format="json")
    kb.memberships.filter(user=member).delete()
    after = client_of(member).post(URL, request, format="json")

    assert {each["knowledge_base_id"] for each in found} == {kb.pk}
    assert chunk.pk in {each["chunk_id"] for each in found}
    assert (both.status_code, after.status_code) == (404, 404)
    assert "near_misses" not in both.json()


def test_overrides_change_the_configuration_of_one_request(search, kb, document):
    trace = search(kb.pk, overrides={"rrf_k": 10, "use_rerank": False}, explain=True).json()["trace"]

    assert (trace["configuration"]["rrf_k"], trace["configuration"]["use_rerank"]) == (10, False)


def test_a_named_profile_serves_the_request(search, kb, document):
    assert search(kb.pk, profile="default").json()["profile"] == {"name": "default", "version": 1}


def test_an_unknown_profile_is_404_and_names_those_that_exist(search, kb):
    response = search(kb.pk, profile="nonsense")

    assert response.status_code == 404
    assert "keyword-led" in response.json()["detail"]


def test_one_knowledge_base_that_may_not_be_seen_is_404(search, kb, document):
    hidden = factories.make_kb()
    factories.make_document(hidden, "带薪年假")

    response = search(kb.pk, hidden.pk)

    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    assert "results" not in response.json()


def test_a_bound_key_searches_only_its_knowledge_bases(client_with, owner, kb, document):
    other = factories.make_kb(owner, "policy")
    _, secret = factories.make_api_key(owner, kb, scope="read")
    client = client_with(secret)

    def status(kb_id):
        return client.post(URL, {"query": "年假", "knowledge_base_ids": [kb_id]}, format="json").status_code

    assert (status(kb.pk), status(other.pk)) == (200, 404)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"query": ""}, "query"),
        ({"query": " \t　"}, "query"),
        ({"query": 42}, "query"),
        ({"query": "x" * 2_001}, "query"),
        ({"query": "a\0b"}, "query"),
        ({"knowledge_base_ids": []}, "knowledge_base_ids"),
        ({"knowledge_base_ids": list(range(1, 22))}, "knowledge_base_ids"),
        ({"knowledge_base_ids": ["1"]}, "knowledge_base_ids.0"),
        ({"knowledge_base_ids": [True]}, "knowledge_base_ids.0"),
        ({"knowledge_base_ids": [10**30]}, "knowledge_base_ids.0"),
        ({"knowledge_base_ids": 1}, "knowledge_base_ids"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 201}, "top_k"),
        ({"top_k": "5"}, "top_k"),
        ({"top_k": 10**400}, "top_k"),
        ({"score_threshold": 1.1}, "score_threshold"),
        ({"score_threshold": "0.5"}, "score_threshold"),
        ({"score_threshold": False}, "score_threshold"),
        ({"score_threshold": 10**400}, "score_threshold"),
        ({"profile": 1}, "profile"),
        ({"profile_version": 1}, "profile_version"),
        ({"profile": "default", "profile_version": "1"}, "profile_version"),
        ({"profile": "default", "profile_version": 0}, "profile_version"),
        ({"profile": "default", "profile_version": 2**31}, "profile_version"),
        ({"explain": "yes"}, "explain"),
        ({"explain": 1}, "explain"),
        ({"overrides": []}, "overrides"),
        ({"overrides": {"colour": "red"}}, "overrides.colour"),
        ({"overrides": {"rrf_k": 0}}, "overrides.rrf_k"),
        ({"overrides": {"rrf_k": "60"}}, "overrides.rrf_k"),
        ({"overrides": {"vector_weight": 0, "keyword_weight": 0}}, "overrides.keyword_weight"),
        ({"filters": []}, "filters.non_field_errors"),
        ({"filters": {"colour": "red"}}, "filters.colour"),
        ({"filters": {"tags": []}}, "filters.tags"),
        ({"filters": {"tags": "a"}}, "filters.tags"),
        ({"filters": {"tags": [1]}}, "filters.tags.0"),
        ({"filters": {"document_ids": ["1"]}}, "filters.document_ids.0"),
        ({"filters": {"document_ids": [0]}}, "filters.document_ids.0"),
        ({"filters": {"concepts": [True]}}, "filters.concepts.0"),
        ({"filters": {"concepts": [""]}}, "filters.concepts.0"),
        ({"filters": {"concepts": [0]}}, "filters.concepts.0"),
        ({"filters": {"source_types": ["film"]}}, "filters.source_types.0"),
        ({"filters": {"metadata": {"year": 1}}}, "filters.metadata"),
        ({"filters": {"metadata": [{"key": "a", "op": "is", "value": 1}]}}, "filters.metadata.0.op"),
        ({"filters": {"metadata": [{"key": "a", "value": 1}]}}, "filters.metadata.0.op"),
        ({"filters": {"metadata": [{"key": "a", "op": "gt", "value": True}]}}, "filters.metadata.0.value"),
        ({"filters": {"metadata": [{"key": "a", "op": "in", "value": 1}]}}, "filters.metadata.0.value"),
        ({"filters": {"created_after": "yesterday"}}, "filters.created_after"),
        ({"filters": {"created_before": 2026}}, "filters.created_before"),
        ({"history": {}}, "history"),
        ({"history": [{"role": "system", "text": "x"}]}, "history.0.role"),
        ({"history": [{"role": "user"}]}, "history.0.text"),
        ({"history": [{"role": "user", "text": "x" * 4_001}]}, "history.0.text"),
        ({"history": [{"role": "user", "text": "x"}] * 21}, "history"),
        ({"latency_budget_ms": 0}, "latency_budget_ms"),
        ({"latency_budget_ms": 60_001}, "latency_budget_ms"),
        ({"latency_budget_ms": "5"}, "latency_budget_ms"),
        ({"latency_budget_ms": True}, "latency_budget_ms"),
    ],
)
def test_a_body_that_is_not_valid_names_the_field(client, kb, fields, field):
    body = {"query": "年假", "knowledge_base_ids": [kb.pk], **fields}

    response = client.post(URL, body, format="json")

    assert response.status_code == 400
    assert field in response.json()["fields"]


def test_json_that_is_not_json_is_400(client):
    response = client.generic("POST", URL, "{", content_type="application/json")

    assert (response.status_code, response.json()["code"]) == (400, "parse_error")


def test_a_body_of_unknown_length_is_411(client):
    response = client.generic(
        "POST", URL, "{}", content_type="application/json", CONTENT_LENGTH="", HTTP_TRANSFER_ENCODING="chunked"
    )

    assert (response.status_code, response.json()["code"]) == (411, "length_required")


def test_a_search_without_any_channel_is_503_and_says_why(search, kb, document):
    KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model="nobody/no-such-model", tokenizer_id="old")

    response = search(kb.pk, overrides={"enable_fts": False, "lexical_fallback": False})

    assert (response.status_code, response.json()["code"]) == (503, "no_channel_available")
    assert int(response.headers["Retry-After"]) > 0
    assert {each["code"] for each in response.json()["degraded"]} == {
        "model_unavailable",
        "bm25_postings_outdated",
    }


@pytest.mark.django_db(transaction=True)
def test_vectors_answer_alone_where_building_the_index_takes_longer_than_the_budget(
    search, kb, document, chunk, monkeypatch
):
    builder = Gate(monkeypatch, BM25Store, "_build")

    body = search(kb.pk, latency_budget_ms=1_500).json()

    builder.open()
    assert body["results"][0]["chunk_id"] == chunk.pk
    assert [each["code"] for each in body["degraded"] if each["stage"] == "bm25"] == ["bm25_index_building"]


@pytest.mark.django_db(transaction=True)
def test_without_a_budget_the_servers_holds(search, kb, document, monkeypatch, settings):
    settings.LATENCY_BUDGET_MS = 1
    builder = Gate(monkeypatch, BM25Store, "_build")

    body = search(kb.pk, latency_budget_ms=None).json()

    builder.open()
    assert "bm25_index_building" in {each["code"] for each in body["degraded"]}


def test_keywords_answer_alone_while_the_model_is_out_of_reach(search, kb, document, chunk):
    KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model="nobody/no-such-model")

    body = search(kb.pk).json()

    assert body["results"][0]["chunk_id"] == chunk.pk
    assert [each["code"] for each in body["degraded"]] == ["model_unavailable"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("chunk_count", [1, 20])
def test_the_number_of_queries_does_not_grow_with_the_results(
    client_with, owner, kb, settings, django_assert_num_queries, chunk_count
):
    settings.CACHE_ENABLED = False
    factories.make_document(kb, *[f"带薪年假第{number}条" for number in range(chunk_count)])
    _, secret = factories.make_api_key(owner)
    client = client_with(secret)
    body = {"query": "带薪年假", "knowledge_base_ids": [kb.pk], "top_k": 20, "score_threshold": 0}
    client.post(URL, body, format="json")
    settle()

    # key, knowledge bases, passages; another thread reads the vectors, and the index is in memory
    with django_assert_num_queries(3):
        assert len(client.post(URL, body, format="json").json()["results"]) == chunk_count


def test_a_search_that_is_served_again_costs_two_queries(client_with, owner, kb, document, django_assert_num_queries):
    _, secret = factories.make_api_key(owner)
    client = client_with(secret)
    body = {"query": "带薪年假", "knowledge_base_ids": [kb.pk]}
    assert client.post(URL, body, format="json").json()["cached"] is False

    with django_assert_num_queries(2):  # key, and knowledge bases with their versions
        response = client.post(URL, body, format="json")

    assert response.json()["cached"] is True
    assert response.headers["Content-Type"] == "application/json"


def test_filters_bound_what_is_found(search, kb, document):
    other = factories.make_document(kb, "带薪年假由主管批准。", tags=["制度"], metadata={"year": 2024})

    for filters in (
        {"tags": ["制度"]},
        {"document_ids": [other.pk]},
        {"metadata": [{"key": "year", "op": "gte", "value": 2024}]},
    ):
        results = search(kb.pk, filters=filters).json()["results"]
        assert {result["document_id"] for result in results} == {other.pk}, filters


@pytest.mark.parametrize("filters", [None, {}, {"tags": None}])
def test_no_filters_are_no_bound(search, kb, document, filters):
    assert search(kb.pk, filters=filters).json()["results"] == search(kb.pk).json()["results"]


def test_a_conversation_is_taken(search, kb, document):
    history = [{"role": "user", "text": "年假可以休几天？"}, {"role": "assistant", "text": "五天。"}]

    response = search(kb.pk, history=history)

    assert (response.status_code, response.json()["cached"]) == (200, False)
    assert SearchLog.objects.get(pk=response.json()["trace_id"]).history == history


def test_a_conversation_does_not_stand_in_the_trace(client, search, kb, document):
    history = [{"role": "user", "text": "a secret of another base"}]

    trace_id = search(kb.pk, history=history, explain=True).json()["trace_id"]

    assert "secret" not in client.get(f"/api/v1/traces/{trace_id}/").content.decode()


def test_a_logged_search_is_run_again(client, search, kb, document):
    found = search(kb.pk, explain=True).json()
    added = factories.make_document(kb, "带薪年假由主管批准。")

    replayed = client.post(f"/api/v1/traces/{found['trace_id']}/replay/").json()

    assert (replayed["trace_id"], replayed["query"], replayed["profile"]) == (
        found["trace_id"],
        "带薪年假",
        found["profile"],
    )
    assert replayed["identical"] is False
    new = [result for result in replayed["results"] if result["change"] == "new"]
    assert [result["chunk_id"] for result in new] == list(added.chunks.values_list("pk", flat=True))
    assert {each["name"] for each in replayed["knowledge_bases"]} == {"version", "content_version"}


def test_a_key_that_reads_may_run_a_search_again_and_a_stranger_may_not(client_of, client_with, search, kb, owner):
    path = f"/api/v1/traces/{search(kb.pk, explain=True).json()['trace_id']}/replay/"
    _, secret = factories.make_api_key(owner, kb, scope="read")

    assert client_with(secret).post(path).status_code == 200
    assert client_of(factories.make_user()).post(path).status_code == 404


def test_the_trace_of_an_explained_search_can_be_read_at_once(client, search, kb, document):
    found = search(kb.pk, explain=True).json()

    entry = client.get(f"/api/v1/traces/{found['trace_id']}/").json()

    assert (entry["trace_id"], entry["query"]) == (found["trace_id"], "带薪年假")
    assert entry["knowledge_base_ids"] == [kb.pk]
    assert (entry["profile"], entry["trace"]) == (found["profile"], found["trace"])
    assert (entry["degraded"], entry["result_count"]) == (found["degraded"], len(found["results"]))


def test_a_trace_is_hidden_from_those_who_may_not_see_one_of_its_knowledge_bases(
    client_of, search, kb, document, owner
):
    other = factories.make_kb(owner, "policy")
    trace_id = search(kb.pk, other.pk, explain=True).json()["trace_id"]
    viewer_of_one = client_of(factories.make_member(kb))

    assert viewer_of_one.get(f"/api/v1/traces/{trace_id}/").status_code == 404


@pytest.mark.django_db(transaction=True)
def test_the_trace_of_any_other_search_appears_soon(client, search, kb, document):
    trace_id = search(kb.pk).json()["trace_id"]

    search_log.flush()

    assert client.get(f"/api/v1/traces/{trace_id}/").json()["query"] == "带薪年假"
    assert SearchLog.objects.count() == 1
