import json
import time
from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command

from kb.index.bm25 import BM25Store, RequestedIndex
from kb.models import Document, RetrievalProfile, SearchLog
from kb.search.services import search_log
from tests.factories import make_document, make_kb, make_member, make_user
from tests.interleaving import Gate

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _settled():
    """A search is logged in the background: the log must be written before its tables are emptied."""
    yield
    search_log.flush()


@pytest.fixture
def kb():
    kb = make_kb(make_user("ann"), "faq")
    make_document(kb, "屏幕显示 ERR_404 时，请重启路由器。", title="错误代码", source="errors.md")
    make_document(kb, "整机保修 24 个月，从发票日期算起。", title="保修政策", source="warranty.md")
    return kb


def search(*arguments):
    output = StringIO()
    call_command("search", *arguments, stdout=output)
    return output.getvalue()


def test_shows_results_with_ranks_scores_and_source(kb):
    output = search("ERR_404", "--kb", "faq")
    first = output.split(" 2. ")[0]
    assert "错误代码 (errors.md)" in first
    assert "vector #1" in first
    assert "bm25 #1" in first
    assert "请重启路由器" in first


def test_says_in_words_what_is_degraded(kb):
    assert "compare words, not meaning" in search("保修", "--kb", "faq")


def test_prints_exactly_the_response_of_the_api(kb):
    response = json.loads(search("ERR_404", "--kb", "faq", "--json"))
    assert list(response) == [
        "query", "results", "near_misses", "facts", "degraded", "profile", "cached", "timings_ms", "trace_id",
    ]  # fmt: skip
    assert response["results"][0]["source"] == "errors.md"
    assert response["degraded"][0]["code"] == "hashing_embedder"


def test_near_misses_are_printed_apart(kb, cut_at):
    cut_at(0.98)
    output = search("ERR_404", "--kb", "faq", "--explain")
    assert "near misses, below the built-in cut of the scale overlap, 0.98:\n\n 1. 0." in output
    assert "overlap low  错误代码 (errors.md)" in output
    assert "gate (near miss)" in output
    assert "near misses" not in search("ERR_404", "--kb", "faq", "--score-threshold", "0")
    response = json.loads(search("ERR_404", "--kb", "faq", "--json"))
    assert (response["results"], response["near_misses"][0]["source"]) == ([], "errors.md")


def test_json_with_explain_holds_the_trace(kb):
    response = json.loads(search("ERR_404", "--kb", "faq", "--json", "--explain"))
    assert response["trace"]["terms"][0] == "err_404"
    assert {span["stage"] for span in response["trace"]["spans"]} >= {"vector", "bm25", "fusion", "gate"}


def test_explain_shows_the_candidates_with_what_cut_them_and_the_stages(kb):
    output = search("ERR_404 保修", "--kb", "faq", "--top-k", "1", "--score-threshold", "0", "--explain")
    first, second = output.split("matched terms\n")[1].split("\n")[:2]
    assert "#1" in first
    assert "top_k" not in first
    assert "top_k" in second
    assert {"errors.md", "warranty.md"} == {cell for cell in (first + second).split() if cell.endswith(".md")}
    assert "err_404" in output
    assert "tier=build" in output


def test_top_k_bounds_the_results(kb):
    assert len(json.loads(search("ERR_404 保修", "--kb", "faq", "--top-k", "1", "--json"))["results"]) == 1


def test_a_threshold_cuts_what_scores_less(kb):
    args = ("ERR_404", "--kb", "faq", "--json")
    first, second = json.loads(search(*args, "--score-threshold", "0"))["results"]
    between = (first["score"] + second["score"]) / 2
    assert json.loads(search(*args, "--score-threshold", str(between)))["results"] == [first]


def test_waits_no_longer_for_an_index_than_told(kb, monkeypatch, settings):
    builder = Gate(monkeypatch, BM25Store, "_build")
    wait, told = RequestedIndex.wait, []

    def wait_no_longer(index, deadline):
        told.append(deadline - time.monotonic())
        return wait(index, time.monotonic())

    monkeypatch.setattr(RequestedIndex, "wait", wait_no_longer)
    response = json.loads(search("保修", "--kb", "faq", "--json", "--latency-budget-ms", "60000"))
    builder.open()
    assert settings.LATENCY_BUDGET_MS / 1_000 < max(told) <= 60
    assert "bm25_index_building" in {each["code"] for each in response["degraded"]}
    assert response["results"]


