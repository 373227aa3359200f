from urllib.parse import parse_qs, urlencode, urlparse

import pytest
from django.urls import reverse

from kb.models import EvalQuery, EvalRun, Judgment, Membership
from tests.factories import make_document, make_kb, make_member
from tests.kb.quality.debug.admin.debug_page import Page
from tests.kb.quality.runs.eval_runs import draft, make_set

pytestmark = pytest.mark.django_db


@pytest.fixture
def eval_set(kb, document):
    eval_set = make_set(kb, "questions", "违约金", "诉讼时效")
    for query in EvalQuery.objects.filter(eval_set=eval_set):
        Judgment.objects.create(query=query, document=document, source=document.source, grade=2)
    return eval_set


@pytest.fixture
def open_page(client):
    def get(**parameters):
        url = f"{reverse('admin:compare_start')}?{urlencode(parameters)}"
        return client.get(url, headers={"accept-language": "en"})

    return get


@pytest.fixture
def start(client, eval_set):
    def post(**fields):
        return client.post(
            reverse("admin:compare_start"), {"eval_set": eval_set.pk, **fields}, headers={"accept-language": "en"}
        )

    return post


def test_starts_a_run_of_each_side_and_shows_them(start, eval_set):
    version = draft(eval_set.knowledge_base.profile, fusion="weighted")

    response = start(b_profile=f"{version.name}@{version.version}", limit=1)

    assert response.status_code == 302
    url = urlparse(response.url)
    before, after = (EvalRun.objects.get(pk=parse_qs(url.query)[side][0]) for side in "ab")
    assert url.path == reverse("admin:compare_runs")
    assert (before.profile, after.profile) == (eval_set.knowledge_base.profile, version)
    assert {before.query_limit, after.query_limit} == {1}
    assert {before.status, after.status} == {EvalRun.Status.PENDING}


def test_the_knowledge_base_of_the_set_is_searched_whatever_the_form_says(start, eval_set):
    response = start(kb=eval_set.knowledge_base_id + 1, b_fusion="weighted")

    assert response.status_code == 302
    assert {run.eval_set for run in EvalRun.objects.all()} == {eval_set}


def test_unsaved_settings_of_a_side_are_its_runs(start):
    start(b_fusion="weighted", b_vector_share="0.5")

    before, after = EvalRun.objects.order_by("pk")
    assert (before.overrides, after.overrides) == ({}, {"fusion": "weighted", "hybrid_vector_weight": 0.5})


def test_settings_that_every_run_has_alike_are_left_out(start):
    start(b_fusion="weighted", a_top_k="3", b_threshold="0.5")

    assert [run.overrides for run in EvalRun.objects.order_by("pk")] == [{}, {"fusion": "weighted"}]


def test_two_sides_that_are_the_same_are_refused(start):
    page = Page(response := start())

    assert response.status_code == 400
    assert "Both sides are the same" in page.errors()[0]
    assert not EvalRun.objects.exists()


def test_settings_that_cannot_be_start_neither_run(start):
    response = start(b_vector_weight="0", b_keyword_weight="0")

    assert response.status_code == 400
    assert not EvalRun.objects.exists()


def test_a_missing_set_is_asked_for(start):
    page = Page(response := start(eval_set="", b_fusion="weighted"))

    assert response.status_code == 400
    assert page.one("//*[@id='id_eval_set_error']") is not None


def test_another_users_set_cannot_be_run(start):
    foreign = make_set(make_kb(name="Secret"))

    assert start(eval_set=foreign.pk, b_fusion="weighted").status_code == 400
    assert not EvalRun.objects.exists()


def test_a_viewer_has_no_set_to_run(client, open_page, kb, eval_set):
    client.force_login(make_member(kb, Membership.Role.VIEWER))

    assert Page(open_page()).has("no-sets")


def test_the_url_may_fill_the_form_in(open_page, eval_set):
    page = Page(open_page(eval_set=eval_set.pk, a_fusion="weighted"))

    assert page.chosen("eval_set") == str(eval_set.pk)
    assert page.chosen("a_fusion") == "weighted"
    assert not page.tree.xpath("//*[@name='a_top_k']")


def test_the_page_takes_few_queries(open_page, curator, eval_set, django_assert_max_num_queries):
    make_document(make_kb(curator, "more"), "text")
    open_page(eval_set=eval_set.pk)  # the process learns of its installation
    with django_assert_max_num_queries(10):
        open_page(eval_set=eval_set.pk)
