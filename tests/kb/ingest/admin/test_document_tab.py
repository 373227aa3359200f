"""The first tab of a knowledge base: its documents."""

import pytest
from django.core.files.base import ContentFile
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from kb.ingest.services.batches import batch_add, batch_create
from kb.ingest.services.documents import document_add
from kb.models import Document
from tests.factories import make_kb, make_member
from tests.kb.web.admin.pages import Page, words


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


def tab(kb):
    return reverse("admin:kb_knowledgebase_documents", args=[kb.pk])


def make_documents(kb, *statuses, source_type="book"):
    start = Document.objects.count()
    return Document.objects.bulk_create(
        Document(
            knowledge_base=kb,
            title=f"{status} {number}",
            sha256=f"{start + number:064}",
            status=status,
            source_type=source_type,
        )
        for number, status in enumerate(statuses)
    )


def chips(page):
    return [words(each) for each in page.tree.xpath("//nav[@class='kb-filters']//a")]


def titles(client, kb, **query):
    return sorted(each.title for each in client.get(tab(kb), query).context["cl"].result_list)


def test_chips_count_by_status_and_type(client, kb):
    make_documents(kb, "ready", "ready", "failed", "pending", "processing")
    make_documents(kb, "ready", source_type="qa")

    assert chips(Page(client.get(tab(kb)))) == ["All 6", "Ready 3", "Processing 2", "Failed 1", "Files 5", "Q&A 1"]


def test_a_chip_narrows_the_list_and_the_count_of_its_pages(client, kb):
    make_documents(kb, "ready", "failed", "pending", "processing")
    page = Page(client.get(tab(kb)))
    processing, failed = (
        page.tree.xpath(f"//nav[@class='kb-filters']//a[starts-with(normalize-space(), '{label}')]/@href")[0]
        for label in ("Processing", "Failed")
    )

    assert sorted(each.status for each in client.get(tab(kb) + processing).context["cl"].result_list) == [
        "pending",
        "processing",
    ]
    assert client.get(tab(kb) + failed).context["cl"].result_count == 1


def test_the_chosen_chip_is_marked_and_the_other_group_stays(client, kb):
    make_documents(kb, "ready", "failed")
    make_documents(kb, "failed", source_type="qa")

    page = Page(client.get(tab(kb), {"status__exact": "failed", "source_type__exact": "qa"}))

    marked = [words(each) for each in page.tree.xpath("//nav[@class='kb-filters']//a[@aria-current]")]
    assert marked == ["Failed 2", "Q&A 1"]
    assert page.tree.xpath("//nav[@class='kb-filters']//a[starts-with(normalize-space(), 'Ready')]/@href") == [
        "?source_type__exact=qa&status__exact=ready"
    ]


def test_a_search_is_counted_by_itself(client, kb):
    make_documents(kb, "ready", "failed", "failed")

    listed = client.get(tab(kb), {"q": "failed"}).context["cl"]

    assert listed.result_count == 2


def test_the_documents_of_others_are_neither_listed_nor_counted(client, curator, kb):
    make_documents(kb, "ready")
    make_documents(make_kb(curator, "other"), "ready", "failed")

    assert chips(Page(client.get(tab(kb)))) == ["All 1", "Ready 1", "Processing 0", "Failed 0"]
    assert titles(client, kb) == ["ready 0"]


@pytest.mark.parametrize("order", ["0", "1", "3", "-3", "0.-1"])
def test_each_column_that_can_be_sorted_by_lists_all(client, kb, order):
    make_documents(kb, "ready", "failed", "pending")

    assert len(client.get(tab(kb), {"o": order}).context["cl"].result_list) == 3


def test_documents_are_counted_once_however_many_there_are(client, kb):
    make_documents(kb, *["ready"] * 5)
    client.get(tab(kb))

    with CaptureQueriesContext(connection) as queries:
        client.get(tab(kb))

    table = Document._meta.db_table
    counting = [
        each["sql"] for each in queries if f'FROM "{table}"' in each["sql"] and each["sql"].startswith("SELECT COUNT")
    ]
    grouped = [each["sql"] for each in queries if '"source_type", COUNT' in each["sql"]]
    assert (counting, len(grouped)) == ([], 1)


def test_an_empty_tab_is_a_place_to_drop_files(client, kb):
    page = Page(client.get(tab(kb)))

    assert "Drop files here, or click to choose some" in words(page.tree.get_element_by_id("drop-zone"))
    assert ".pdf" in words(page.tree.get_element_by_id("drop-zone"))
    assert not page.tree.xpath("//*[@id='result_list'] | //nav[@class='kb-filters']")


def test_what_the_filters_leave_out_is_not_called_empty(client, kb):
    make_documents(kb, "ready")

    page = client.get(tab(kb), {"status__exact": "failed"}).content.decode()

    assert "No document matches" in page
    assert "Drop files here, or click" not in page


