import pytest

from kb.models import EvalRun
from tests import factories
from tests.kb.quality.runs.eval_runs import answered, make_run, make_set, unanswered

pytestmark = pytest.mark.django_db


@pytest.fixture
def eval_set(kb):
    return make_set(kb)


def test_suggests_a_cut(client, eval_set):
    run = make_run(eval_set, [answered("a", judged=[[0.9, 2], [0.3, 0]]), unanswered("none", 0.4)])

    body = client.get(f"/api/v1/eval-runs/{run.pk}/calibration/").json()

    assert (body["score_scale"], body["setting"]) == ("overlap", "overlap_threshold")
    assert body["suggestion"] == {"cut": 0.65, "precision": 1.0, "recall": 1.0, "f1": 1.0}
    assert len(body["bins"]) == len(body["relevant"]) + 1


def test_a_run_that_is_not_done_is_a_bad_request(client, eval_set):
    run = make_run(eval_set, status=EvalRun.Status.RUNNING)

    response = client.get(f"/api/v1/eval-runs/{run.pk}/calibration/")

    assert (response.status_code, response.json()["code"]) == (400, "run_not_done")


def test_another_users_run_does_not_exist(client):
    foreign = make_run(make_set(factories.make_kb()), [answered("a")])

    assert client.get(f"/api/v1/eval-runs/{foreign.pk}/calibration/").status_code == 404
