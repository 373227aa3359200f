"""Evaluation runs in the admin: the list, the start, a run's page and what it measured of each query."""

import csv
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.urls import reverse
from django.utils import timezone

from kb.models import EvalQuery, EvalRun, EvalRunQuery, Judgment, RetrievalProfile
from kb.services.evaluation import execute_run
from tests.factories import make_document, make_kb, make_member
from tests.kb.admin.pages import Page, words
from tests.kb.eval_runs import answered, draft, make_run, make_set, unanswered

STAGES = {
    "bm25": {"recall@5": 0.9, "recall@20": 0.95, "hit_rate@1": 0.7, "mrr@10": 0.8, "ndcg@10": 0.82},
    "vector": {"recall@5": 0.6, "recall@20": 0.7, "hit_rate@1": 0.4, "mrr@10": 0.5, "ndcg@10": 0.52},
    "fused": {"recall@5": 0.92, "recall@20": 0.96, "hit_rate@1": 0.7, "mrr@10": 0.81, "ndcg@10": 0.84},
    "reranked": {"recall@5": 0.91, "recall@20": 0.96, "hit_rate@1": 0.75, "mrr@10": 0.8, "ndcg@10": 0.83},
}
GATE = {
    "scale": "overlap",
    "cut": 0.5,
    "auroc": 0.94,
    "answerable_kept": 0.93,
    "unanswerable_passed": 0.09,
    "false_answer_rate": 0.09,
    "unanswerable": 20,
}
MANY = 4_221


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def eval_set(kb, document):
    """Its first query has a judged passage, which is a chunk today."""
    made = make_set(kb, "law questions", "违约金过高怎么办", "诉讼时效多久")
    Judgment.objects.create(
        query=made.queries.get(external_id="q0"),
        document=document,
        source="notes.txt",
        quote="违约金过高的，可以请求减少。",
        grade=2,
    )
    return made


@pytest.fixture
def shared(curator):
    """A set of a stranger's knowledge base of which the curator is a viewer."""
    kb = make_kb()
    make_member(kb, user=curator)
    return make_set(kb, "shared set", "a query")


def report(**changes):
    return {
        "queries": 2,
        "stages": STAGES,
        "latency_ms": {"p50": 3.25, "p95": 12.5},
        "gate": GATE,
        "degraded": [],
        **changes,
    }


def done(eval_set, queries=(), **changes):
    now = timezone.now()
    fields = {"started_at": now - timedelta(seconds=42), "finished_at": now, "report": report()}
    return make_run(eval_set, queries, **(fields | changes))


def missed(name, lost_at, **fields):
    return answered(name, 0.0, lost_at=lost_at, first_relevant={"bm25": 3, "fused": 30}, **fields)


def of_kb(run):
    """What a run of the present state of its knowledge base holds."""
    row = run.eval_set.knowledge_base.version_row
    row.refresh_from_db()
    return {"kb_version": row.version, "content_version": row.content_version}


def url(name, *args):
    return reverse(f"admin:kb_evalrun_{name}", args=args)


def page_of(client, run, query=""):
    return Page(client.get(url("change", run.pk) + query))


def links(page, testid):
    return page.tree.xpath(f"//*[@data-testid='{testid}']//a/@href")


def cells(page, stage):
    row = page.tree.xpath(f"//tr[@data-stage='{stage}']/td")
    return {cell.get("data-metric"): words(cell) for cell in row}


# -- Who may do what -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["change", "live", "queries", "delete"])
def test_a_run_of_a_stranger_does_not_exist(client, foreign, name):
    run = done(make_set(foreign.knowledge_base))

    assert client.get(url(name, run.pk)).status_code == 404


def test_the_list_holds_only_visible_runs(client, eval_set, foreign):
    done(eval_set)
    done(make_set(foreign.knowledge_base, "stranger's questions"))

    page = client.get(url("changelist")).content.decode()

    assert "law questions" in page
    assert "stranger&#x27;s questions" not in page


def test_a_viewer_sees_a_run_but_neither_cancels_nor_deletes_it(client, shared):
    run = done(shared, status=EvalRun.Status.RUNNING, report={})

    page = page_of(client, run)

    assert page.has("live")
    assert not page.has("cancel")
    assert client.post(url("cancel", run.pk)).status_code == 403
    assert client.post(url("delete", run.pk), {"post": "yes"}).status_code == 403


