import pytest
from django.core.files.base import ContentFile
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from kb.ingest.services.batches import batch_add, batch_create
from kb.models import Document, IngestBatch
from tests.factories import make_kb, make_member


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def batch(kb, curator):
    return batch_create(knowledge_base=kb, name="laws", user=curator)


def begin(client, kb, **values):
    return client.post(reverse("admin:kb_ingestbatch_begin"), {"knowledge_base": kb.pk, "name": "3 files", **values})


def send(client, batch, content=b"text", name="a.txt", **values):
    file = SimpleUploadedFile(name, content)
    return client.post(reverse("admin:kb_ingestbatch_file", args=[batch.pk]), {"file": file, **values})


def page(client, batch):
    return client.get(reverse("admin:kb_ingestbatch_change", args=[batch.pk])).content.decode()


def steer(client, batch, what):
    return client.post(reverse("admin:kb_ingestbatch_steer", args=[batch.pk]), {"do": what})


def test_an_upload_is_begun_and_filled_one_request_a_file(client, kb, curator):
    urls = begin(client, kb).json()
    batch = IngestBatch.objects.get()
    assert urls["page"] == reverse("admin:kb_ingestbatch_change", args=[batch.pk])

    answer = send(client, batch, path="laws/a.txt", source_type="web")

    assert answer.status_code == 201
    document = Document.objects.get()
    assert (document.batch, document.source, document.source_type) == (batch, "a.txt", "web")
    assert (document.metadata, document.created_by) == ({"path": "laws/a.txt"}, curator)


def test_a_file_that_is_sent_twice_is_no_trouble(client, batch):
    first = send(client, batch).json()
    again = send(client, batch)
    assert (again.status_code, again.json()) == (200, first)


def test_a_file_that_is_here_from_before_is_named(client, kb, batch):
    send(client, batch)
    other = batch_create(knowledge_base=kb, name="other", user=None)
    answer = send(client, other, name="copy.txt")
    assert answer.status_code == 409
    assert answer.json()["url"] == reverse("admin:kb_document_change", args=[Document.objects.get().pk])


def test_a_file_of_a_type_that_cannot_be_read_is_refused_by_its_bytes(client, batch):
    answer = send(client, batch, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "notes.txt")
    assert answer.status_code == 422
    assert "cannot be read" in answer.json()["message"]


def test_a_table_that_cannot_be_read_begins_no_upload(client, kb):
    answer = begin(client, kb, table=SimpleUploadedFile("t.csv", b"title\nx\n"))
    assert answer.status_code == 422
    assert not IngestBatch.objects.exists()


def test_a_table_that_comes_later_describes_the_files_that_are_here(client, batch):
    send(client, batch)
    table = SimpleUploadedFile("t.csv", b"filename,title\na.txt,Civil code\n")

    answer = client.post(reverse("admin:kb_ingestbatch_table", args=[batch.pk]), {"table": table})

    assert answer.url == reverse("admin:kb_ingestbatch_change", args=[batch.pk])
    assert Document.objects.get().title == "Civil code"
    assert "The table has described 1 document." in page(client, batch)


def test_a_viewer_sees_an_upload_and_cannot_fill_or_steer_it(client, curator):
    kb = make_kb(name="someone-else-s")
    make_member(kb, user=curator)
    batch = batch_create(knowledge_base=kb, name="laws", user=None)

    assert begin(client, kb).status_code == 404
    assert send(client, batch).status_code == 403
    assert steer(client, batch, "pause").status_code == 403
    assert 'value="pause"' not in page(client, batch)


def test_an_upload_of_a_knowledge_base_that_one_may_not_see_does_not_exist(client):
    batch = batch_create(knowledge_base=make_kb(), name="laws", user=None)
    assert send(client, batch).status_code == 404
    assert client.get(reverse("admin:kb_ingestbatch_progress", args=[batch.pk])).status_code == 404


def test_the_page_tells_how_far_it_is_and_asks_again_while_it_moves(client, batch):
    send(client, batch)
    told = page(client, batch)
    assert "waiting: 1" in told
    assert reverse("admin:kb_ingestbatch_progress", args=[batch.pk]) in told
    Document.objects.update(status="ready")
    assert (
        'hx-trigger="every 2s"'
        not in client.get(reverse("admin:kb_ingestbatch_progress", args=[batch.pk])).content.decode()
    )


def test_the_buttons_pause_resume_cancel_and_retry(client, batch):
    send(client, batch)
    steer(client, batch, "pause")
    assert IngestBatch.objects.get().paused
    assert "Paused:" in page(client, batch)
    steer(client, batch, "resume")
    assert not IngestBatch.objects.get().paused
    steer(client, batch, "cancel")
    assert Document.objects.get().status == "cancelled"
    steer(client, batch, "retry_cancelled")
    assert Document.objects.get().status == "pending"
    Document.objects.update(status="failed")
    steer(client, batch, "retry_failed")
    assert Document.objects.get().status == "pending"


def test_files_that_became_no_document_are_listed_with_the_reason(client, batch):
    batch.notes = [{"name": "x.rar", "code": "nested_archive", "params": {"name": "x.rar"}}]
    batch.note_count = 1
    batch.save()
    assert "“x.rar” is an archive inside the archive" in page(client, batch)


def test_the_list_shows_progress_in_few_statements(client, kb, batch, django_assert_max_num_queries):
    for number in range(3):
        other = batch_create(knowledge_base=kb, name=f"u{number}", user=None)
        batch_add(other, ContentFile(str(number).encode()), "a.txt", user=None)
    with django_assert_max_num_queries(9):
        listed = client.get(reverse("admin:kb_ingestbatch_changelist")).content.decode()
    assert listed.count("0 / 1") == 3


def test_deleting_an_upload_keeps_its_documents(client, batch):
    send(client, batch)
    client.post(reverse("admin:kb_ingestbatch_delete", args=[batch.pk]), {"post": "yes"})
    assert not IngestBatch.objects.exists()
    assert Document.objects.get().batch is None


def test_what_a_reader_left_out_is_said_on_the_documents_page(client, batch):
    send(client, batch)
    Document.objects.update(remarks=[{"code": "pages_without_text", "params": {"pages": "2, 3"}}])
    document = Document.objects.get()
    assert "2, 3" in client.get(reverse("admin:kb_document_change", args=[document.pk])).content.decode()
