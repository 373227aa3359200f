from urllib.parse import parse_qs, urlencode, urlparse

import pytest
from django.urls import reverse
from django.utils import translation

from kb.models import EvalRun, Membership
from kb.quality.runs.admin.report import lost_label
from tests.factories import make_kb, make_member
from tests.kb.quality.debug.admin.debug_page import Page
from tests.kb.quality.runs.eval_runs import answered, draft, make_run, make_set, unanswered
from tests.kb.web.admin.pages import words

pytestmark = pytest.mark.django_db


@pytest.fixture
def eval_set(kb):
    return make_set(kb)


@pytest.fixture
def open_page(client):
    def get(**parameters):
        url = f"{reverse('admin:compare_runs')}?{urlencode(parameters)}"
        return client.get(url, headers={"accept-language": "en"})

    return get


@pytest.fixture
def pair(eval_set):
    """Two runs of 30 queries: the second loses the first query, wins the next five and leaves the others."""
    before = make_run(eval_set, [answered(f"q{n}", 0.5) for n in range(30)])
    figures = [0.0, *[0.9] * 5, *[0.5] * 24]
    after = make_run(
        eval_set,
        [answered(f"q{n}", figure, lost_at="fusion" if not figure else "") for n, figure in enumerate(figures)],
        profile=draft(eval_set.knowledge_base.profile, fusion="weighted"),
        configuration={"fusion": "weighted", "top_k": 20},
    )
    return before, after


def cell(page, stage, metric):
    return words(page.one(f"//tr[@data-stage='{stage}']/td[@data-metric='{metric}']"))


def listed(page):
    return [row.get("data-query") for row in page.tree.xpath("//tr[@data-query]")]


# -- The comparison ----------------------------------------------------------------------------------------------------


def test_each_figure_stands_before_and_after_with_its_difference(open_page, pair):
    page = Page(open_page(a=pair[0].pk, b=pair[1].pk))

    assert cell(page, "reranked", "ndcg@10").startswith("0.500 → 0.550 +0.050 chance may be all, p = 0.")
    assert cell(page, "bm25", "recall@5") == "0.500 → 0.500 unchanged"


def test_a_difference_within_chance_is_called_none(open_page, pair):
    assert "No difference that chance would not explain" in Page(open_page(a=pair[0].pk, b=pair[1].pk)).text("verdicts")


@pytest.mark.parametrize(
    ("figure", "words"), [(0.7, "B is better: NDCG@10 +0.200"), (0.3, "B is worse: NDCG@10 \N{MINUS SIGN}0.200")]
)
def test_a_difference_beyond_chance_is_called_better_or_worse(open_page, eval_set, figure, words):
    names = [f"q{n}" for n in range(20)]
    before = make_run(eval_set, [answered(name, 0.5) for name in names])
    after = make_run(eval_set, [answered(name, figure) for name in names])

    verdicts = Page(open_page(a=before.pk, b=after.pk)).text("verdicts")

    assert words in verdicts
    assert "p < 0.001" in verdicts


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("gate", "gate", "A and B: {gate}"),
        ("gate", "fusion", "A: {gate}; B: {fusion}"),
        ("gate", "", "A: {gate}"),
        ("", "gate", "B: {gate}"),
    ],
)
def test_a_query_names_each_run_that_lost_it(open_page, eval_set, before, after, told):
    with translation.override("en"):
        labels = {stage: lost_label(stage) for stage in ("gate", "fusion")}
    runs = [
        make_run(eval_set, [answered("q0", figure, lost_at=lost)]) for figure, lost in ((0.5, before), (0.4, after))
    ]

    page = Page(open_page(a=runs[0].pk, b=runs[1].pk))

    assert words(page.one("//tr[@data-query='q0']/td[last()]")) == told.format(**labels)


def test_lists_the_lost_queries_first_with_what_lost_them(open_page, pair):
    page = Page(open_page(a=pair[0].pk, b=pair[1].pk))

    assert listed(page) == ["q0"]
    assert "B: The fusion ranked it too low for the reranker" in page.text("queries")


