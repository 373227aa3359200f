import pytest

from kb.models import ApiKey, EvalQuery, EvalRun, EvalSet, Judgment, Membership
from kb.profiles.services import create_version
from kb.quality.runs.services.runs import execute_run, start_run
from tests import factories

pytestmark = pytest.mark.django_db

URL = "/api/v1/eval-runs/"


@pytest.fixture
def eval_set(kb):
    """A query whose answer is found, one whose answer is gone, and one that has none."""
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="set")
    document = factories.make_document(kb, "工作满一年的员工每年享有五天带薪年假。")
    Judgment.objects.create(query=add(eval_set, "leave", "工作满一年的员工带薪年假"), document=document, grade=1)
    Judgment.objects.create(query=add(eval_set, "gone", "病假"), document=None, source="gone.md", grade=1)
    add(eval_set, "none", "公司的股价", answerable=False)
    return eval_set


def add(eval_set, name, text, **fields):
    return EvalQuery.objects.create(eval_set=eval_set, external_id=name, text=text, **fields)


@pytest.fixture
def run(eval_set, owner):
    return start_run(factories.principal(owner), eval_set)


@pytest.fixture
def done(run):
    execute_run(run.pk)
    return run


def create(client, **fields):
    return client.post(URL, fields, format="json")


# -- Reading --------------------------------------------------------------------------------------------------------------
def test_lists_the_runs_the_newest_first(client, done, eval_set, owner, kb):
    newer = start_run(factories.principal(owner), eval_set, overrides={"rrf_k": 7}, limit=1)

    body = client.get(URL).json()

    assert [row["id"] for row in body["results"]] == [newer.pk, done.pk]
    assert body["results"][0] | {"created_at": ""} == {
        "id": newer.pk,
        "eval_set": {"id": eval_set.pk, "name": "set", "knowledge_base_id": kb.pk},
        "profile": {"name": "keyword-led", "version": 1},
        "overrides": {"rrf_k": 7},
        "limit": 1,
        "folds": None,
        "status": "pending",
        "cancel_requested": False,
        "done": 0,
        "total": 2,
        "error": "",
        "stages": None,
        "created_by": "owner",
        "created_at": "",
        "started_at": None,
        "finished_at": None,
    }
    assert body["results"][1]["stages"]["reranked"]["recall@5"] == 0.5


def test_lists_the_runs_of_one_set(client, run, eval_set, kb):
    other = EvalSet.objects.create(knowledge_base=kb, name="other")
    assert len(client.get(URL, {"eval_set_id": eval_set.pk}).json()["results"]) == 1
    assert len(client.get(URL, {"eval_set_id": other.pk}).json()["results"]) == 0


@pytest.mark.parametrize("value", ["x", "0", str(2**63)])
def test_a_set_is_named_by_its_id(client, value):
    response = client.get(URL, {"eval_set_id": value})
    assert (response.status_code, list(response.json()["fields"])) == (400, ["eval_set_id"])


def test_the_list_takes_as_many_queries_for_many_runs(client, run, eval_set, owner, django_assert_max_num_queries):
    for _ in range(5):
        start_run(factories.principal(owner), eval_set)
    with django_assert_max_num_queries(9):
        assert len(client.get(URL).json()["results"]) == 6


def test_a_run_that_is_done_has_its_report(client, done):
    body = client.get(f"{URL}{done.pk}/").json()

    assert (body["status"], body["done"], body["total"]) == ("done", 3, 3)
    assert body["report"]["run_id"] == done.pk
    assert body["report"]["miss_counts"] == {"unanchored": 1}
    assert body["model_ids"]["embedding"] == "hashing"
    assert body["configuration"]["fusion"] == "rrf"
    assert body["kb_version"] > 0


def test_a_run_that_failed_says_why(client, run):
    EvalRun.objects.filter(pk=run.pk).update(status="failed", error="The model is out: start it.")
    assert client.get(f"{URL}{run.pk}/").json()["error"] == "The model is out: start it."


def test_queries_have_figures_ranks_and_the_stage_that_lost_them(client, done):
    body = client.get(f"{URL}{done.pk}/queries/").json()

    rows = {row["external_id"]: row for row in body["results"]}
    assert list(rows) == ["leave", "gone", "none"]
    assert rows["leave"]["figures"]["reranked"]["ndcg@10"] == 1
    assert rows["leave"]["first_relevant"]["bm25"] == 1
    assert (rows["gone"]["lost_at"], rows["gone"]["judged"]) == ("unanchored", [])
    assert (rows["none"]["answerable"], rows["none"]["figures"]) == (False, {})


