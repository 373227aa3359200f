import pytest

from kb.models import SearchLog
from kb.profiles.services import create_version
from tests import factories
from tests.kb.quality.runs.eval_runs import answered, make_run, make_set

pytestmark = pytest.mark.django_db

URL = "/api/v1/compare/"


@pytest.fixture
def compare(client):
    def post(*kb_ids, query="annual leave summer", using=client, **fields):
        return using.post(URL, {"query": query, "knowledge_base_ids": list(kb_ids), **fields}, format="json")

    return post


@pytest.fixture
def handbook(owner):
    kb = factories.make_kb(owner, "english", language="en")
    factories.make_document(kb, "Annual leave, annual leave.", title="Leave")
    factories.make_document(kb, "summer summer summer", title="Sun")
    return kb


# -- Two searches ------------------------------------------------------------------------------------------------------


def test_tells_where_each_result_stands_on_both_sides(compare, handbook):
    response = compare(handbook.pk, a={"score_threshold": 0}, b={"score_threshold": 0, "top_k": 1})

    assert response.status_code == 200
    body = response.json()
    assert not body["identical"]
    assert [(each["title"], each["rank"], each["moved"]) for each in body["results"]] == [
        ("Leave", {"a": 1, "b": 1}, 0),
        ("Sun", {"a": 2, "b": None}, None),
    ]
    assert body["results"][1]["cut_by"] == {"a": "", "b": "top_k"}
    assert {"name": "top_k", "before": 5, "after": 1} in body["settings"]


def test_sides_that_are_left_out_are_the_knowledge_bases_own(compare, handbook):
    body = compare(handbook.pk).json()

    assert body["identical"]
    assert body["a"]["profile"] == body["b"]["profile"] == {"name": "keyword-led", "version": 1}


def test_a_side_may_be_a_draft(compare, handbook, owner):
    for settings in ({}, {"top_k": 1}):
        create_version(factories.principal(owner), "mine", settings, knowledge_base=handbook)

    body = compare(handbook.pk, a={"profile": "mine", "profile_version": 1}, b={"profile": "mine"}).json()

    assert body["a"]["profile"] == {"name": "mine", "version": 1}
    assert body["b"]["profile"] == {"name": "mine", "version": 2}


def test_neither_search_is_logged(compare, handbook):
    compare(handbook.pk)

    assert not SearchLog.objects.exists()


def test_a_setting_that_cannot_be_is_told_with_its_side(compare, handbook):
    response = compare(handbook.pk, b={"overrides": {"rrf_k": 0}})

    assert response.status_code == 400
    assert list(response.json()["fields"]) == ["b.overrides.rrf_k"]


@pytest.mark.parametrize(
    "fields", [{"profile": "default"}, {"c": {}}, {"a": {"query": "x"}}, {"a": {"profile_version": 1}}]
)
def test_what_has_no_place_is_refused(compare, handbook, fields):
    assert compare(handbook.pk, **fields).status_code == 400


def test_another_users_knowledge_base_does_not_exist(compare):
    assert compare(factories.make_kb().pk).status_code == 404


def test_a_key_that_may_read_suffices(compare, client_with, handbook, owner):
    _key, secret = factories.make_api_key(owner)

    assert compare(handbook.pk, using=client_with(secret)).status_code == 200


def test_a_key_of_another_knowledge_base_finds_nothing(compare, client_with, handbook, kb, owner):
    _key, secret = factories.make_api_key(owner, kb)

    assert compare(handbook.pk, using=client_with(secret)).status_code == 404


# -- Two runs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def eval_set(kb):
    return make_set(kb)


@pytest.fixture
def runs(eval_set):
    return make_run(eval_set, [answered("a", 0.2)]), make_run(eval_set, [answered("a", 0.6)])


def test_compares_two_runs(client, runs):
    body = client.get(f"/api/v1/eval-runs/{runs[0].pk}/compare/{runs[1].pk}/").json()

    assert (body["before"]["id"], body["after"]["id"]) == (runs[0].pk, runs[1].pk)
    figure = body["stages"]["reranked"]["ndcg@10"]
    assert (figure["before"], figure["after"], figure["p_value"]) == (0.2, 0.6, 1.0)
    assert [query["external_id"] for query in body["won"]] == ["a"]
    assert (body["lost"], body["tied"], body["queries"]) == ([], 0, 1)


def test_runs_of_different_sets_are_a_bad_request(client, kb, runs):
    other = make_run(make_set(kb, "others"), [answered("a")])

    response = client.get(f"/api/v1/eval-runs/{runs[0].pk}/compare/{other.pk}/")

    assert (response.status_code, response.json()["code"]) == (400, "different_sets")


def test_another_users_run_does_not_exist(client, runs):
    foreign = make_run(make_set(factories.make_kb()), [answered("a")])

    assert client.get(f"/api/v1/eval-runs/{runs[0].pk}/compare/{foreign.pk}/").status_code == 404