def test_the_won_and_the_unchanged_ones_are_listed_on_demand_by_pages(open_page, pair):
    won = Page(open_page(a=pair[0].pk, b=pair[1].pk, list="won"))
    tied = Page(open_page(a=pair[0].pk, b=pair[1].pk, list="tied", page=2))

    assert listed(won) == ["q1", "q2", "q3", "q4", "q5"]
    assert listed(tied) == ["q26", "q27", "q28", "q29"]
    assert "Page 2 of 2" in tied.text("queries")


def test_a_query_leads_to_both_sides_and_to_search_debug(open_page, pair):
    page = Page(open_page(a=pair[0].pk, b=pair[1].pk))

    both, debug = map(urlparse, page.tree.xpath("//tr[@data-query]//a/@href"))
    given, profile = parse_qs(both.query), pair[1].profile
    assert (both.path, debug.path) == (reverse("admin:compare"), reverse("admin:search_debug"))
    assert given["q"] == ["text of q0"]
    assert given["b_profile"] == [f"{profile.name}@{profile.version}"]
    assert parse_qs(debug.query)["profile"] == [f"{profile.name}@{profile.version}"]


def test_names_the_settings_that_differ(open_page, pair):
    assert "Fusion RRF double_arrow weighted sum" in Page(open_page(a=pair[0].pk, b=pair[1].pk)).text("changes")


def test_warns_where_something_else_than_the_profile_differs(open_page, eval_set):
    before = make_run(eval_set, [answered("a"), answered("b")])
    after = make_run(
        eval_set, [answered("a")], kb_version=2, model_ids={"embedding": "other"}, report={"final_stage": "fused"}
    )

    warnings = [
        words(each) for each in Page(open_page(a=before.pk, b=after.pk)).tree.xpath("//*[@data-testid='warning']")
    ]

    assert [each.split(" ", 3)[:3] for each in warnings] == [
        ["The", "knowledge", "base"],
        ["Other", "models", "answered"],
        ["No", "reranker", "has"],
        ["1", "query", "that"],
    ]


def test_the_gate_and_the_time_stand_beside_with_less_being_better(open_page, eval_set):
    queries = [answered("a"), unanswered("none", 0.7)]
    gates = [{"scale": "overlap", "cut": 0.6, "auroc": 0.9, "false_answer_rate": rate} for rate in (0.5, 0.25)]
    before, after = (make_run(eval_set, queries, gate=gate) for gate in gates)

    page = Page(open_page(a=before.pk, b=after.pk))

    row = page.one("//tr[@data-figure='false_answer_rate']")
    assert words(row) == "False answers 50.0% 25.0% \N{MINUS SIGN}0.250"
    assert row.xpath(".//*[contains(@class,'er-up')]")


def test_a_chart_shows_the_chosen_figure(open_page, pair):
    page = Page(open_page(a=pair[0].pk, b=pair[1].pk, metric="recall@5"))

    assert page.one("//*[@data-testid='chart']//canvas").get("data-type") == "bar"
    assert words(page.one("//*[@aria-label='Figure of the chart']/a[@aria-current]")) == "Recall@5"


def test_runs_of_different_sets_are_refused_with_a_sentence(open_page, kb, pair):
    other = make_run(make_set(kb, "others"), [answered("a")])

    page = Page(response := open_page(a=pair[0].pk, b=other.pk))

    assert response.status_code == 400
    assert "different sets, “questions” and “others”" in page.text("refusal")
    assert page.has("choose")


@pytest.mark.parametrize("status", [EvalRun.Status.FAILED, EvalRun.Status.CANCELLED])
def test_a_run_that_ended_early_is_refused_with_a_sentence(open_page, eval_set, pair, status):
    other = make_run(eval_set, status=status)

    assert f"Run {other.pk} is not done" in Page(open_page(a=pair[0].pk, b=other.pk)).text("refusal")


def test_another_users_run_does_not_exist(open_page, pair):
    foreign = make_run(make_set(make_kb(name="Secret")), [answered("a")])

    assert open_page(a=pair[0].pk, b=foreign.pk).status_code == 404
    assert open_page(a=foreign.pk).status_code == 404


