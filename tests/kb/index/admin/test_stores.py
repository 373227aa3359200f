import pytest
from django.urls import reverse

from kb.index.services.stores.migration import STORE_MOVE
from kb.models import KnowledgeBase, StoreChange
from tests.factories import make_document, make_kb, make_member
from tests.kb.index.copies import apply
from tests.kb.web.admin.pages import Page


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def kb(curator):
    kb = make_kb(curator, language="en")
    make_document(kb, "abab", "cdcd")
    return kb


def url(kb, name=""):
    return reverse(f"admin:kb_knowledgebase_stores{name}", args=[kb.pk])


def act(client, kb, **values):
    return client.post(url(kb), values, follow=True)


def read(kb):
    return KnowledgeBase.objects.get(pk=kb.pk)


@pytest.mark.parametrize("name", ["", "_progress"])
def test_a_stranger_s_knowledge_base_does_not_exist(client, foreign, name):
    assert client.get(url(foreign.knowledge_base, name)).status_code == 404


def test_a_viewer_sees_the_store_and_nothing_to_press(client, curator):
    kb = make_kb()
    make_member(kb, user=curator)

    page = Page(client.get(url(kb)))

    assert "PostgreSQL" in page.text("in-use")
    assert not page.has("start")
    assert client.post(url(kb), {"store": "chroma"}).status_code == 403


def test_where_no_other_store_is_set_up_the_page_says_how(client, kb):
    assert "MILVUS_URI" in Page(client.get(url(kb))).text("start")
    assert "MILVUS_URI" in act(client, kb, store="milvus").content.decode()
    assert "There is no store" in act(client, kb, store="oracle").content.decode()
    assert read(kb).target_store == ""


def test_a_base_moves_from_the_page_and_the_page_tells_how_far_it_is(client, kb, chroma):
    page = Page(act(client, kb, store="chroma"))

    assert "ChromaDB" in page.text("target")
    assert "Copied: 0 of 3" in page.text("progress")
    assert "HX-Refresh" not in client.get(url(kb, "_progress")).headers

    assert STORE_MOVE.advance(read(kb))
    page = Page(client.get(url(kb)))

    assert "ChromaDB" in page.text("in-use")
    assert "Up to date" in page.text("copy")
    assert client.get(url(kb, "_progress")).headers["HX-Refresh"] == "true"


def test_what_a_copy_lacks_is_shown_and_filled_again(client, kb, chroma):
    act(client, kb, store="chroma")
    STORE_MOVE.advance(read(kb))
    make_document(kb, "efef")
    assert "still to be taken in" in Page(client.get(url(kb))).text("copy")

    act(client, kb, action="rebuild")
    assert StoreChange.objects.filter(knowledge_base=kb).count() == 4  # the beginning, and a row for each chunk
    apply(read(kb))

    assert "Up to date" in Page(client.get(url(kb))).text("copy")


def test_a_move_is_cancelled(client, kb, chroma):
    act(client, kb, store="chroma")

    page = Page(act(client, kb, action="cancel"))

    assert page.has("start")
    assert read(kb).target_store == ""
