"""The page of one evaluation run, while it runs and afterwards."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from kb.content.services import knowledge_base_update
from kb.models import EvalRun
from kb.profiles.services import create_version, publish
from tests.factories import make_document, principal
from tests.kb.quality.runs.admin.run_pages import (
    STAGES,
    cells,
    done,
    judged_set,
    links,
    of_kb,
    page_of,
    report,
    running,
    url,
)
from tests.kb.quality.runs.eval_runs import answered, draft, make_set
from tests.kb.web.admin.pages import Page, words


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def eval_set(kb, document):
    return judged_set(kb, document)


# -- While it runs -------------------------------------------------------------------------------------------------------
def test_a_running_run_shows_counts_rate_and_time_left_and_polls(client, eval_set):
    run = running(eval_set)

    page = page_of(client, run)

    assert "Measuring: 500 of 2000 queries" in page.text("live")
    assert page.text("rate") == "50 queries a second · about 30 seconds left"
    assert page.tree.xpath("//*[@id='run-live']/@hx-get") == [url("live", run.pk)]
    assert page.has("cancel")


@pytest.mark.parametrize(
    ("started", "left"),
    [(timedelta(seconds=10), "30 seconds"), (timedelta(minutes=10), "30 minutes"), (timedelta(hours=1), "3 hours")],
)
def test_the_time_that_is_left_is_told_in_the_unit_that_fits(client, eval_set, started, left):
    now = timezone.now()
    run = running(eval_set, started_at=now - started, heartbeat=now)

    assert f"about {left} left" in page_of(client, run).text("rate")


def test_a_page_is_loaded_again_once_its_run_has_ended(client, eval_set):
    run = done(eval_set)

    answer = client.get(url("live", run.pk))

    assert answer.headers["HX-Refresh"] == "true"
    assert "hx-get" not in answer.content.decode()


def test_a_running_run_is_cancelled(client, eval_set):
    run = running(eval_set)

    client.post(url("cancel", run.pk))

    run.refresh_from_db()
    assert run.cancel_requested
    page = page_of(client, run)
    assert "Being cancelled" in page.text("live")
    assert not page.has("cancel")


def test_a_finished_run_stays_as_it_is_when_it_is_cancelled(client, eval_set):
    run = done(eval_set)

    client.post(url("cancel", run.pk))

    run.refresh_from_db()
    assert (run.status, run.cancel_requested) == (EvalRun.Status.DONE, False)


def test_a_run_that_waits_for_long_says_that_no_worker_is_there(client, eval_set):
    run = running(eval_set, status=EvalRun.Status.PENDING, done=0, total=0, started_at=None, heartbeat=None)
    EvalRun.objects.filter(pk=run.pk).update(created_at=timezone.now() - timedelta(minutes=1))

    assert page_of(client, run).text("standstill") == "No worker has taken this run up yet."
    assert "manage.py serve" in Page(client.get(url("live", run.pk))).text("standstill")


def test_a_run_that_is_new_says_nothing_about_workers(client, eval_set):
    run = running(eval_set, status=EvalRun.Status.PENDING, done=0, total=0, started_at=None, heartbeat=None)

    assert not Page(client.get(url("live", run.pk))).has("standstill")


def test_a_run_that_went_silent_says_what_to_do(client, eval_set):
    run = running(eval_set, heartbeat=timezone.now() - timedelta(minutes=10))

    assert "Nothing has been heard of this run for 10 minutes" in page_of(client, run).text("standstill")


@pytest.mark.parametrize(
    ("status", "fields", "sentence"),
    [
        (EvalRun.Status.FAILED, {"error": "The disk is full."}, "The disk is full."),
        (EvalRun.Status.CANCELLED, {"done": 3, "total": 9}, "It had measured 3 of 9 queries"),
    ],
)
def test_a_run_that_did_not_finish_says_why_and_offers_another(client, eval_set, status, fields, sentence):
    page = page_of(client, done(eval_set, status=status, report={}, **fields))

    assert sentence in page.text("ended")
    assert any("/add/?" in href for href in links(page, "ended"))


# -- When it is done -----------------------------------------------------------------------------------------------------
def test_each_stage_shows_its_gain_or_loss_against_the_stage_before_it(client, eval_set):
    page = page_of(client, done(eval_set, [answered("q0")]))

    assert cells(page, "bm25")["ndcg@10"] == "0.820"
    assert cells(page, "fused")["ndcg@10"] == "0.840 +0.020 gained"
    assert cells(page, "fused")["hit_rate@1"] == "0.700 unchanged"
    assert cells(page, "reranked")["ndcg@10"] == "0.830 −0.010 lost"  # noqa: RUF001 - the sign as it is shown
    assert cells(page, "reranked")["hit_rate@1"] == "0.750 +0.050 gained"


def test_the_fusion_is_measured_against_the_better_channel(client, eval_set):
    swapped = {**STAGES, "bm25": STAGES["vector"], "vector": STAGES["bm25"]}
    page = page_of(client, done(eval_set, report=report(stages=swapped)))

    assert "against Vector" in words(page.tree.xpath("//tr[@data-stage='fused']/th")[0])
    assert cells(page, "fused")["ndcg@10"] == "0.840 +0.020 gained"


def test_the_verdict_names_who_gains_and_who_loses(client, eval_set):
    verdicts = page_of(client, done(eval_set)).text("verdicts")

    assert "The fusion gains: NDCG@10 +0.020 over the better channel, BM25." in verdicts
    assert "The reranker loses: NDCG@10 −0.010 against the fusion." in verdicts  # noqa: RUF001 - the sign as it is shown


def test_the_chart_has_the_figures_of_every_stage(client, eval_set):
    chart = page_of(client, done(eval_set)).tree.xpath("//*[@data-testid='chart']//canvas/@data-value")[0]

    assert all(f"{figure}" in chart for stage in STAGES.values() for figure in stage.values())


def test_the_gate_and_the_latency_are_shown(client, eval_set):
    page = page_of(client, done(eval_set))

    figures = {each.get("data-figure"): words(each.xpath("dd")[0]) for each in page.tree.xpath("//*[@data-figure]")}
    assert figures == {
        "auroc": "0.940",
        "answerable_kept": "93.0%",
        "false_answer_rate": "9.0%",
        "cut": "0.500",
        "p50": "3.2 ms",
        "p95": "12.5 ms",
    }


def test_a_set_without_unanswerable_queries_says_why_the_gate_is_not_measured(client, eval_set):
    page = page_of(client, done(eval_set, report=report(gate=None)))

    assert "Mark queries of the set as unanswerable" in page.text("gate")


def test_a_set_without_judgments_says_what_to_do(client, eval_set):
    page = page_of(
        client, done(eval_set, report=report(queries=0, stages={name: {} for name in STAGES}, latency_ms={}))
    )

    assert "Judge results in the retrieval test" in page.text("no-figures")


def test_degradations_beyond_the_baseline_are_told_in_words(client, eval_set, settings):
    settings.RERANK_BASE_URL = "http://127.0.0.1:9"
    degraded = [
        {
            "stage": "rerank",
            "code": "reranker_unavailable",
            "detail": "no cross-encoder: run `manage.py download_model`",
        },
        {"stage": "later", "code": "of_a_later_version", "detail": "something new"},
    ]
    page = page_of(client, done(eval_set, report=report(degraded=degraded)))

    assert "A reranker is unavailable" in page.text("degraded")
    assert "Of a later version" in page.text("degraded")


def test_a_change_of_the_knowledge_base_since_the_run_is_said(client, kb, eval_set):
    run = done(eval_set)
    EvalRun.objects.filter(pk=run.pk).update(**of_kb(run))

    same = page_of(client, run)
    make_document(kb, "A further passage.")
    changed = page_of(client, run)

    assert not same.has("changed")
    assert changed.has("changed")


@pytest.mark.parametrize("setting", ["profile", "name"])
def test_another_profile_or_name_is_no_change_of_the_content(client, kb, eval_set, setting):
    run = done(eval_set)
    EvalRun.objects.filter(pk=run.pk).update(**of_kb(run))
    if setting == "profile":
        own = create_version(principal(kb.owner), f"own-{kb.pk}", {"top_k": 3}, knowledge_base=kb)
        assert publish(principal(kb.owner), own, adopt=True) == 1
    else:
        knowledge_base_update(kb, by=principal(kb.owner), name="renamed")
    later = done(eval_set)
    EvalRun.objects.filter(pk=later.pk).update(**of_kb(later))

    assert not page_of(client, run).has("changed")
    assert len(set(EvalRun.objects.values_list("kb_version", "content_version"))) == 1

    knowledge_base_update(kb, by=principal(kb.owner), language="en")
    assert page_of(client, run).has("changed")


@pytest.mark.parametrize(
    ("rerankers", "shown"),
    [
        (["overlap"], ["word overlap"]),
        (["cross_encoder"], ["BAAI/bge-reranker-base"]),
        (["cross_encoder", "overlap"], ["BAAI/bge-reranker-base, word overlap"]),
        ([], []),
        (None, ["BAAI/bge-reranker-base"]),  # it runs still
    ],
    ids=str,
)
def test_the_reranker_that_has_answered_is_named(client, eval_set, rerankers, shown):
    told = report() if rerankers is None else report(rerankers=rerankers)
    run = done(eval_set, report=told, model_ids={"embedding": "hashing", "reranker": "BAAI/bge-reranker-base"})
    terms = page_of(client, run).tree.xpath("//*[@data-testid='configuration']/dl/dt")
    assert [words(each.getnext()) for each in terms if words(each) == "Reranker"] == shown


def test_the_configuration_says_where_each_setting_comes_from(client, kb, eval_set):
    run = done(
        eval_set,
        profile=draft(kb.profile, rrf_k=20),
        overrides={"fusion": "weighted"},
        configuration={"top_k": 20, "rrf_k": 20, "fusion": "weighted"},
    )

    rows = [words(row) for row in page_of(client, run).tree.xpath("//table[contains(@class, 'er-settings')]/tbody/tr")]

    assert [row.rsplit(" ", 1)[1] for row in rows] == ["profile", "unsaved", "environment"]
    assert "weighted sum" in rows[1]


def test_a_run_links_to_calibration_set_and_profile(client, kb, eval_set):
    run = done(eval_set)

    found = links(page_of(client, run), "facts")

    assert f"{reverse('admin:calibration')}?run={run.pk}" in found
    assert reverse("admin:kb_evalset_change", args=[eval_set.pk]) in found
    assert reverse("admin:kb_retrievalprofile_change", args=[kb.profile_id]) in found


def test_a_run_stands_beside_the_other_finished_runs_of_its_set(client, kb, eval_set):
    worse = {**STAGES, "reranked": {**STAGES["reranked"], "recall@5": 0.8}}
    other, run = done(eval_set, report=report(stages=worse)), done(eval_set)
    done(make_set(kb, "other set"))
    done(eval_set, status=EvalRun.Status.FAILED)

    page = page_of(client, run)

    (row,) = page.tree.xpath("//tr[@data-run]")
    assert row.get("data-run") == str(other.pk)
    assert "0.800 +0.110 gained" in words(row)
    assert row.xpath(".//a/@href")[-1] == f"{reverse('admin:compare_runs')}?a={other.pk}&b={run.pk}"


def test_runs_of_different_queries_are_not_held_against_each_other(client, eval_set):
    done(eval_set, [answered("q0")])
    run = done(eval_set, [answered("q0"), answered("q1")])

    neighbours = page_of(client, run).text("neighbours")

    assert "measured by 1 query: compare the two by those that both have" in neighbours
    assert "unchanged" not in neighbours


def test_the_only_run_of_a_set_says_what_another_would_tell(client, eval_set):
    assert "run the set again after a change" in page_of(client, done(eval_set)).text("neighbours")


def test_the_verdict_counts_the_queries_that_a_stage_raised_and_lowered(client, eval_set):
    queries = [answered("q0", 0.9), answered("q1", 0.1), answered("q2", 0.2), answered("q3", 0.5)]  # fused: .5 each

    verdict = words(page_of(client, done(eval_set, queries)).tree.xpath("//*[@data-testid='verdicts']/li")[1])

    assert "1 query raised · 2 queries lowered" in verdict


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"final_stage": "fused", "rerankers": []}, "No reranker has answered"),
        ({"final_stage": "reranked", "rerankers": []}, "The reranker was off"),
        ({"unanchored_count": 3}, "3 relevant passages are no longer in the knowledge base"),
    ],
)
def test_what_one_must_know_to_read_the_figures_is_said(client, eval_set, given, sentence):
    assert sentence in page_of(client, done(eval_set, report=report(**given))).text("remark")