def test_a_viewer_is_not_offered_the_set_and_cannot_run_it(client, shared, eval_set):
    page = client.get(url("add"))
    posted = client.post(url("add"), {"eval_set": shared.pk})

    assert [eval_set.pk] == [row.pk for row in page.context["form"].fields["eval_set"].queryset]
    assert posted.context["form"].errors["eval_set"]
    assert not EvalRun.objects.exists()


# -- The list ------------------------------------------------------------------------------------------------------------
def test_the_list_tells_set_profile_unsaved_settings_figures_and_state(client, eval_set):
    run = done(eval_set, [answered("q0")], overrides={"rrf_k": 20, "fusion": "weighted"})

    page = Page(client.get(url("changelist")))

    row = words(page.tree.xpath("//table[@id='result_list']//tbody[tr]")[0])
    for expected in (
        "law questions",
        f"#{run.pk}",
        "legal",
        "keyword-led v1",
        "+ 2 unsaved settings",
        "0.910",
        "0.830",
    ):
        assert expected in row
    assert "0.940" in row
    assert "done" in row.lower()


@pytest.mark.parametrize(
    ("given", "found"),
    [("status__exact=done", {"done"}), ("status__exact=failed", {"failed"}), ("", {"done", "failed"})],
)
def test_the_list_is_filtered_by_state(client, eval_set, given, found):
    done(eval_set)
    done(eval_set, status=EvalRun.Status.FAILED)

    listed = client.get(f"{url('changelist')}?{given}").context["cl"].result_list

    assert {run.status for run in listed} == found


def test_the_list_is_filtered_by_set_and_by_profile(client, kb, eval_set):
    drafted = draft(kb.profile, rrf_k=20)
    wanted = done(eval_set, profile=drafted)
    done(eval_set)
    done(make_set(kb, "other set"), profile=drafted)

    query = f"?eval_set__id__exact={eval_set.pk}&profile__id__exact={drafted.pk}"
    listed = client.get(url("changelist") + query).context["cl"].result_list

    assert [run.pk for run in listed] == [wanted.pk]


@pytest.mark.parametrize(("order", "first"), [("4", "worse"), ("-4", "better")])
def test_the_list_is_sorted_by_a_figure_and_runs_without_it_are_last_of_the_best(client, kb, order, first):
    runs = {
        "better": done(make_set(kb, "a")),
        "worse": done(make_set(kb, "b"), report=report(stages={"reranked": {"recall@5": 0.2, "ndcg@10": 0.1}})),
    }

    listed = client.get(f"{url('changelist')}?o={order}").context["cl"].result_list

    assert listed[0].pk == runs[first].pk


def test_an_unfinished_run_of_the_list_is_asked_about_again_until_it_has_ended(client, eval_set):
    run = done(eval_set, status=EvalRun.Status.RUNNING, done=1, total=4, report={})

    listed = client.get(url("changelist")).content.decode()
    running = client.get(url("progress"), {"ids": str(run.pk)}).content.decode()
    EvalRun.objects.filter(pk=run.pk).update(status=EvalRun.Status.DONE, report=report())
    ended = client.get(url("progress"), {"ids": str(run.pk)}).content.decode()

    assert f"ids={run.pk}" in listed
    assert 'aria-valuenow="25"' in running
    assert f"ids={run.pk}" in running
    assert "hx-get" not in ended
    assert "0.910" in ended


@pytest.mark.parametrize("count", [1, 3])
def test_other_than_two_runs_are_not_compared(client, eval_set, count):
    chosen = [done(eval_set).pk for _ in range(count)]

    answer = client.post(url("changelist"), {"action": "compare", "_selected_action": chosen}, follow=True)

    assert "Choose exactly two runs to compare." in answer.content.decode()


def test_an_unfinished_run_is_not_compared(client, eval_set):
    chosen = [done(eval_set).pk, done(eval_set, status=EvalRun.Status.RUNNING).pk]

    answer = client.post(url("changelist"), {"action": "compare", "_selected_action": chosen}, follow=True)

    assert f"run #{chosen[1]} is not" in answer.content.decode()


def test_two_runs_are_compared_the_earlier_one_first(client, eval_set):
    first, second = done(eval_set), done(eval_set)

    answer = client.post(url("changelist"), {"action": "compare", "_selected_action": [second.pk, first.pk]})

    assert answer.url == f"{reverse('admin:compare_runs')}?a={first.pk}&b={second.pk}"