def test_runs_one_version_of_a_profile(kb):
    RetrievalProfile.objects.create(name="mine", version=1, settings={"top_k": 1}, published=True)
    RetrievalProfile.objects.create(name="mine", version=2, settings={"top_k": 2})
    draft = json.loads(search("保修", "--kb", "faq", "--profile", "mine@2", "--json"))
    live = json.loads(search("保修", "--kb", "faq", "--profile", "mine", "--json"))
    assert (draft["profile"]["version"], live["profile"]["version"]) == (2, 1)


def test_runs_the_profile_named(kb):
    response = json.loads(search("保修", "--kb", "faq", "--profile", "default", "--json"))
    assert response["profile"]["name"] == "default"


def test_searches_several_knowledge_bases(kb):
    other = make_kb(kb.owner, "wiki")
    make_document(other, "ERR_404 means that the gateway was not found.")
    response = json.loads(search("ERR_404", "--kb", "faq", "--kb", "wiki", "--json"))
    assert {hit["knowledge_base_id"] for hit in response["results"]} == {kb.pk, other.pk}


def test_knowledge_bases_of_several_owners_need_a_user(kb):
    make_kb(make_user("bob"), "wiki")
    make_user("root", superuser=True)
    with pytest.raises(CommandError, match="--user"):
        search("ERR_404", "--kb", "faq", "--kb", "wiki")
    assert "errors.md" in search("ERR_404", "--kb", "faq", "--kb", "wiki", "--user", "root")


def test_the_permissions_of_a_user_apply(kb):
    make_user("bob")
    with pytest.raises(CommandError, match="no knowledge base"):
        search("ERR_404", "--kb", "faq", "--user", "bob")
    make_member(kb, user=make_user("eve"))
    assert "errors.md" in search("ERR_404", "--kb", "faq", "--user", "eve")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kb", "nowhere"), "no knowledge base named 'nowhere'; there are: faq"),
        (("--kb", "faq", "--profile", "nonesuch"), "nonesuch.*default"),
        (("--kb", "faq", "--profile", "default@9"), "has no version 9"),
        (("--kb", "faq", "--profile", "default@new"), "NAME@NUMBER"),
        (("--kb", "faq", "--top-k", "0"), "top_k is 0"),
        (("--kb", "faq", "--user", "nobody"), "no user named 'nobody'"),
        (("--kb", "faq", "--latency-budget-ms", "0"), "0 is not a whole number from 1 to 60,000"),
        ((), "--kb NAME"),
        (("--kb", "faq", "--filter", "year"), "KEY=VALUE"),
        (("--kb", "faq", "--tag", ""), r"tags\[0\]"),
        (("--replay", str(uuid4())), "either a query, or --replay"),
    ],
)
def test_what_cannot_be_done_is_an_error_with_a_remedy(kb, arguments, message):
    with pytest.raises(CommandError, match=message) as caught:
        search("ERR_404", *arguments)
    assert caught.value.returncode == 1


def test_keeps_the_search_in_the_log(kb):
    trace_id = json.loads(search("保修", "--kb", "faq", "--json"))["trace_id"]
    search_log.flush()
    entry = SearchLog.objects.get(pk=trace_id)
    assert (entry.query, entry.user) == ("保修", kb.owner)


def test_a_query_that_finds_nothing_is_no_error(kb):
    assert "0 of 0 candidates" in search(" ", "--kb", "faq")


# -- Filters -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def marked(kb):
    Document.objects.filter(source="errors.md").update(tags=["net", "web"], metadata={"year": 2024, "by": "ann=li"})
    Document.objects.filter(source="warranty.md").update(tags=["legal"], metadata={"year": "2024", "by": "bob"})
    return kb


