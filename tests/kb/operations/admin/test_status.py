import lxml.html
import pytest
from celery import current_app
from django.urls import reverse
from django.utils.translation import override

from kb.models import Document, KnowledgeBase
from kb.search.admin.chips import baseline_chips
from tests.factories import make_document, make_kb, make_member, make_user
from tests.kb.web.admin.pages import words

pytestmark = pytest.mark.django_db


@pytest.fixture
def root(client):
    user = make_user("root", superuser=True)
    client.force_login(user)
    return user


@pytest.fixture(autouse=True)
def _quiet_broker(monkeypatch):
    """A database of the tests' Redis that no worker listens to."""
    monkeypatch.setitem(current_app.conf, "broker_url", current_app.conf.broker_url.rsplit("/", 1)[0] + "/7")


def page_of(client, name, language="en"):
    response = client.get(reverse(f"admin:{name}"), headers={"accept-language": language})
    assert response.status_code == 200
    return lxml.html.fromstring(response.content.decode())


def codes(page, place):
    return page.xpath(f"//*[@data-testid='{place}']//li/@data-code")


def test_what_searches_do_without_stands_there_with_what_ends_it(client, root, settings):
    kb = make_kb(root, "manuals")

    page = page_of(client, "system_status")

    assert codes(page, "baseline") == ["hashing_embedder", "reranker_unavailable", "llm_not_configured"]
    assert page.xpath("//a[@href=$url]", url=reverse("admin:kb_knowledgebase_reembedding", args=[kb.pk]))
    settings.LLM_API_KEY = "k"
    settings.RERANK_BASE_URL = "http://127.0.0.1:9"
    KnowledgeBase.objects.update(embedding_model="openai/m")
    assert codes(page_of(client, "system_status"), "baseline") == []


def test_a_fault_stands_before_what_is_in_order_and_names_its_place(client, root):
    document = make_document(make_kb(root), "text")
    Document.objects.filter(pk=document.pk).update(status=Document.Status.FAILED)

    page = page_of(client, "system_status_checks")

    assert "documents" in codes(page, "wrong")
    assert "migrations" in codes(page, "fine")
    (link,) = page.xpath("//li[@data-code='documents']//a/@href")
    assert Document.Status.FAILED in link


def test_the_baseline_is_no_fault(client, root, settings):
    settings.RERANKER_MODEL = "BAAI/bge-reranker-base"
    make_kb(root)

    wrong = codes(page_of(client, "system_status_checks"), "wrong")

    assert {"chat model", "models in use", "RERANKER_MODEL"}.isdisjoint(wrong)


def test_a_dead_broker_is_said_in_the_reader_s_language(client, root, monkeypatch):
    monkeypatch.setitem(current_app.conf, "broker_url", "redis://127.0.0.1:1/0")

    page = page_of(client, "system_status_checks")

    assert codes(page, "wrong")[0] == "Redis (broker)"
    assert "REDIS_URL" in words(page.xpath("//li[@data-code='Redis (broker)']")[0])


def test_it_is_for_superusers(client):
    client.force_login(make_user("reader"))
    for name in ("system_status", "system_status_checks"):
        assert client.get(reverse(f"admin:{name}")).status_code == 403


def test_a_viewer_is_not_warned_of_what_only_others_can_end(client):
    kb = make_kb()
    make_document(kb, "text")
    Document.objects.update(status=Document.Status.FAILED)
    shown = {}
    for role in ("viewer", "editor"):
        client.force_login(make_member(kb, role))
        url = reverse("admin:kb_knowledgebase_documents", args=[kb.pk])
        page = client.get(url, headers={"accept-language": "en"}).content.decode()
        shown[role] = ["Searched by words" in page, 'class="kb-chip bad"' in page]

    assert shown == {"viewer": [False, False], "editor": [True, True]}


@override("en")
def test_the_head_of_a_knowledge_base_says_it_once(rf, settings):
    kb = make_kb()
    request = rf.get("/")
    request.user = kb.owner
    assert [(each.text, each.tone) for each in baseline_chips(request, kb)] == [("Searched by words", "warning")]
    request.user = make_user("root", superuser=True)
    assert [each.text for each in baseline_chips(request, kb)] == ["Searched by words", "No reranker", "No chat model"]
    settings.LLM_API_KEY = "k"
    settings.RERANK_BASE_URL = "http://127.0.0.1:9"
    kb.embedding_model = "openai/m"
    assert list(baseline_chips(request, kb)) == []
