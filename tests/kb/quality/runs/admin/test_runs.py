"""The list of evaluation runs, who may do what with them, and what all their pages cost."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from kb.models import EvalQuery, EvalRun, EvalRunQuery, Judgment, RetrievalProfile
from kb.quality.runs.admin.report import lost_label
from kb.quality.runs.services.run import LOST_AT
from tests.factories import make_kb, make_member
from tests.kb.quality.runs.admin.run_pages import done, judged_set, missed, page_of, report, url
from tests.kb.quality.runs.eval_runs import answered, draft, make_set
from tests.kb.web.admin.pages import Page, words

MANY = 4_221


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def eval_set(kb, document):
    return judged_set(kb, document)


@pytest.fixture
def shared(curator):
    """A set of a stranger's knowledge base of which the curator is a viewer."""
    kb = make_kb()
    make_member(kb, user=curator)
    return make_set(kb, "shared set", "a query")


# -- Who may do what -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["change", "live", "queries", "csv", "delete"])
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


def test_every_page_takes_few_queries(client, large, django_assert_max_num_queries):
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
        with django_assert_max_num_queries(11):
            assert client.get(page).status_code == 200


def test_the_misses_of_a_large_run_are_paged(client, large):
    page = page_of(client, large, "?lost=channels&page=2")

    assert len(page.tree.xpath("//li[contains(@class, 'er-miss')]")) == 20
    assert page.tree.xpath("//a[@rel='next']/@href") == ["?lost=channels&page=3#misses"]


@pytest.mark.parametrize("stage", LOST_AT)
def test_every_stage_that_loses_passages_has_a_label(stage):
    assert lost_label(stage) != stage


@pytest.mark.parametrize("page", ["kb_evalrun_changelist", "kb_evalrun_progress", "compare_runs", "calibration"])
def test_lists_of_runs_read_none_of_their_documents(client, eval_set, page):
    run = done(eval_set, fit={"outcome": "no_gain"}, folds=2)

    with CaptureQueriesContext(connection) as queries:
        response = client.get(reverse(f"admin:{page}"), {"ids": run.pk} if page.endswith("progress") else {})

    assert response.status_code == 200
    read = [each["sql"] for each in queries if 'FROM "kb_evalrun"' in each["sql"]]
    assert any('"kb_evalrun"."folds"' in each for each in read)
    for column in ("fit", "report", "configuration"):
        assert not any(f'"kb_evalrun"."{column}",' in each for each in read)
