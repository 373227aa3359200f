"""Runs that are kept: started, carried out, watched, cancelled, and given up when their process dies."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone, translation

from kb import signals
from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.models import EvalQuery, EvalRun, EvalRunQuery, EvalSet, Judgment, Membership, Principal
from kb.profiles.services import create_version
from kb.quality.runs.services import runs
from kb.quality.runs.services.report import evaluate
from kb.quality.runs.services.runs import cancel_run, evaluate_as_run, execute_run, start_run, sweep_runs
from kb.tasks import run_evaluation, sweep_lost_runs
from retrieval.errors import InvalidConfiguration, RetrievalError, ScopeOutdated
from retrieval.pipeline import Pipeline
from tests.factories import make_document, make_kb, make_member, make_user
from tests.interleaving import Gate, Running

TEXTS = ("智能温控器的保修期是两年", "购买后三十天内可以退货", "安装前请先关闭电源")

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb()


@pytest.fixture
def eval_set(kb):
    """Three queries that have an answer in their own words, and one that has none."""
    eval_set = EvalSet.objects.create(knowledge_base=kb, name="set")
    for number, text in enumerate(TEXTS):
        query = EvalQuery.objects.create(eval_set=eval_set, external_id=f"q{number}", text=text)
        Judgment.objects.create(query=query, document=make_document(kb, text, source=f"{number}.md"), grade=2)
    EvalQuery.objects.create(eval_set=eval_set, external_id="none", text="公司的股价", answerable=False)
    return eval_set


@pytest.fixture
def principal(kb):
    return Principal(kb.owner)


def executed(run):
    execute_run(run.pk)
    run.refresh_from_db()
    return run


def silent(run, **span):
    """As if its process, or its task, had been lost so long ago."""
    then = timezone.now() - timedelta(**span)
    EvalRun.objects.filter(pk=run.pk).update(heartbeat=then, lease_until=then + runs.SILENT_LONG)


# -- Starting -------------------------------------------------------------------------------------------------------------
def test_a_run_waits_until_a_worker_takes_it_up(principal, eval_set, monkeypatch, django_capture_on_commit_callbacks):
    sent = []
    monkeypatch.setattr(signals, "enqueue", lambda task, *ids: sent.append((task.name, ids)))
    with django_capture_on_commit_callbacks(execute=True):
        run = start_run(principal, eval_set, overrides={"rrf_k": 7})
        assert sent == []

    assert sent == [("kb.tasks.run_evaluation", (run.pk,))]
    assert (run.status, run.total, run.done, run.profile) == ("pending", 4, 0, eval_set.knowledge_base.profile)
    assert (run.configuration["rrf_k"], run.created_by_id) == (7, principal.user.pk)


def test_a_limit_holds_for_either_kind_of_query(principal, eval_set):
    assert start_run(principal, eval_set, limit=1).total == 2


def test_a_viewer_may_not_start_a_run(eval_set, kb):
    with pytest.raises(NotAllowed):
        start_run(Principal(make_member(kb)), eval_set)


def test_a_set_that_is_out_of_sight_does_not_exist(eval_set):
    with pytest.raises(NotVisible):
        start_run(Principal(make_user()), eval_set)


def test_a_profile_that_is_out_of_sight_does_not_exist(principal, eval_set):
    other = make_kb()
    profile = create_version(Principal(other.owner), "theirs", {}, knowledge_base=other)
    with pytest.raises(NotVisible):
        start_run(principal, eval_set, profile=profile)


def test_a_profile_of_another_knowledge_base_is_refused(principal, eval_set):
    other = make_kb(principal.user)
    profile = create_version(principal, "other", {}, knowledge_base=other)
    with pytest.raises(Rejected, check=lambda error: error.code == "profile_elsewhere"):
        start_run(principal, eval_set, profile=profile)


def test_a_set_in_which_nothing_is_judged_is_refused(principal, kb):
    empty = EvalSet.objects.create(knowledge_base=kb, name="empty")
    EvalQuery.objects.create(eval_set=empty, external_id="q", text="保修")
    with pytest.raises(Rejected, check=lambda error: error.code == "nothing_judged"):
        start_run(principal, empty)


def test_an_override_out_of_range_is_refused_at_once(principal, eval_set):
    with pytest.raises(InvalidConfiguration):
        start_run(principal, eval_set, overrides={"rrf_k": 0})
    assert not EvalRun.objects.exists()


# -- Carrying out ---------------------------------------------------------------------------------------------------------
def test_a_run_that_is_done_has_the_report_of_an_evaluation(principal, eval_set):
    run = executed(start_run(principal, eval_set))

    with translation.override(None):
        expected = json.loads(json.dumps(evaluate(principal, eval_set)))
    assert (run.status, run.done, run.total, run.error) == ("done", 4, 4, "")
    others = {name: run.report[name] for name in expected.keys() - {"latency_ms"}}
    assert others == {name: expected[name] for name in others}
    assert run.report["run_id"] == run.pk
    assert run.started_at <= run.heartbeat <= run.finished_at


def test_a_run_keeps_what_it_was_made_with(principal, eval_set, kb):
    draft = create_version(principal, "own", {"rrf_k": 9}, knowledge_base=kb)
    run = executed(start_run(principal, eval_set, profile=draft, overrides={"top_k": 3}))

    assert (run.configuration["rrf_k"], run.configuration["top_k"]) == (9, 3)
    assert run.model_ids == {"embedding": "hashing", "tokenizer": kb.tokenizer_id}
    kb.version_row.refresh_from_db()
    assert (run.kb_version, run.content_version) == (kb.version_row.version, kb.version_row.content_version)


def test_each_query_has_its_figures_ranks_and_scores(principal, eval_set):
    executed(start_run(principal, eval_set))

    row = EvalRunQuery.objects.get(external_id="q1")
    assert (row.text, row.answerable, row.lost_at, row.score_scale) == (TEXTS[1], True, "", "overlap")
    assert row.figures["reranked"] == {"recall@5": 1, "recall@20": 1, "hit_rate@1": 1, "mrr@10": 1, "ndcg@10": 1}
    assert set(row.figures) == {"bm25", "vector", "fused", "reranked"}
    assert row.first_relevant == {"bm25": 1, "vector": 1, "fused": 1, "reranked": 1}
    assert row.judged == [[row.best_score, 2]]
    assert row.latency_ms > 0


def test_a_query_without_an_answer_has_a_score_and_no_figures(principal, eval_set):
    executed(start_run(principal, eval_set))

    row = EvalRunQuery.objects.get(external_id="none")
    assert (row.answerable, row.figures, row.first_relevant, row.lost_at, row.judged) == (False, {}, {}, "", [])
    assert row.best_score is not None


def test_a_run_that_is_over_is_not_carried_out_again(principal, eval_set):
    run = executed(start_run(principal, eval_set))
    finished_at = run.finished_at

    assert executed(run).finished_at == finished_at
    assert EvalRunQuery.objects.count() == 4


def test_a_run_goes_on_after_the_account_that_started_it_is_gone(eval_set, kb):
    editor = make_member(kb, Membership.Role.EDITOR)
    run = start_run(Principal(editor), eval_set)
    editor.delete()
    assert executed(run).status == "done"


def test_the_task_carries_the_run_out(principal, eval_set):
    run = start_run(principal, eval_set)
    run_evaluation(run.pk)
    run.refresh_from_db()
    assert run.status == "done"


def test_rights_that_are_withdrawn_before_it_begins_fail_the_run(eval_set, kb):
    editor = make_member(kb, Membership.Role.EDITOR)
    run = start_run(Principal(editor), eval_set)
    Membership.objects.all().delete()

    run = executed(run)
    assert run.status == "failed"
    assert "no knowledge base" in run.error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RetrievalError("the model is out: start it"), "the model is out: start it"),
        (ScopeOutdated("again"), runs.MOVED),
        (KeyError("bug"), runs.INTERNAL_ERROR),
    ],
)
def test_a_run_that_fails_says_why_and_keeps_nothing(principal, eval_set, monkeypatch, error, words):
    def fail(*_arguments, **_keywords):
        raise error

    monkeypatch.setattr(Pipeline, "run", fail)
    run = executed(start_run(principal, eval_set))

    assert (run.status, run.error, run.report) == ("failed", words, {})
    assert run.finished_at is not None
    assert not EvalRunQuery.objects.exists()


def test_a_run_carried_out_here_is_kept_and_enqueues_nothing(
    principal, eval_set, monkeypatch, django_capture_on_commit_callbacks
):
    sent, done = [], []
    monkeypatch.setattr(signals, "enqueue", lambda *arguments: sent.append(arguments))
    with django_capture_on_commit_callbacks(execute=True):
        run = evaluate_as_run(principal, eval_set, on_progress=done.append)

    assert (sent, sum(done)) == ([], 4)
    assert EvalRun.objects.get(pk=run.pk).status == run.status == "done"


def test_a_run_carried_out_here_that_fails_is_kept_and_tells(principal, eval_set, monkeypatch):
    def fail(*_arguments, **_keywords):
        raise RetrievalError("the model is out")

    monkeypatch.setattr(Pipeline, "run", fail)
    with pytest.raises(RetrievalError):
        evaluate_as_run(principal, eval_set)
    assert EvalRun.objects.get().status == "failed"


# -- Progress and cancelling ----------------------------------------------------------------------------------------------
def test_progress_is_told_while_a_run_goes_on(principal, eval_set, monkeypatch):
    seen = []
    real = Pipeline.run

    def run(*arguments, **keywords):
        seen.append(EvalRun.objects.get().done)
        return real(*arguments, **keywords)

    monkeypatch.setattr(runs, "REPORT_S", 0)
    monkeypatch.setattr(Pipeline, "run", run)
    executed(start_run(principal, eval_set))
    assert seen[-1] > 0
    assert seen == sorted(seen)


def test_a_waiting_run_is_cancelled_at_once(principal, eval_set):
    run = start_run(principal, eval_set)
    cancel_run(principal, run)

    assert (run.status, run.finished_at is not None) == ("cancelled", True)
    assert executed(run).status == "cancelled"


def test_a_run_under_way_ends_with_what_it_has_measured(principal, eval_set, monkeypatch):
    real, searched = Pipeline.run, []

    def run(*arguments, **keywords):
        searched.append(1)
        if len(searched) == 3:
            cancel_run(principal, EvalRun.objects.get())
        return real(*arguments, **keywords)

    monkeypatch.setattr(runs, "REPORT_S", 0)
    monkeypatch.setattr(Pipeline, "run", run)
    ended = executed(start_run(principal, eval_set))

    assert (ended.status, ended.report) == ("cancelled", {})
    assert 0 < ended.done == EvalRunQuery.objects.count() < 4


def test_a_run_that_is_done_stays_done(principal, eval_set):
    run = executed(start_run(principal, eval_set))
    cancel_run(principal, run)
    assert (run.status, run.cancel_requested) == ("done", False)


def test_a_viewer_may_not_cancel(principal, eval_set, kb):
    run = start_run(principal, eval_set)
    with pytest.raises(NotAllowed):
        cancel_run(Principal(make_member(kb)), run)


@pytest.mark.django_db(transaction=True)
def test_a_run_is_cancelled_while_a_search_hangs(principal, eval_set, monkeypatch):
    run = start_run(principal, eval_set)
    search = Gate(monkeypatch, Pipeline, "run")
    running = Running(execute_run, run.pk)
    search.wait()

    cancel_run(principal, run)
    assert running.outcome() is None
    search.open()

    run.refresh_from_db()
    assert run.status == "cancelled"


@pytest.mark.django_db(transaction=True)
def test_searches_that_run_at_once_measure_what_searches_in_turn_do(principal, eval_set):
    executed(start_run(principal, eval_set))
    at_once = list(EvalRunQuery.objects.order_by("pk").values_list("external_id", "figures", "judged", "best_score"))

    assert [row[0] for row in at_once] == ["q0", "q1", "q2", "none"]
    assert all(row[1]["reranked"]["ndcg@10"] == 1 for row in at_once[:3])


@pytest.mark.django_db(transaction=True)
def test_of_two_workers_one_carries_a_run_out(principal, eval_set, monkeypatch):
    run = start_run(principal, eval_set)
    search = Gate(monkeypatch, Pipeline, "run")
    running = Running(execute_run, run.pk)
    search.wait()
    execute_run(run.pk)
    search.open()

    assert running.outcome() is None
    assert EvalRunQuery.objects.count() == 4


@pytest.mark.django_db(transaction=True)
def test_a_query_that_is_deleted_meanwhile_stays_in_the_run_by_its_words(principal, eval_set, monkeypatch):
    run = start_run(principal, eval_set)
    search = Gate(monkeypatch, Pipeline, "run")
    running = Running(execute_run, run.pk)
    search.wait()
    EvalQuery.objects.get(external_id="q1").delete()
    search.open()

    assert running.outcome() is None
    run.refresh_from_db()
    assert run.status == "done"
    assert EvalRunQuery.objects.get(external_id="q1").query_id is None
    assert EvalRunQuery.objects.filter(query=None).count() == 1


# -- The sweep ------------------------------------------------------------------------------------------------------------
def test_a_run_whose_process_is_silent_is_given_up_with_a_remedy(principal, eval_set):
    run = start_run(principal, eval_set)
    EvalRun.objects.update(status="running", started_at=timezone.now())
    silent(run, minutes=3)

    assert sweep_runs() == []
    run.refresh_from_db()
    assert (run.status, run.error) == ("failed", runs.WORKER_LOST)


def test_a_cancelled_run_whose_process_is_silent_is_cancelled(principal, eval_set):
    run = start_run(principal, eval_set)
    EvalRun.objects.update(status="running", started_at=timezone.now(), cancel_requested=True)
    silent(run, minutes=3)
    sweep_runs()
    run.refresh_from_db()
    assert (run.status, run.error) == ("cancelled", "")


def test_a_run_whose_process_is_silent_can_be_cancelled_at_once(principal, eval_set):
    run = start_run(principal, eval_set)
    EvalRun.objects.update(status="running", started_at=timezone.now())
    silent(run, minutes=3)
    cancel_run(principal, run)
    assert run.status == "cancelled"


def test_a_run_that_goes_on_is_left_alone(principal, eval_set):
    run = start_run(principal, eval_set)
    EvalRun.objects.update(status="running", started_at=timezone.now())
    silent(run, seconds=30)
    sweep_runs()
    run.refresh_from_db()
    assert run.status == "running"


def test_a_run_that_was_given_up_is_not_written_by_the_process_that_was_slow(principal, eval_set, monkeypatch):
    real = Pipeline.run

    def run(*arguments, **keywords):
        silent(EvalRun.objects.get(), minutes=3)
        sweep_runs()
        return real(*arguments, **keywords)

    monkeypatch.setattr(Pipeline, "run", run)
    monkeypatch.setattr(runs, "REPORT_S", 0)
    ended = executed(start_run(principal, eval_set))
    assert (ended.status, ended.error) == ("failed", runs.WORKER_LOST)
    assert not EvalRunQuery.objects.exists()


def test_a_run_whose_task_was_lost_is_enqueued_once(principal, eval_set, monkeypatch):
    sent = []
    monkeypatch.setattr("kb.tasks.enqueue", lambda task, *ids: sent.append((task.name, ids)))
    run = start_run(principal, eval_set)
    sweep_lost_runs()
    assert sent == []
    EvalRun.objects.update(created_at=timezone.now() - timedelta(minutes=3))
    sweep_lost_runs()
    sweep_lost_runs()
    assert sent == [("kb.tasks.run_evaluation", (run.pk,))]