def test_deleting_a_run_says_how_much_goes_with_it(client, eval_set):
    run = done(eval_set, [answered("q0"), answered("q1")])

    asked = client.get(url("delete", run.pk)).content.decode()
    client.post(url("delete", run.pk), {"post": "yes"})

    assert "measured queries" in asked
    assert not EvalRun.objects.exists()
    assert not EvalRunQuery.objects.exists()


# -- The start -----------------------------------------------------------------------------------------------------------
def test_without_a_set_the_start_says_how_to_make_one(client, kb):
    assert Page(client.get(url("add"))).has("no-sets")


def test_a_run_starts_under_a_draft_with_unsaved_settings_and_a_limit(client, kb, eval_set):
    drafted = draft(kb.profile, rrf_k=20)

    answer = client.post(
        url("add"),
        {
            "eval_set": eval_set.pk,
            "profile": drafted.pk,
            "limit": "10",
            "vector_weight": "0.7",
            "fusion": "rrf",
            "other": "rerankers = overlap, cosine\nlexical_fallback = false\n",
        },
    )

    run = EvalRun.objects.get()
    assert answer.url == url("change", run.pk)
    assert (run.eval_set, run.profile, run.query_limit) == (eval_set, drafted, 10)
    assert run.overrides == {
        "vector_weight": 0.7,
        "fusion": "rrf",
        "rerankers": ["overlap", "cosine"],
        "lexical_fallback": False,
    }


def test_without_a_chosen_profile_a_run_has_the_knowledge_base_s_own(client, kb, eval_set):
    client.post(url("add"), {"eval_set": eval_set.pk})

    assert EvalRun.objects.get().profile == kb.profile


def test_versions_are_offered_with_their_state(client, kb, eval_set):
    drafted = draft(kb.profile)

    offered = client.get(f"{url('add')}?eval_set={eval_set.pk}").content.decode()

    assert f"{drafted} · draft" in offered
    assert f"{kb.profile} · published" in offered
    assert f"own ({kb.profile})" in offered


def test_a_profile_of_another_knowledge_base_is_not_offered(client, curator, eval_set):
    other = make_kb(curator, "other")
    own = draft(other.profile)
    type(own).objects.filter(pk=own.pk).delete()
    foreign_profile = type(own).objects.create(name="of other", knowledge_base=other)

    answer = client.post(url("add"), {"eval_set": eval_set.pk, "profile": foreign_profile.pk})

    assert answer.context["form"].errors["profile"]


def test_empty_fields_show_what_the_chosen_profile_sets(client, kb, eval_set):
    drafted = draft(kb.profile, rrf_k=33)

    page = Page(client.get(f"{url('add')}?eval_set={eval_set.pk}&profile={drafted.pk}"))

    assert page.tree.get_element_by_id("id_rrf_k").get("placeholder") == "33"


@pytest.mark.parametrize(
    ("values", "field", "sentence"),
    [
        ({"vector_weight": "much"}, "vector_weight", "Enter a number."),
        ({"rrf_k": "20000"}, "rrf_k", "give a number from 1 to 10000"),
        ({"vector_weight": "0", "keyword_weight": "0"}, "keyword_weight", "give at least one channel a weight"),
        ({"other": "no_such = 1"}, "other", "unknown setting"),
        ({"other": "just words"}, "other", "Line 1 is no setting: write it as “name = value”."),
        ({"other": "use_rerank = false"}, "other", "“use_rerank” has no effect here"),
        ({"limit": "0"}, "limit", "greater than or equal to 1"),
    ],
)
def test_what_a_setting_cannot_be_is_said_beside_its_field(client, eval_set, values, field, sentence):
    answer = client.post(url("add"), {"eval_set": eval_set.pk, **values})

    assert sentence in " ".join(answer.context["form"].errors[field])
    assert not EvalRun.objects.exists()


def test_a_run_starts_again_with_the_same_settings(client, eval_set):
    run = done(eval_set, overrides={"rrf_k": 20, "rerankers": ["overlap"]}, query_limit=7)

    again = page_of(client, run).tree.xpath("//a[contains(@href, '/add/?')]/@href")[0]
    form = client.get(again).context["form"]
    values = {name: form[name].value() or "" for name in form.fields}
    client.post(url("add"), values)

    started = EvalRun.objects.exclude(pk=run.pk).get()
    assert (started.overrides, started.query_limit, started.profile) == (run.overrides, 7, run.profile)


def test_a_set_without_a_judgment_is_not_run_and_the_remedy_is_said(client, kb):
    unjudged = make_set(kb, "unjudged", "a query")

    answer = client.post(url("add"), {"eval_set": unjudged.pk})

    assert "judge results of a search, or import judgments" in str(answer.context["form"].non_field_errors())


