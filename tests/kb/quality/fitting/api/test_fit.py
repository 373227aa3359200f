import pytest

from kb.models import ApiKey, EvalRun, Membership, RetrievalProfile
from kb.quality.fitting.services import measurement
from kb.quality.runs.services.runs import execute_run, start_run
from tests import factories
from tests.kb.quality.fitting.fitted_sets import NAMES, make_judged_set, mislead

pytestmark = pytest.mark.django_db


@pytest.fixture
def eval_set(kb):
    eval_set = make_judged_set(kb)
    mislead(kb)
    settings = {"vector_weight": 0.9, "keyword_weight": 0.1, "rerankers": []}
    kb.profile = RetrievalProfile.objects.create(name="misled", settings=settings, published=True)
    kb.save()
    return eval_set


def start(client, eval_set, **fields):
    return client.post(f"/api/v1/eval-sets/{eval_set.pk}/fit/", fields, format="json")


def read(client, run_id):
    return client.get(f"/api/v1/eval-runs/{run_id}/fit/")


def test_a_fit_is_started_and_read(client, eval_set, kb):
    started = start(client, eval_set, folds=3)
    assert (started.status_code, started.json()["status"], started.json()["folds"]) == (201, "pending", 3)
    execute_run(started.json()["id"], measurement)

    body = read(client, started.json()["id"]).json()

    assert (body["outcome"], body["queries"], body["folds"], body["stage"]) == ("draft", len(NAMES), 3, "fused")
    assert body["profile"] == {"name": "misled", "version": 1}
    assert body["draft"] == {"name": f"misled-{kb.name}", "version": 1}
    assert body["text"].startswith(f"Fitted to {len(NAMES)} judged queries of “set”")
    assert body["metrics"]["ndcg@10"].keys() == {"before", "after", "difference", "low", "high", "p_value"}
    assert body["won"][0].keys() == {"external_id", "text", "before", "after"}
    assert {each["name"] for each in body["settings"]} & {"rerankers", "fusion", "vector_weight"}
    run = client.get(f"/api/v1/eval-runs/{started.json()['id']}/").json()
    assert run["report"]["stages"]["fused"]["ndcg@10"] == pytest.approx(body["metrics"]["ndcg@10"]["before"], abs=1e-4)


def test_the_folds_have_a_usual_number_and_a_range(client, eval_set):
    assert start(client, eval_set).json()["folds"] == 5
    refused = start(client, eval_set, folds=1)
    assert (refused.status_code, list(refused.json()["fields"])) == (400, ["folds"])


def test_a_run_that_fits_nothing_says_so(client, eval_set, owner):
    run = start_run(factories.principal(owner), eval_set)
    assert read(client, run.pk).json()["code"] == "run_not_done"
    execute_run(run.pk)

    response = read(client, run.pk)

    assert (response.status_code, response.json()["code"]) == (400, "not_fitted")


def test_a_stranger_sees_neither_set_nor_fit(client_of, eval_set, client):
    run_id = start(client, eval_set).json()["id"]
    stranger = client_of(factories.make_user())

    assert start(stranger, eval_set).status_code == 404
    assert read(stranger, run_id).status_code == 404
    assert EvalRun.objects.count() == 1


def test_a_viewer_and_a_key_that_only_reads_start_none(client_of, client_with, eval_set, kb, owner):
    viewer = factories.make_member(kb, Membership.Role.VIEWER)
    _key, secret = factories.make_api_key(owner, kb, scope=ApiKey.Scope.READ)

    assert start(client_of(viewer), eval_set).status_code == 403
    assert start(client_with(secret), eval_set).status_code == 403
    assert not EvalRun.objects.exists()