def test_a_viewer_sees_documents_and_cannot_bring_any_or_change_one(client, kb):
    make_documents(kb, "failed")
    client.force_login(make_member(kb))

    page = Page(client.get(tab(kb)))

    assert not page.tree.xpath("//*[@id='upload-form']")
    assert not page.tree.xpath("//span[@class='kb-row-actions']//button")
    assert "No documents yet" not in words(page.tree)


# -- The buttons of a row ------------------------------------------------------------------------------------------------
def test_a_failed_document_is_tried_again_from_its_row_and_the_list_stays(client, kb, curator):
    stored = document_add(knowledge_base=kb, file=ContentFile(b"text"), name="a.txt", user=curator)
    Document.objects.filter(pk=stored.pk).update(status="failed")
    address = f"{tab(kb)}?status__exact=failed"
    page = Page(client.get(address))
    (button,) = page.tree.xpath("//span[@class='kb-row-actions']//button")
    form = page.tree.get_element_by_id(button.get("form"))

    response = client.post(button.get("formaction"), dict(form.fields))

    stored.refresh_from_db()
    assert (stored.status, response.url) == ("pending", address)


def test_what_is_ready_or_under_way_has_nothing_to_retry(client, kb):
    make_documents(kb, "ready", "pending", "processing")

    assert not Page(client.get(tab(kb))).tree.xpath("//span[@class='kb-row-actions']//button")


@pytest.mark.parametrize(
    ("name", "icon"), [("a.pdf", "picture_as_pdf"), ("b.DOCX", "description"), ("c.unheard", "draft"), ("", "draft")]
)
def test_the_icon_is_that_of_the_format(client, kb, name, icon):
    Document.objects.create(knowledge_base=kb, source=name, title="x", sha256="a" * 64)

    assert [words(each) for each in Page(client.get(tab(kb))).tree.xpath("//th//*[contains(@class, 'kb-format')]")] == [
        icon
    ]


# -- The bar of an upload --------------------------------------------------------------------------------------------------
@pytest.fixture
def batch(kb, curator):
    batch = batch_create(knowledge_base=kb, name="three files", user=curator)
    for number in range(3):
        batch_add(batch, SimpleUploadedFile(f"{number}.txt", f"text {number}".encode()), f"{number}.txt", user=curator)
    return batch


def test_an_upload_under_way_is_a_bar_that_asks_again(client, kb, batch):
    Document.objects.filter(batch=batch, source="0.txt").update(status="ready")

    page = Page(client.get(tab(kb)))

    (bar,) = page.tree.xpath("//*[@data-testid='upload-bar']")
    assert bar.get("hx-get") == reverse("admin:kb_ingestbatch_bar", args=[batch.pk])
    assert "1 / 3" in words(bar)


def test_an_upload_that_is_done_is_shown_to_who_comes_from_it_with_what_failed(client, kb, batch):
    Document.objects.filter(batch=batch).update(status="ready")
    failed = {"status": "failed", "error_code": "empty_file", "error": "The file holds no text."}
    Document.objects.filter(batch=batch, source="2.txt").update(**failed)

    assert not Page(client.get(tab(kb))).has("upload-bar")
    page = Page(client.get(tab(kb), {"upload": batch.pk}))

    assert "2 of 3 can be searched now." in page.text("upload-bar")
    assert "2.txt" in page.text("upload-failures")
    assert "0.txt" not in page.text("upload-failures")
    assert not page.tree.xpath("//*[@data-testid='upload-bar']/@hx-get")


@pytest.mark.parametrize("asked", ["x", "", "999999"])
def test_an_upload_that_there_is_not_is_no_error(client, kb, asked):
    assert client.get(tab(kb), {"upload": asked}).status_code == 200


def test_an_upload_of_another_knowledge_base_is_not_shown(client, curator, batch):
    other = make_kb(curator, "other")

    assert not Page(client.get(tab(other), {"upload": batch.pk})).has("upload-bar")


def test_the_bar_brings_the_counts_of_the_chips_along(client, batch):
    Document.objects.filter(batch=batch, source="0.txt").update(status="ready")

    page = client.get(reverse("admin:kb_ingestbatch_bar", args=[batch.pk])).content.decode()

    assert '<span id="count-ready" class="kb-number" hx-swap-oob="true">1</span>' in page
    assert "<html" not in page


def test_the_bar_of_a_stranger_s_upload_does_not_exist(client, foreign):
    batch = batch_create(knowledge_base=foreign.knowledge_base, name="theirs", user=None)

    assert client.get(reverse("admin:kb_ingestbatch_bar", args=[batch.pk])).status_code == 404