@pytest.mark.parametrize(
    ("arguments", "sources"),
    [
        (("--tag", "net"), {"errors.md"}),
        (("--tag", "net", "--tag", "legal"), {"errors.md", "warranty.md"}),
        (("--filter", "year=2024"), {"errors.md"}),
        (("--filter", 'year="2024"'), {"warranty.md"}),
        (("--filter", "by=ann=li"), {"errors.md"}),
        (("--filter", "year >= 2024"), {"errors.md"}),
        (("--filter", "by~nn"), {"errors.md"}),
        (("--filter", "by=bob", "--filter", "year=2024"), set()),
    ],
)
def test_filters_bound_what_is_found(marked, arguments, sources):
    args = ("ERR_404 保修", "--kb", "faq", "--json", "--score-threshold", "0")
    assert {hit["source"] for hit in json.loads(search(*args, *arguments))["results"]} == sources


def test_one_document_is_searched(marked):
    document = Document.objects.get(source="warranty.md")
    response = json.loads(search("ERR_404", "--kb", "faq", "--json", "--document", str(document.pk)))
    assert {hit["document_id"] for hit in response["results"]} <= {document.pk}


# -- Replay ------------------------------------------------------------------------------------------------------------
def trace_of(*arguments):
    trace_id = json.loads(search(*arguments, "--json"))["trace_id"]
    search_log.flush()
    return trace_id


def test_a_replay_of_what_has_not_changed_says_so(kb):
    output = search("--replay", trace_of("ERR_404 保修", "--kb", "faq", "--score-threshold", "0"))
    assert "keyword-led v1: ERR_404 保修" in output
    assert "The results are the same 2, in the same order, with the same scores." in output


def test_a_replay_says_in_words_what_has_changed(kb, settings):
    trace_id = trace_of("ERR_404 保修", "--kb", "faq", "--score-threshold", "0")
    Document.objects.filter(source="errors.md").delete()
    make_document(kb, "保修 ERR_404", title="新", source="new.md")
    settings.RETRIEVAL = {**settings.RETRIEVAL, "rrf_k": 10}
    output = search("--replay", trace_id)
    assert "1 new, 1 gone" in output
    assert "新 · new.md" in output
    assert "(deleted)" in output
    assert "setting rrf_k 60 -> 10" in output
    assert "knowledge base faq: version" in output


def test_a_replay_says_what_is_degraded_now(kb):
    trace_id = trace_of("ERR_404", "--kb", "faq")
    kb.embedding_model = "BAAI/not-here"
    kb.save()
    output = search("--replay", trace_id)
    assert "degraded now (vector): " in output
    assert "no longer degraded (vector): " in output


def test_a_replay_as_json_is_the_response_of_the_api(kb):
    trace_id = trace_of("ERR_404", "--kb", "faq")
    replayed = json.loads(search("--replay", trace_id, "--json"))
    assert (replayed["trace_id"], replayed["identical"]) == (trace_id, True)


def test_a_replay_runs_under_the_rights_of_who_searched(kb):
    member = make_member(kb, user=make_user("eve"))
    trace_id = trace_of("ERR_404", "--kb", "faq", "--user", "eve")
    kb.memberships.all().delete()
    with pytest.raises(CommandError, match=trace_id):
        search("--replay", trace_id)
    assert "ERR_404" in search("--replay", trace_id, "--user", "ann")
    member.delete()
    assert "ERR_404" in search("--replay", trace_id)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "either a query, or --replay"),
        (("--replay", "42"), "'42' is no trace id"),
        (("--replay", str(uuid4())), "no search with the trace id"),
        (("--replay", str(uuid4()), "--kb", "faq", "--top-k", "3"), "leave out --kb, --top-k"),
    ],
)
def test_a_replay_that_cannot_be_run_is_an_error_with_a_remedy(kb, arguments, message):
    with pytest.raises(CommandError, match=message) as caught:
        search(*arguments)
    assert caught.value.returncode == 1


def test_a_replay_under_a_profile_version_that_is_gone_is_an_error(kb):
    mine = RetrievalProfile.objects.create(name="mine", version=1, settings={})
    trace_id = trace_of("ERR_404", "--kb", "faq", "--profile", "mine")
    mine.delete()
    with pytest.raises(CommandError, match="no retrieval profile named “mine”"):
        search("--replay", trace_id)