@pytest.mark.parametrize("number", ["0", "abc", "-1", "99999999999999999999", "²"])
def test_a_number_of_no_run_is_not_found(open_page, pair, number):
    assert open_page(a=pair[0].pk, b=number).status_code == 404


def test_a_viewer_may_compare(client, open_page, kb, pair):
    client.force_login(make_member(kb, Membership.Role.VIEWER))

    assert Page(open_page(a=pair[0].pk, b=pair[1].pk)).has("stages")


def test_the_page_takes_few_queries(open_page, pair, django_assert_max_num_queries):
    with django_assert_max_num_queries(9):
        open_page(a=pair[0].pk, b=pair[1].pk)


# -- The choice --------------------------------------------------------------------------------------------------------


def test_without_runs_it_says_how_to_get_some(open_page, kb):
    assert Page(open_page()).has("no-runs")


def test_offers_the_runs_of_every_set(open_page, kb, pair):
    other = make_run(make_set(kb, "others"), [answered("a")])

    values = set(Page(open_page()).tree.xpath("//select[@name='a']//option/@value"))

    assert values == {"", *(str(run.pk) for run in (*pair, other))}


def test_with_one_run_chosen_offers_those_of_its_set(open_page, kb, pair):
    make_run(make_set(kb, "others"), [answered("a")])

    page = Page(open_page(b=pair[1].pk))

    assert set(page.tree.xpath("//select[@name='a']//option/@value")) == {"", *(str(run.pk) for run in pair)}
    assert page.one("//select[@name='b']//option[@selected]").get("value") == str(pair[1].pk)


def test_the_choice_takes_few_queries(open_page, kb, pair, django_assert_max_num_queries):
    make_run(make_set(kb, "others"), [answered("a")])
    with django_assert_max_num_queries(9):
        open_page()


# -- While they run ----------------------------------------------------------------------------------------------------


@pytest.fixture
def unfinished(eval_set):
    running = make_run(eval_set, status=EvalRun.Status.RUNNING, done=5, total=20, finished_at=None)
    return running, make_run(eval_set, status=EvalRun.Status.PENDING, finished_at=None)


def test_while_they_run_the_page_shows_how_far_they_are(open_page, unfinished):
    page = Page(open_page(a=unfinished[0].pk, b=unfinished[1].pk))

    assert "5 of 20 queries" in page.text("live")
    assert page.has("cancel")


def test_the_polled_part_loads_the_page_again_once_both_have_ended(client, pair, unfinished):
    def poll(a, b):
        return client.get(f"{reverse('admin:compare_live')}?a={a.pk}&b={b.pk}")

    assert "HX-Refresh" not in poll(pair[0], unfinished[0]).headers
    assert poll(*pair).headers["HX-Refresh"] == "true"


def test_cancelling_asks_every_unfinished_run_to_stop(client, pair, unfinished):
    response = client.post(reverse("admin:compare_cancel"), {"a": pair[0].pk, "b": unfinished[0].pk})

    assert response.status_code == 302
    unfinished[0].refresh_from_db()
    assert unfinished[0].cancel_requested or unfinished[0].status == EvalRun.Status.CANCELLED
    pair[0].refresh_from_db()
    assert (pair[0].cancel_requested, pair[0].status) == (False, EvalRun.Status.DONE)


def test_a_viewer_cannot_cancel(client, open_page, kb, unfinished):
    client.force_login(make_member(kb, Membership.Role.VIEWER))
    ids = {"a": unfinished[0].pk, "b": unfinished[1].pk}

    assert not Page(open_page(**ids)).has("cancel")
    client.post(reverse("admin:compare_cancel"), ids)

    unfinished[0].refresh_from_db()
    assert not unfinished[0].cancel_requested


def test_cancelling_takes_a_post(client, unfinished):
    url = f"{reverse('admin:compare_cancel')}?a={unfinished[0].pk}&b={unfinished[1].pk}"

    assert client.get(url).status_code == 405
