import json
from urllib.parse import urlencode

import pytest
from django.urls import reverse

from kb.models import Membership, RetrievalProfile
from kb.profiles.services import create_version
from tests.factories import make_kb, make_member, make_user, principal
from tests.kb.quality.debug.admin.debug_page import Page
from tests.kb.quality.runs.eval_runs import answered, make_run, make_set, unanswered
from tests.kb.web.admin.pages import words

pytestmark = pytest.mark.django_db

JUDGED = [
    answered("a", judged=[[0.9, 2], [0.3, 0]]),
    answered("b", judged=[[0.8, 1]]),
    unanswered("none", 0.4),
]
MANY = [answered(f"q{place}", judged=[[0.5 + place / 1000, 1]]) for place in range(40)]


@pytest.fixture
def profile(curator, kb):
    return create_version(principal(curator), "mine", {"overlap_threshold": 0.85}, knowledge_base=kb)


@pytest.fixture
def run(kb, profile):
    return make_run(make_set(kb), JUDGED, profile=profile)


@pytest.fixture
def many(kb, profile):
    return make_run(make_set(kb, "many"), MANY, profile=profile)


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


def test_shows_the_cut_in_force_and_three_others_with_what_they_do(open_page, run):
    page = Page(open_page(run=run.pk))

    assert cut(page, "current") == "In force 0.85 50.0% at least 2.5% 0.0% 100.0% 50.0% 0.667"
    assert cut(page, "keeps").startswith("Keeps 95% of the answerable It takes 19 queries with an answer")
    save = "Save as a draft : No false answer"
    assert cut(page, "refuses") == f"No false answer 0.401 100.0% at least 22.3% 0.0% 100.0% 100.0% 1.000 save {save}"
    save = "Save as a draft : Best F1"
    assert cut(page, "best_f1") == f"Best F1 0.6 100.0% at least 22.3% 0.0% 100.0% 100.0% 1.000 save {save}"


def test_says_in_words_what_is_promised_and_on_how_many_queries_it_rests(open_page, many):
    page = Page(open_page(run=many.pk, keep="90"))

    assert cut(page, "keeps").startswith("Keeps 90% of the answerable 0.503 92.5% at least 81.7% – ")
    assert page.text("promise") == (
        "The threshold 0.503 rests on 40 queries with an answer: the next one like these is kept with a probability of at least "
        "90%, and with 95% confidence at least 81.7% of such queries are kept."
    )
    assert page.one("//input[@id='cp-keep']").get("value") == "90"


def test_only_a_cut_that_there_is_can_be_saved(open_page, many):
    page = Page(open_page(run=many.pk))

    assert page.tree.xpath("//button[@name='cut']/@value") == ["0.501"]
    assert page.tree.xpath("//button[@name='cut']/@form") == [page.one("//form[@data-testid='save']").get("id")]
    assert "no query without an answer" in cut(page, "refuses")
    assert "judge some results irrelevant" in cut(page, "best_f1")


@pytest.mark.parametrize("given", ["0", "100", "x", "nan"])
def test_a_share_that_no_cut_can_keep_stays_in_the_field_with_what_is_wrong(open_page, many, given):
    page = Page(response := open_page(run=many.pk, keep=given))

    assert response.status_code == 400
    assert "from 1 % to 99.9 %" in page.text("share-error")
    assert page.one("//input[@id='cp-keep']").get("value") == given
    assert cut(page, "keeps").startswith("Keeps 95%")


def test_says_how_many_queries_find_nothing_where_that_is_too_many(open_page, kb):
    run = make_run(make_set(kb), [*MANY, *(answered(f"void{place}", scale="") for place in range(9))])

    assert "9 queries with an answer find nothing at all" in cut(Page(open_page(run=run.pk)), "keeps")


def test_says_that_a_query_without_an_answer_scores_as_high_as_can_be(open_page, kb):
    run = make_run(make_set(kb), [*MANY, unanswered("none", 1.0)])

    assert "scores 1" in cut(Page(open_page(run=run.pk)), "refuses")


