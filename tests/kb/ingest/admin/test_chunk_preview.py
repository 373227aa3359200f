import pytest
from django.core.files.base import ContentFile
from django.urls import reverse

from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, Document, KnowledgeBase
from tests.factories import make_document, make_kb, make_member
from tests.kb.web.admin.pages import Page, words

TEXT = "第一段说的是一件事情。\n\n第二段说的是别的事情。"


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def kb(curator):
    return make_kb(curator)


@pytest.fixture
def document(kb):
    added = document_add(knowledge_base=kb, file=ContentFile(TEXT.encode()), name="a.txt", user=kb.owner)
    index_document(added.pk)
    return added


def url(kb, page="chunk_preview"):
    return reverse(f"admin:kb_knowledgebase_{page}", args=[kb.pk])


def post(client, kb, action="preview", **values):
    form = {
        "chunk_strategy": "recursive",
        "chunk_size": 20,
        "chunk_overlap": 0,
        "chunk_unit": "characters",
        "parent_size": 200,
        "document": "",
        "text": "",
        "action": action,
        **values,
    }
    return client.post(url(kb), form)


def shown(page):
    return [words(each) for each in page.tree.xpath("//*[@data-testid='chunk']/p[@class='kb-preview-text']")]


@pytest.mark.parametrize("page", ["chunk_preview", "recut"])
def test_a_stranger_s_knowledge_base_does_not_exist(client, foreign, page):
    assert client.get(url(foreign.knowledge_base, page)).status_code == 404
    assert client.post(url(foreign.knowledge_base, page)).status_code == 404


def test_the_page_begins_with_the_settings_in_use(client, kb, document):
    page = Page(client.get(url(kb)))
    assert page.tree.xpath("//input[@name='chunk_size']/@value") == ["500"]
    assert [words(each) for each in page.tree.xpath("//select[@name='document']/option")] == ["a"]
    assert not page.has("preview")


def test_a_document_is_cut_by_the_settings_in_the_form_and_nothing_is_saved(client, kb, document):
    page = Page(post(client, kb, document=document.pk))
    assert shown(page) == TEXT.split("\n\n")
    assert (page.text("total"), page.text("kept")) == ("2", "0")
    assert KnowledgeBase.objects.get(pk=kb.pk).chunk_size == 500
    assert Chunk.objects.filter(document=document).count() == 1


def test_a_text_is_tried_before_the_document(client, kb, document):
    assert shown(Page(post(client, kb, document=document.pk, text="只有这一句。"))) == ["只有这一句。"]


def test_what_a_chunk_repeats_is_marked(client, kb):
    page = Page(post(client, kb, text="甲甲甲甲甲甲甲甲。乙乙乙乙乙乙乙乙。丙丙丙丙丙丙丙丙。", chunk_overlap=10))
    assert [words(each) for each in page.tree.xpath("//mark")] == ["乙乙乙乙乙乙乙乙。"]


def test_markup_in_a_text_is_shown_as_it_is(client, kb):
    response = post(client, kb, text="<script>alert(1)</script> 说明")
    assert "<script>alert(1)" not in response.content.decode()


def test_settings_that_do_not_go_together_are_told_beside_the_field(client, kb):
    response = post(client, kb, text="x", chunk_strategy="parent_child", chunk_size=300, parent_size=200)
    assert "larger" in response.context["form"].errors["parent_size"][0]


def test_nothing_to_try_is_told_with_the_remedy(client, kb):
    assert "paste" in Page(post(client, kb)).text("refused")


def test_a_document_of_another_knowledge_base_is_not_offered(client, kb):
    other = make_document(make_kb(), "别处的秘密")
    assert "别处的秘密" not in post(client, kb, document=other.pk).content.decode()


def test_saving_keeps_the_settings_and_the_chunks(client, kb, document):
    response = post(client, kb, action="save", chunk_strategy="headings")
    assert response.url == url(kb)
    saved = KnowledgeBase.objects.get(pk=kb.pk)
    assert (saved.chunk_strategy, saved.chunk_size) == ("headings", 20)
    assert "1 document was chunked under other settings" in Page(client.get(url(kb))).text("outdated")


def test_a_viewer_may_try_and_not_save(client, curator):
    shared = make_kb()
    make_member(shared, user=curator)
    assert shown(Page(post(client, shared, text="只有这一句。"))) == ["只有这一句。"]
    assert post(client, shared, action="save").status_code == 403
    assert client.post(url(shared, "recut"), {"which": "all"}).status_code in {403, 404}
    assert KnowledgeBase.objects.get(pk=shared.pk).chunk_size == 500


def test_the_page_tells_of_documents_that_were_cut_otherwise(client, kb, document):
    assert not Page(client.get(url(kb))).has("outdated")
    KnowledgeBase.objects.filter(pk=kb.pk).update(chunk_size=100)
    assert Page(client.get(url(kb))).has("outdated")


def test_an_overlap_that_is_too_large_is_refused_and_told_once(client, kb, document):
    page = post(client, kb, chunk_size=20, chunk_overlap=50)

    assert len(page.context["form"].errors["chunk_overlap"]) == 1
    assert "The overlap must be smaller" in page.content.decode()


def test_cutting_again_asks_first(client, kb, document):
    assert "1 document has its file" in Page(client.get(url(kb, "recut"))).text("counts")
    assert Document.objects.get(pk=document.pk).status == "ready"


@pytest.mark.parametrize(("which", "statuses"), [("all", ["pending", "pending"]), ("outdated", ["pending", "ready"])])
def test_all_documents_are_cut_again_or_only_those_cut_otherwise(client, kb, document, which, statuses):
    KnowledgeBase.objects.filter(pk=kb.pk).update(chunk_size=100)
    later = document_add(knowledge_base=kb, file=ContentFile("后来的。".encode()), name="b.txt", user=kb.owner)
    index_document(later.pk)
    client.post(url(kb, "recut"), {"which": which})
    assert list(Document.objects.order_by("pk").values_list("status", flat=True)) == statuses


def test_a_knowledge_base_without_files_says_so(client, kb):
    make_document(kb, "没有文件")
    assert "upload one first" in client.get(url(kb, "recut")).content.decode()


def test_documents_of_a_selection_are_cut_again(client, kb, document):
    imported = make_document(kb, "没有文件")
    chosen = {"action": "rechunk", "_selected_action": [document.pk, imported.pk]}
    response = client.post(reverse("admin:kb_document_changelist"), chosen, follow=True)
    assert "1 document is re-chunked." in response.content.decode()
    assert dict(Document.objects.values_list("pk", "status")) == {document.pk: "pending", imported.pk: "ready"}


def test_the_page_costs_few_queries(client, kb, document, django_assert_max_num_queries):
    client.get(url(kb))
    with django_assert_max_num_queries(11):
        post(client, kb, document=document.pk)