@pytest.mark.django_db(transaction=True)
def test_a_run_that_was_started_here_is_carried_out_and_shown(client, eval_set):
    client.post(url("add"), {"eval_set": eval_set.pk})
    run = EvalRun.objects.get()

    execute_run(run.pk)

    page = page_of(client, run)
    assert cells(page, "reranked")["recall@5"].startswith("1.000")
    assert page.has("latency")
    assert "None: every query" in page.text("misses")
    assert "Which stage gains" in page.text("stages")
    assert listed(client, run) == ["q0"]


# -- While it runs -------------------------------------------------------------------------------------------------------
def running(eval_set, **changes):
    now = timezone.now()
    fields = {
        "status": EvalRun.Status.RUNNING,
        "done": 500,
        "total": 2_000,
        "report": {},
        "finished_at": None,
        "started_at": now - timedelta(seconds=10),
        "heartbeat": now,
    }
    return done(eval_set, **(fields | changes))


def test_a_running_run_shows_counts_rate_and_time_left_and_polls(client, eval_set):
    run = running(eval_set)

    page = page_of(client, run)

    assert "Measuring: 500 of 2000 queries" in page.text("live")
    assert page.text("rate") == "50 queries a second · about 30 seconds left"
    assert page.tree.xpath("//*[@id='run-live']/@hx-get") == [url("live", run.pk)]
    assert page.has("cancel")


def test_a_page_is_loaded_anew_once_its_run_has_ended(client, eval_set):
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

    page = Page(client.get(url("live", run.pk)))

    assert "manage.py serve" in page.text("standstill")


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

    assert "Judge results in Search debug" in page.text("no-figures")


def test_degradations_are_told_in_words(client, eval_set):
    degraded = [
        {
            "stage": "rerank",
            "code": "reranker_unavailable",
            "detail": "no cross-encoder: run `manage.py download_model`",
        },
        {"stage": "later", "code": "of_a_later_version", "detail": "something new"},
    ]
    page = page_of(client, done(eval_set, report=report(degraded=degraded)))

    assert "A reranker cannot be had" in page.text("degraded")
    assert "Of a later version" in page.text("degraded")


def test_a_change_of_the_knowledge_base_since_the_run_is_said(client, kb, eval_set):
    run = done(eval_set)
    EvalRun.objects.filter(pk=run.pk).update(**of_kb(run))

    same = page_of(client, run)
    make_document(kb, "A further passage.")
    changed = page_of(client, run)

    assert not same.has("changed")
    assert changed.has("changed")


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


def test_the_only_run_of_a_set_says_what_another_would_tell(client, eval_set):
    assert "run the set again after a change" in page_of(client, done(eval_set)).text("neighbours")


def test_the_verdict_counts_the_queries_that_a_stage_raised_and_lowered(client, eval_set):
    queries = [answered("q0", 0.9), answered("q1", 0.1), answered("q2", 0.2), answered("q3", 0.5)]  # fused: .5 each

    verdict = words(page_of(client, done(eval_set, queries)).tree.xpath("//*[@data-testid='verdicts']/li")[1])

    assert "1 query raised · 2 queries lowered" in verdict


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"final_stage": "fused"}, "No reranker has answered"),
        ({"unanchored_count": 3}, "3 relevant passages are no longer in the knowledge base"),
    ],
)
def test_what_one_must_know_to_read_the_figures_is_said(client, eval_set, given, sentence):
    assert sentence in page_of(client, done(eval_set, report=report(**given))).text("remark")


# -- A draft of what was tried -------------------------------------------------------------------------------------------
def test_the_settings_of_a_run_are_saved_as_a_draft_of_the_knowledge_base_s_own_profile(client, kb, eval_set):
    run = done(eval_set, overrides={"rrf_k": 20})

    answer = client.post(url("draft", run.pk))

    draft_of_run = RetrievalProfile.objects.get(knowledge_base=kb)
    assert draft_of_run.settings == {**kb.profile.settings, "rrf_k": 20}
    assert not draft_of_run.published
    assert answer.url == reverse("admin:kb_retrievalprofile_change", args=[draft_of_run.pk])


def test_a_superuser_s_draft_is_the_next_version_of_the_shared_profile(client, curator, kb, eval_set):
    type(curator).objects.filter(pk=curator.pk).update(is_superuser=True)
    run = done(eval_set, overrides={"rrf_k": 20})

    client.post(url("draft", run.pk))

    assert RetrievalProfile.objects.get(name=kb.profile.name, version=2).settings["rrf_k"] == 20