def test_the_histogram_has_a_series_for_each_kind_and_a_line_for_each_cut(open_page, run):
    series = {each["label"]: each for each in chart(Page(open_page(run=run.pk)), "histogram")}

    assert list(series) == [
        "relevant",
        "irrelevant",
        "best score of a query without an answer",
        "In force: 0.85",
        "No false answer: 0.401",
        "Best F1: 0.6",
    ]
    assert {"x": 0.325, "y": 100.0} in series["irrelevant"]["data"]
    assert [point["x"] for point in series["Best F1: 0.6"]["data"]] == [0.6, 0.6]


def test_the_curve_tells_what_each_cut_would_do(open_page, run):
    series = {each["label"]: each["data"] for each in chart(Page(open_page(run=run.pk)), "curve")}

    assert {"x": 0.85, "y": 0.5} in series["recall"]
    assert {"x": 0.85, "y": 1.0} in series["precision"]


def test_a_run_that_tells_nothing_is_refused_with_a_sentence(open_page, kb):
    run = make_run(make_set(kb), [answered("a", judged=[[0.03, 1]], scale="rrf")])

    page = Page(response := open_page(run=run.pk))

    assert response.status_code == 400
    assert "no threshold applies" in page.text("refusal")


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


def test_a_shared_profile_is_copied_with_one_click(client, open_page, kb):
    run = make_run(make_set(kb), MANY)

    page = Page(open_page(run=run.pk))
    name = page.one("//input[@id='cp-name']").get("value")
    assert (name, page.has("shared")) == (f"{run.profile.name}-legal", False)
    assert f"“{run.profile.name}” is shared" in words(page.one("//*[@data-testid='cuts']"))
    response = client.post(reverse("admin:calibration"), {"run": run.pk, "name": name, "cut": "0.501"})

    saved = RetrievalProfile.objects.get(name=name)
    assert (response.status_code, saved.version, saved.knowledge_base) == (302, 1, kb)
    assert response.url == reverse("admin:kb_retrievalprofile_change", args=[saved.pk])


def test_a_profile_of_its_own_gets_the_next_version(open_page, run):
    page = Page(open_page(run=run.pk))

    assert (page.one("//input[@id='cp-name']").get("value"), page.has("shared")) == ("mine", False)


def test_who_may_change_a_shared_profile_sees_whose_it_is_and_confirms(client, open_page, kb):
    make_kb(name="Sales")
    run = make_run(make_set(kb), MANY)
    client.force_login(make_user(superuser=True))

    shared = Page(open_page(run=run.pk)).text("shared")
    assert f"Change “{run.profile.name}” itself" in shared
    assert "Sales" in shared
    assert "legal" not in shared

    unconfirmed = {"run": run.pk, "name": run.profile.name, "cut": "0.501"}
    refused = client.post(reverse("admin:calibration"), unconfirmed, headers={"accept-language": "en"})
    assert refused.status_code == 400
    assert "Sales" in Page(refused).text("error")
    saved = client.post(reverse("admin:calibration"), {**unconfirmed, "name": "x", "confirm_shared": "on"})
    assert saved.status_code == 302
    assert RetrievalProfile.objects.get(name=run.profile.name, version=2).settings["overlap_threshold"] == 0.501


@pytest.mark.parametrize("fields", [{"cut": "x"}, {"cut": "2"}, {"cut": "nan"}, {"cut": ""}, {"name": "a/b"}])
def test_what_cannot_be_saved_is_refused_with_a_sentence(save, fields):
    page = Page(response := save(**fields))

    assert response.status_code == 400
    assert page.text("error")
    assert page.one("//input[@id='cp-name']").get("value") == fields.get("name", "mine")
    assert RetrievalProfile.objects.filter(name="mine").count() == 1


def test_a_viewer_sees_it_and_cannot_save(client, open_page, save, kb, run):
    client.force_login(make_member(kb, Membership.Role.VIEWER))

    assert not Page(open_page(run=run.pk)).has("save")
    assert save().status_code == 400
    assert not RetrievalProfile.objects.filter(name="mine", version=2).exists()


def test_the_page_takes_few_queries(open_page, run, django_assert_max_num_queries):
    with django_assert_max_num_queries(11):
        open_page(run=run.pk)
