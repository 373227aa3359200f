import pytest

from kb.models import EvalRun, Membership
from tests import factories
from tests.kb.quality.runs.eval_runs import answered, make_run, make_set, unanswered

pytestmark = pytest.mark.django_db


@pytest.fixture
def eval_set(kb):
    return make_set(kb)


def test_suggests_cuts(client, eval_set):
    run = make_run(eval_set, [answered("a", judged=[[0.9, 2], [0.3, 0]]), unanswered("none", 0.4)])

    body = client.get(f"/api/v1/eval-runs/{run.pk}/calibration/").json()

    assert (body["score_scale"], body["setting"]) == ("overlap", "overlap_threshold")
    best = body["best_f1"]
    assert {name: best[name] for name in ("cut", "precision", "recall", "f1", "kept", "passed")} == {
        "cut": 0.65,
        "precision": 1.0,
        "recall": 1.0,
        "f1": 1.0,
        "kept": 1.0,
        "passed": 0.0,
    }
    assert (body["keeps"], body["answerable_count"], body["answerable_needed"]) == (None, 1, 19)
    assert body["refuses"]["cut"] == 0.401
    assert len(body["bins"]) == len(body["relevant"]) + 1


def test_a_run_that_is_not_done_is_a_bad_request(client, eval_set):
    run = make_run(eval_set, status=EvalRun.Status.RUNNING)

    response = client.get(f"/api/v1/eval-runs/{run.pk}/calibration/")

    assert (response.status_code, response.json()["code"]) == (400, "run_not_done")


def test_another_users_run_does_not_exist(client):
    foreign = make_run(make_set(factories.make_kb()), [answered("a")])

    assert client.get(f"/api/v1/eval-runs/{foreign.pk}/calibration/").status_code == 404
    assert client.post(f"/api/v1/eval-runs/{foreign.pk}/calibration/", {"cut": 0.5}).status_code == 404


@pytest.fixture
def run(eval_set):
    return make_run(eval_set, [answered(f"q{place}", judged=[[0.5 + place / 1000, 1]]) for place in range(40)])


@pytest.fixture
def url(run):
    return f"/api/v1/eval-runs/{run.pk}/calibration/"


def test_promises_the_share_that_is_asked_for(client, url):
    body = client.get(url, {"share": "0.9"}).json()

    assert (body["share"], body["answerable_needed"], body["keeps"]["cut"], body["keeps"]["kept"]) == (
        0.9,
        9,
        0.503,
        0.925,
    )
    assert 0.8 < body["keeps"]["kept_at_least"] < 0.9


@pytest.mark.parametrize("asked", [{"share": "1"}, {"share": "x"}, {"share": "nan"}, {"share": ""}, {"shares": "0.9"}])
def test_a_share_out_of_range_is_a_bad_request(client, url, asked):
    response = client.get(url, asked)

    assert response.status_code == 400
    assert list(response.json()["fields"]) == list(asked)


def test_saves_a_cut_in_a_copy_of_a_shared_profile(client, kb, run, url):
    response = client.post(url, {"cut": 0.501}, format="json")

    assert response.status_code == 201
    body = response.json()
    assert (body["name"], body["version"], body["state"]) == (f"{run.profile.name}-handbook", 1, "draft")
    assert (body["knowledge_base_id"], body["settings"]["overlap_threshold"]) == (kb.pk, 0.501)


@pytest.mark.parametrize(
    "body", [{}, {"cut": 2}, {"cut": "x"}, {"cut": 0.5, "name": "a/b"}, {"cut": 0.5, "confirm": True}]
)
def test_a_cut_that_cannot_be_saved_is_a_bad_request(client, url, body):
    response = client.post(url, body, format="json")

    assert response.status_code == 400
    assert response.json()["fields"]


def test_who_may_change_a_shared_profile_is_told_whose_it_is_and_confirms(client_of, run, url):
    factories.make_kb(name="Sales")
    superuser = client_of(factories.make_user(superuser=True))

    refused = superuser.post(url, {"cut": 0.501, "name": run.profile.name}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (400, "profile_shared")
    assert "Sales" in refused.json()["fields"]["confirm_shared"][0]
    saved = superuser.post(url, {"cut": 0.501, "confirm_shared": True}, format="json")
    assert saved.status_code == 201
    assert (saved.json()["name"], saved.json()["knowledge_base_id"]) == (run.profile.name, None)


def test_a_curator_may_not_change_a_shared_profile(client, url):
    assert client.post(url, {"cut": 0.501, "confirm_shared": True}, format="json").status_code == 403


def test_a_viewer_may_not_save(client_of, kb, url):
    viewer = client_of(factories.make_member(kb, Membership.Role.VIEWER))

    assert viewer.get(url).status_code == 200
    assert viewer.post(url, {"cut": 0.501}, format="json").status_code == 403
