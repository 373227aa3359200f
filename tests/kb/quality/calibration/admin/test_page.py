import json
from urllib.parse import urlencode

import pytest
from django.urls import reverse

from kb.models import Membership, RetrievalProfile
from kb.profiles.services import create_version
from tests.factories import make_kb, make_member, principal
from tests.kb.quality.debug.admin.debug_page import Page
from tests.kb.quality.runs.eval_runs import answered, make_run, make_set, unanswered
from tests.kb.web.admin.pages import words

pytestmark = pytest.mark.django_db

JUDGED = [
    answered("a", judged=[[0.9, 2], [0.3, 0]]),
    answered("b", judged=[[0.8, 1]]),
    unanswered("none", 0.4),
]


@pytest.fixture
def profile(curator, kb):
    return create_version(principal(curator), "mine", {"overlap_threshold": 0.85}, knowledge_base=kb)


@pytest.fixture
def run(kb, profile):
    return make_run(make_set(kb), JUDGED, profile=profile)


@pytest.fixture
def open_page(client):
    def get(**parameters):
        url = f"{reverse('admin:calibration')}?{urlencode(parameters)}"
        return client.get(url, headers={"accept-language": "en"})

    return get


@pytest.fixture
def save(client, run):
    def post(**fields):
        given = {"run": run.pk, "name": "mine", "cut": "0.6", **fields}
        return client.post(reverse("admin:calibration"), given, headers={"accept-language": "en"})

    return post


def cut(page, kind):
    return words(page.one(f"//tr[@data-cut='{kind}']"))


def chart(page, section):
    return json.loads(page.one(f"//*[@data-testid='{section}']//canvas").get("data-value"))["datasets"]


def test_shows_the_cut_in_force_and_the_suggested_one_with_what_they_do(open_page, run):
    page = Page(open_page(run=run.pk))

    assert cut(page, "current") == "In force 0.85 100.0% 50.0% 0.667"
    assert cut(page, "suggestion") == "Suggested 0.6 100.0% 100.0% 1.000"


def test_the_histogram_has_a_series_for_each_kind_and_a_line_for_each_cut(open_page, run):
    series = {each["label"]: each for each in chart(Page(open_page(run=run.pk)), "histogram")}

    assert list(series) == [
        "relevant",
        "irrelevant",
        "best score of a query without an answer",
        "In force: 0.85",
        "Suggested: 0.6",
    ]
    assert {"x": 0.325, "y": 100.0} in series["irrelevant"]["data"]
    assert [point["x"] for point in series["Suggested: 0.6"]["data"]] == [0.6, 0.6]


def test_the_curve_tells_what_each_cut_would_do(open_page, run):
    series = {each["label"]: each["data"] for each in chart(Page(open_page(run=run.pk)), "curve")}

    assert {"x": 0.85, "y": 0.5} in series["recall"]
    assert {"x": 0.85, "y": 1.0} in series["precision"]


def test_without_anything_to_reject_it_says_what_to_judge(open_page, kb):
    run = make_run(make_set(kb), [answered("a", judged=[[0.9, 1]])])

    page = Page(open_page(run=run.pk))

    assert "judge some results irrelevant" in page.text("no-suggestion")
    assert not page.tree.xpath("//tr[@data-cut='suggestion']")


def test_a_run_that_tells_nothing_is_refused_with_a_sentence(open_page, kb):
    run = make_run(make_set(kb), [answered("a", judged=[[0.03, 1]], scale="rrf")])

    page = Page(response := open_page(run=run.pk))

    assert response.status_code == 400
    assert "no threshold can cut" in page.text("refusal")


def test_without_a_run_it_offers_those_that_are_done(open_page, run):
    page = Page(open_page())

    assert page.tree.xpath("//select[@name='run']/option/@value") == [str(run.pk)]


def test_without_any_run_it_says_how_to_get_one(open_page, kb):
    assert Page(open_page()).has("no-runs")


@pytest.mark.parametrize("number", ["0", "abc", "99999999999999999999"])
def test_a_number_of_no_run_is_not_found(open_page, run, number):
    assert open_page(run=number).status_code == 404


def test_another_users_run_does_not_exist(client, open_page):
    foreign = make_run(make_set(make_kb(name="Secret")), JUDGED)

    assert open_page(run=foreign.pk).status_code == 404
    assert client.post(reverse("admin:calibration"), {"run": foreign.pk}).status_code == 404


def test_saving_makes_a_draft_of_the_profile(save, profile):
    response = save()

    assert response.status_code == 302
    saved = RetrievalProfile.objects.get(name="mine", version=2)
    assert (saved.settings, saved.published) == ({"overlap_threshold": 0.6}, False)


def test_the_form_names_a_profile_that_the_curator_may_change(open_page, kb, run):
    shared = make_run(run.eval_set, JUDGED)

    assert Page(open_page(run=run.pk)).one("//input[@id='cp-name']").get("value") == "mine"
    named = Page(open_page(run=shared.pk)).one("//input[@id='cp-name']").get("value")
    assert named == f"{shared.profile.name}-legal"


@pytest.mark.parametrize(("given", "sentence"), [("x", "not a number"), ("2", "from 0 to 1"), ("nan", "nan")])
def test_a_cut_that_is_none_stays_in_the_field_with_what_is_wrong(save, given, sentence):
    page = Page(response := save(cut=given))

    assert response.status_code == 400
    assert sentence in page.text("error")
    assert page.one("//input[@id='cp-cut']").get("value") == given
    assert not RetrievalProfile.objects.filter(name="mine", version=2).exists()


def test_a_viewer_sees_it_and_cannot_save(client, open_page, save, kb, run):
    client.force_login(make_member(kb, Membership.Role.VIEWER))

    assert not Page(open_page(run=run.pk)).has("save")
    assert save().status_code == 400
    assert not RetrievalProfile.objects.filter(name="mine", version=2).exists()


def test_the_page_takes_few_queries(open_page, run, django_assert_max_num_queries):
    with django_assert_max_num_queries(9):
        open_page(run=run.pk)