def test_a_draft_that_cannot_be_saved_says_why(client, kb, eval_set):
    RetrievalProfile.objects.create(name=kb.name)  # shared, so not the curator's to change
    run = done(eval_set, overrides={"rrf_k": 20})

    answer = client.post(url("draft", run.pk), follow=True)

    assert "choose another name" in answer.content.decode()


def test_a_viewer_saves_no_draft(client, shared):
    run = done(shared, overrides={"rrf_k": 20})

    assert client.post(url("draft", run.pk)).status_code == 403


# -- Misses --------------------------------------------------------------------------------------------------------------
@pytest.fixture
def with_misses(eval_set):
    queries = [
        answered("hit"),
        missed("q0", "rerank", text="违约金过高怎么办", query=eval_set.queries.get(external_id="q0")),
        missed("lost1", "channels"),
        missed("lost2", "channels"),
        unanswered("none", 0.9),
    ]
    return done(eval_set, queries, overrides={"fusion": "weighted"})


def test_misses_are_grouped_by_the_stage_that_lost_them_in_the_order_of_the_pipeline(client, with_misses):
    page = page_of(client, with_misses)

    choices = {each.get("data-lost"): words(each.xpath("b")[0]) for each in page.tree.xpath("//nav//a[@data-lost]")}
    assert choices == {"": "3", "channels": "2", "rerank": "1"}
    assert [words(each) for each in page.tree.xpath("//*[@data-testid='misses']//h3")] == [
        "No channel found it",
        "The reranker ranked it too low",
    ]


def test_the_misses_of_one_stage_can_be_seen_alone(client, with_misses):
    page = page_of(client, with_misses, "?lost=rerank")

    assert page.tree.xpath("//li[contains(@class, 'er-miss')]/@data-lost") == ["rerank"]


def test_a_miss_links_to_search_debug_under_the_same_settings(client, kb, with_misses):
    page = page_of(client, with_misses, "?lost=rerank")

    href = next(each for each in links(page, "misses") if each.startswith(reverse("admin:search_debug")))
    asked = {name: values[0] for name, values in parse_qs(urlsplit(href).query).items()}
    assert asked == {
        "kb": str(kb.pk),
        "q": "违约金过高怎么办",
        "profile": f"{kb.profile.name}@{kb.profile.version}",
        "fusion": "weighted",
    }


def test_a_miss_links_to_why_not_found_only_where_a_relevant_chunk_is_known(client, kb, document, with_misses):
    page = page_of(client, with_misses)

    (href,) = [each for each in links(page, "misses") if each.startswith(reverse("admin:why_not"))]
    assert {name: values[0] for name, values in parse_qs(urlsplit(href).query).items()} == {
        "kb": str(kb.pk),
        "q": "违约金过高怎么办",
        "chunk": str(document.chunks.get(position=0).pk),
        "profile": f"{kb.profile.name}@{kb.profile.version}",
        "fusion": "weighted",
    }


def test_a_relevant_chunk_is_found_again_after_another_chunking(client, kb, document, with_misses):
    document.delete()
    again = make_document(kb, "序言。违约金过高的，可以请求减少。", title="Contracts")

    page = page_of(client, with_misses)

    (href,) = [each for each in links(page, "misses") if each.startswith(reverse("admin:why_not"))]
    assert parse_qs(urlsplit(href).query)["chunk"] == [str(again.chunks.get().pk)]


def test_a_document_judged_as_a_whole_leads_to_its_first_chunk(client, document, with_misses):
    Judgment.objects.update(quote="", quote_hash="")

    page = page_of(client, with_misses)

    (href,) = [each for each in links(page, "misses") if each.startswith(reverse("admin:why_not"))]
    assert parse_qs(urlsplit(href).query)["chunk"] == [str(document.chunks.get(position=0).pk)]


def test_a_run_without_misses_says_so(client, eval_set):
    assert "None: every query" in page_of(client, done(eval_set, [answered("hit")])).text("misses")


# -- The table of queries --------------------------------------------------------------------------------------------------
def listed(client, run, **query):
    page = Page(client.get(url("queries", run.pk), query))
    return page.tree.xpath("//tr/@data-query")