def test_queries_are_paged(client, done):
    first = client.get(f"{URL}{done.pk}/queries/", {"page_size": 2}).json()
    body = client.get(first["next"]).json()
    assert [row["external_id"] for row in body["results"]] == ["none"]


def test_queries_can_be_narrowed_to_a_stage(client, done):
    def found(stage):
        rows = client.get(f"{URL}{done.pk}/queries/", {"lost_at": stage}).json()["results"]
        return [row["external_id"] for row in rows]

    assert (found("unanchored"), found("gate")) == (["gone"], [])


def test_a_stage_that_does_not_exist_is_refused(client, done):
    assert client.get(f"{URL}{done.pk}/queries/", {"lost_at": "elsewhere"}).status_code == 400


# -- Rights ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "path"), [("get", ""), ("get", "queries/"), ("post", "cancel/")], ids=["read", "queries", "cancel"]
)
def test_a_run_that_is_out_of_sight_does_not_exist(client_of, run, method, path):
    stranger = client_of(factories.make_user())
    assert getattr(stranger, method)(f"{URL}{run.pk}/{path}").status_code == 404


def test_a_list_leaves_out_what_is_out_of_sight(client_of, run, eval_set):
    stranger = client_of(factories.make_user())
    assert len(stranger.get(URL).json()["results"]) == 0
    assert stranger.get(URL, {"eval_set_id": eval_set.pk}).status_code == 404


def test_a_viewer_reads_and_neither_starts_nor_cancels(client_of, kb, run, eval_set):
    viewer = client_of(factories.make_member(kb))
    assert viewer.get(f"{URL}{run.pk}/").status_code == 200
    assert create(viewer, eval_set_id=eval_set.pk).status_code == 403
    assert viewer.post(f"{URL}{run.pk}/cancel/").status_code == 403


def test_a_key_that_reads_starts_nothing(client_with, kb, owner, eval_set):
    _, secret = factories.make_api_key(owner, kb)
    assert create(client_with(secret), eval_set_id=eval_set.pk).status_code == 403


def test_a_key_that_writes_starts_a_run(client_with, kb, owner, eval_set):
    _, secret = factories.make_api_key(owner, kb, scope=ApiKey.Scope.WRITE)
    assert create(client_with(secret), eval_set_id=eval_set.pk).status_code == 201


# -- Starting and cancelling ----------------------------------------------------------------------------------------------
def test_starts_a_run_under_a_version_of_a_profile(client_of, kb, eval_set, owner):
    for rrf_k in (1, 2):
        create_version(factories.principal(owner), "own", {"rrf_k": rrf_k}, knowledge_base=kb)
    editor = client_of(factories.make_member(kb, Membership.Role.EDITOR))

    response = create(
        editor, eval_set_id=eval_set.pk, profile="own", profile_version=1, overrides={"top_k": 3}, limit=1
    )

    body = response.json()
    assert (response.status_code, body["status"], body["total"]) == (201, "pending", 2)
    assert body["profile"] == {"name": "own", "version": 1}
    assert (body["configuration"]["rrf_k"], body["configuration"]["top_k"]) == (1, 3)


def test_starts_a_run_under_the_knowledge_bases_own_profile(client, eval_set):
    assert create(client, eval_set_id=eval_set.pk).json()["profile"] == {"name": "keyword-led", "version": 1}


@pytest.mark.parametrize(
    "fields", [{"eval_set_id": 10**9}, {"profile": "nowhere"}, {"profile": "default", "profile_version": 9}]
)
def test_what_is_named_must_exist(client, eval_set, fields):
    assert create(client, **{"eval_set_id": eval_set.pk, **fields}).status_code == 404


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"eval_set_id": "1"}, "eval_set_id"),
        ({"limit": 0}, "limit"),
        ({"profile_version": 1}, "profile_version"),
        ({"overrides": {"rrf_k": 0}}, "overrides.rrf_k"),
        ({"profil": "default"}, "profil"),
    ],
)
def test_a_field_that_is_not_valid_is_named(client, eval_set, fields, at_fault):
    response = create(client, **{"eval_set_id": eval_set.pk, **fields})
    assert (response.status_code, list(response.json()["fields"])) == (400, [at_fault])
    assert not EvalRun.objects.exists()


def test_a_set_in_which_nothing_is_judged_is_refused(client, kb):
    empty = EvalSet.objects.create(knowledge_base=kb, name="empty")
    response = create(client, eval_set_id=empty.pk)
    assert (response.status_code, response.json()["code"]) == (400, "nothing_judged")


def test_cancels_a_run(client, run):
    body = client.post(f"{URL}{run.pk}/cancel/").json()
    assert (body["status"], body["cancel_requested"]) == ("cancelled", True)
