"""The button of a set that fits settings, and what a run has fitted on its page."""

import pytest
from django.urls import reverse

from kb.models import EvalRun, RetrievalProfile
from kb.quality.fitting.services import draft_of, fit_of, measurement
from kb.quality.runs.services.runs import execute_run
from tests.factories import make_kb, make_member
from tests.kb.quality.fitting.fitted_sets import NAMES, make_judged_set, mislead
from tests.kb.web.admin.pages import Page

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


def judged(kb, **options):
    """A set whose vectors harm, under a profile by which they lead."""
    eval_set = make_judged_set(kb, **options)
    mislead(kb)
    settings = {"vector_weight": 0.9, "keyword_weight": 0.1, "rerankers": []}
    kb.profile = RetrievalProfile.objects.create(name="misled", settings=settings, published=True)
    kb.save()
    return eval_set


def set_page(client, eval_set):
    return Page(client.get(reverse("admin:kb_evalset_change", args=[eval_set.pk])))


def fit_url(eval_set):
    return reverse("admin:kb_evalset_fit", args=[eval_set.pk])


def started(client, eval_set):
    """The run that the button starts, carried out."""
    assert set_page(client, eval_set).tree.xpath(f"//form[@action='{fit_url(eval_set)}']//button")
    response = client.post(fit_url(eval_set))
    run = EvalRun.objects.get()
    assert (response.status_code, response.url) == (302, reverse("admin:kb_evalrun_change", args=[run.pk]))
    assert Page(client.get(response.url)).has("live")
    execute_run(run.pk, measurement)
    run.refresh_from_db()
    return run, Page(client.get(response.url))


def test_the_button_of_a_set_fits_and_the_page_of_the_run_says_what_it_gains(client, kb):
    run, page = started(client, judged(kb, unanswerable=2))

    fit, draft = fit_of(run), draft_of(run)
    assert page.text("fit-outcome") == fit.text
    link = reverse("admin:kb_retrievalprofile_change", args=[draft.pk])
    assert page.tree.xpath(f"//*[@data-testid='fit']//a[@href='{link}']")
    assert f"{len(NAMES)} queries in 5 folds" in page.text("fit")
    gain = fit.metrics["ndcg@10"]
    row = " ".join(page.tree.xpath("//*[@data-testid='fit']//tr[@data-metric='ndcg@10']")[0].itertext())
    assert f"{gain.before:.3f}" in row
    assert f"{gain.after:.3f}" in row
    assert len(page.tree.xpath("//*[@data-testid='fit-settings']/li")) == len(fit.settings)
    queries = reverse("admin:kb_evalrun_queries", args=[run.pk])
    won = page.tree.xpath("//*[@data-testid='fit-won']//tr/th/a/@href")
    assert won == [f"{queries}?q={each.external_id}" for each in fit.won]
    assert not page.has("fit-lost")
    assert page.has("stages")  # of the present profile, as for any run


def test_without_a_draft_the_page_says_why(client, kb):
    _run, page = started(client, judged(kb, names=NAMES[:3]))

    assert page.text("fit-outcome").startswith("3 queries of “set” have a relevant passage, and fitting takes 20")
    assert not page.has("fit-settings")


def test_a_draft_that_is_gone_is_said_to_be_so(client, kb):
    run, page = started(client, judged(kb))
    assert not page.has("fit-deleted")
    draft_of(run).delete()

    assert Page(client.get(reverse("admin:kb_evalrun_change", args=[run.pk]))).has("fit-deleted")


def test_what_cannot_be_started_is_said_on_the_page_of_the_set(client, kb):
    eval_set = make_judged_set(kb, names=[])

    response = client.post(fit_url(eval_set), follow=True)

    assert "Nothing of the evaluation set “set” is judged yet" in response.content.decode()
    assert not set_page(client, eval_set).tree.xpath(f"//form[@action='{fit_url(eval_set)}']")


def test_a_viewer_has_no_button_and_starts_none(client, curator):
    kb = make_kb()
    make_member(kb, user=curator)
    eval_set = make_judged_set(kb, names=NAMES[:2])

    assert not set_page(client, eval_set).tree.xpath(f"//form[@action='{fit_url(eval_set)}']")
    assert client.post(fit_url(eval_set)).status_code == 403
    assert not EvalRun.objects.exists()


def test_a_set_of_a_stranger_does_not_exist(client, foreign):
    eval_set = make_judged_set(foreign.knowledge_base, names=NAMES[:1])

    assert client.post(fit_url(eval_set)).status_code == 404
    assert client.get(fit_url(eval_set)).status_code == 405