@pytest.fixture
def mixed(eval_set):
    fused_better = answered("worse", 0.2, latency_ms=9.0)
    fused_better["figures"]["fused"]["ndcg@10"] = 0.9
    return done(
        eval_set,
        [
            answered("good", 1.0, judged=[(0.8, 2)], latency_ms=1.0),
            fused_better,
            missed("bad", "gate", text="a needle"),
            unanswered("quiet", 0.1),
            unanswered("loud", 0.7),
        ],
    )


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, ["good", "worse", "bad", "quiet", "loud"]),
        ({"q": "needle"}, ["bad"]),
        ({"q": "wors"}, ["worse"]),
        ({"show": "found"}, ["good", "worse"]),
        ({"show": "missed"}, ["bad"]),
        ({"show": "unanswerable"}, ["quiet", "loud"]),
        ({"show": "false"}, ["loud"]),
        ({"o": "ndcg@10"}, ["bad", "worse", "good", "quiet", "loud"]),
        ({"o": "-ndcg@10"}, ["good", "worse", "bad", "quiet", "loud"]),
        ({"o": "-best_score"}, ["good", "loud", "quiet", "worse", "bad"]),
        ({"o": "-latency_ms"}, ["worse", "bad", "quiet", "loud", "good"]),
        ({"o": "change", "show": "found"}, ["worse", "good"]),
        ({"o": "-ndcg@10", "stage": "fused", "show": "found"}, ["worse", "good"]),
        (
            {"o": "no such", "stage": "no such", "show": "no such", "page": "x"},
            ["good", "worse", "bad", "quiet", "loud"],
        ),
    ],
)
def test_queries_are_searched_filtered_and_sorted(client, mixed, query, found):
    assert listed(client, mixed, **query) == found


def test_a_row_of_the_table_shows_ranks_figures_and_change(client, mixed):
    page = Page(client.get(url("queries", mixed.pk), {"q": "worse"}))

    row = words(page.tree.xpath("//tr[@data-query='worse']")[0])
    assert "0.200" in row
    assert "−0.700 lost" in row  # noqa: RUF001 - the sign as it is shown


def test_a_search_without_a_match_offers_all(client, mixed):
    page = Page(client.get(url("queries", mixed.pk), {"q": "nothing like it"}))

    assert "Show all" in page.text("nothing")


def test_the_queries_are_downloaded_as_they_are_shown(client, mixed):
    answer = client.get(url("queries", mixed.pk), {"format": "csv", "show": "found", "o": "ndcg@10"})

    text = b"".join(answer.streaming_content).decode("utf-8-sig")
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["id"] for row in rows] == ["worse", "good"]
    assert rows[0]["fused ndcg@10"] == "0.9"
    assert rows[1]["best_score"] == "0.8"
    assert f"evaluation-run-{mixed.pk}.csv" in answer.headers["Content-Disposition"]


def test_a_query_in_the_file_is_no_formula(client, eval_set):
    run = done(eval_set, [answered("q0", text="=1+1")])

    text = b"".join(client.get(url("queries", run.pk), {"format": "csv"}).streaming_content).decode()

    assert "'=1+1" in text


# -- A large run ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def large(eval_set, document):
    EvalQuery.objects.bulk_create(
        EvalQuery(eval_set=eval_set, external_id=f"m{number}", text=f"query {number}") for number in range(MANY)
    )
    queries = list(EvalQuery.objects.filter(eval_set=eval_set, external_id__startswith="m"))
    Judgment.objects.bulk_create(
        Judgment(query=each, document=document, source="notes.txt", grade=1) for each in queries
    )
    lost = ("", "", "channels", "fusion", "rerank")
    rows = [missed(each.external_id, lost[number % 5], query=each) for number, each in enumerate(queries)]
    return done(eval_set, rows)


def test_every_page_takes_fewer_than_ten_queries(client, large, django_assert_max_num_queries):
    for _ in range(20):
        done(large.eval_set)
    pages = [
        url("change", large.pk),
        f"{url('change', large.pk)}?lost=fusion&page=3",
        url("queries", large.pk),
        f"{url('queries', large.pk)}?o=-ndcg@10&q=1&show=missed&page=2",
        url("live", large.pk),
        url("changelist"),
        url("progress"),
        f"{url('add')}?eval_set={large.eval_set_id}",
    ]

    for page in pages:
        with django_assert_max_num_queries(9):
            assert client.get(page).status_code == 200


def test_the_misses_of_a_large_run_are_paged(client, large):
    page = page_of(client, large, "?lost=channels&page=2")

    assert len(page.tree.xpath("//li[contains(@class, 'er-miss')]")) == 20
    assert page.tree.xpath("//a[@rel='next']/@href") == ["?lost=channels&page=3#misses"]
