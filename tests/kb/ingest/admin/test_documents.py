import re
from string import Formatter

import pytest
from django.core.files.base import ContentFile
from django.urls import reverse
from django.utils import translation

from kb.ingest.parser.parsed import MESSAGES
from kb.ingest.services.documents import document_add, error_sentence
from kb.ingest.services.indexing import WORKER_LOST
from kb.models import Chunk, Concept, Document
from tests.factories import make_document, make_kb, make_member, make_user

LIST = "admin:kb_document_changelist"


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


@pytest.fixture
def stored(kb, curator):
    return document_add(knowledge_base=kb, file=ContentFile("正文".encode()), name="手册.txt", user=curator)


def change(client, document, **values):
    data = {"title": document.title, "source_type": document.source_type, "tags": "", "metadata": "{}"}
    return client.post(reverse("admin:kb_document_change", args=[document.pk]), data | values)


def flat(response):
    return " ".join(response.content.decode().split())


def set_status(document, status, **fields):
    Document.objects.filter(pk=document.pk).update(status=status, **fields)
    document.refresh_from_db()


def test_a_list_without_work_in_progress_does_not_poll(client, document):
    assert '<div id="documents-poll"> </div>' in flat(client.get(reverse(LIST)))


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_a_full_page_of_documents_is_small(client, kb, language):
    name = "设备维护与检修管理规定（第二版）" * 3
    rows = [
        Document(
            knowledge_base=kb,
            title=f"{name} {number}",
            source=f"{name}.pdf",
            sha256=f"{number:064}",
            status="failed",
            error="The file is damaged: open it with its program, save it again, and upload it.",
        )
        for number in range(60)
    ]
    Document.objects.bulk_create(rows)
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = language

    pages = [client.get(url) for url in (reverse(LIST), reverse("admin:kb_knowledgebase_documents", args=[kb.pk]))]

    assert [page.content.count(b"data-status=") for page in pages] == [30, 30]
    assert max(len(page.content) for page in pages) < 300_000


@pytest.mark.parametrize("status", ["pending", "processing"])
def test_a_list_with_work_in_progress_polls_for_just_that(client, document, stored, status):
    set_status(stored, status)

    page = flat(client.get(reverse(LIST)))

    assert f'hx-get="{reverse("admin:kb_document_progress")}?ids={stored.pk}" hx-trigger="every 2s"' in page


def test_the_fragment_shows_stage_and_per_cent_and_asks_again(client, stored):
    set_status(stored, "processing", stage="embed", progress=62)

    page = client.get(reverse("admin:kb_document_progress"), {"ids": stored.pk}).content.decode()

    assert "embedding 62%" in page
    assert 'aria-valuenow="62"' in page
    assert "every 2s" in page
    assert "<html" not in page


def test_the_fragment_stops_when_all_are_done(client, document):
    page = flat(client.get(reverse("admin:kb_document_progress"), {"ids": document.pk}))

    assert f'id="document-{document.pk}-state" data-status="ready" hx-swap-oob="true"' in page
    assert "every 2s" not in page


def test_the_fragment_knows_nothing_of_a_stranger_s_document(client, foreign):
    page = client.get(reverse("admin:kb_document_progress"), {"ids": f"{foreign.pk},x,"}).content.decode()

    assert f"document-{foreign.pk}" not in page
    assert "stranger" not in page


@pytest.mark.parametrize("code", MESSAGES)
def test_every_parser_error_is_said_in_the_reader_s_language(code):
    params = {name: "7" for _text, name, _format, _conversion in Formatter().parse(MESSAGES[code]) if name}
    document = Document(status="failed", error_code=code, error="stored", error_params=params)

    with translation.override("zh-hans"):
        chinese = error_sentence(document)
    with translation.override("en"):
        english = error_sentence(document)

    assert english == MESSAGES[code].format(**params)
    assert chinese != english
    assert not re.search(r"{\w*}", chinese)


def test_an_error_with_other_parameters_falls_back_to_the_stored_sentence():
    document = Document(error_code="too_large", error="Too large for the old version.", error_params={})

    assert error_sentence(document) == "Too large for the old version."


def test_an_error_of_another_kind_is_shown_as_it_was_stored():
    assert error_sentence(Document(error_code="model_unavailable", error="model X is gone")) == "model X is gone"


def test_a_lost_worker_is_told_in_chinese_too():
    with translation.override("zh-hans"):
        assert error_sentence(Document(error_code="worker_lost", error=WORKER_LOST)).startswith("处理此文档时")


def test_a_document_without_an_error_says_nothing():
    assert error_sentence(Document()) == ""


def test_a_new_title_indexes_the_document_again(client, stored):
    set_status(stored, "ready")

    change(client, stored, title="A better title")

    stored.refresh_from_db()
    assert (stored.title, stored.status) == ("A better title", "pending")


def test_other_changes_leave_the_worker_s_fields_alone(client, stored):
    set_status(stored, "processing", progress=50)

    change(client, stored, tags="law, contracts", metadata='{"year": 2021}', source_type="web")

    stored.refresh_from_db()
    assert (stored.tags, stored.metadata, stored.source_type) == (["law", "contracts"], {"year": 2021}, "web")
    assert (stored.status, stored.progress) == ("processing", 50)


def test_a_new_title_keeps_the_chunks_as_they_were_edited(client, document):
    change(client, document, title="other")

    document.refresh_from_db()
    assert (document.title, document.status, document.keep_chunks) == ("other", "pending", True)


def test_retry_puts_a_failed_document_back_into_the_queue(client, stored):
    set_status(stored, "failed", error_code="empty_file", error="The file holds no text.")

    client.post(reverse("admin:kb_document_retry", args=[stored.pk]))

    stored.refresh_from_db()
    assert (stored.status, stored.error, stored.error_code) == ("pending", "", "")


def test_retry_does_not_take_a_document_from_its_worker(client, stored):
    set_status(stored, "processing", progress=40)

    client.post(reverse("admin:kb_document_retry", args=[stored.pk]))

    stored.refresh_from_db()
    assert (stored.status, stored.progress) == ("processing", 40)


def test_retry_takes_a_post(client, stored):
    assert client.get(reverse("admin:kb_document_retry", args=[stored.pk])).status_code == 405


def test_a_viewer_cannot_retry(client, stored):
    set_status(stored, "failed")
    client.force_login(make_member(stored.knowledge_base))

    assert client.post(reverse("admin:kb_document_retry", args=[stored.pk])).status_code == 403


@pytest.mark.parametrize("page", ["download", "retry"])
def test_the_pages_of_a_stranger_s_document_do_not_exist(client, foreign, page):
    url = reverse(f"admin:kb_document_{page}", args=[foreign.pk])

    assert (client.post(url) if page == "retry" else client.get(url)).status_code == 404


def test_a_download_is_an_attachment_under_its_own_name(client, stored):
    response = client.get(reverse("admin:kb_document_download", args=[stored.pk]))

    assert b"".join(response.streaming_content).decode() == "正文"
    assert response.headers["Content-Disposition"].startswith("attachment; filename*=utf-8''%E6%89%8B")
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Content-Type"] == "application/octet-stream"


def test_a_viewer_may_download(client, stored):
    client.force_login(make_member(stored.knowledge_base))

    response = client.get(reverse("admin:kb_document_download", args=[stored.pk]))

    assert b"".join(response.streaming_content).decode() == "正文"


def test_a_document_without_a_file_has_no_download(client, document):
    assert client.get(reverse("admin:kb_document_download", args=[document.pk])).status_code == 404


def test_failed_documents_are_retried_together(client, kb, stored, document):
    set_status(stored, "failed")
    chosen = {"action": "retry_failed", "_selected_action": [stored.pk, document.pk]}

    page = client.post(reverse(LIST), chosen, follow=True).content.decode()

    stored.refresh_from_db()
    document.refresh_from_db()
    assert (stored.status, document.status) == ("pending", "ready")
    assert "1 document is tried again." in page


def test_deleting_asks_with_the_number_of_chunks(client, document):
    page = client.get(reverse("admin:kb_document_delete", args=[document.pk]))

    assert dict(page.context["model_count"]) == {"chunks": 2}
    assert "违约金" not in page.content.decode()


def test_deleting_removes_chunks_and_file(client, stored, settings, django_capture_on_commit_callbacks):
    path = settings.MEDIA_ROOT / stored.file.name

    with django_capture_on_commit_callbacks(execute=True):
        client.post(reverse("admin:kb_document_delete", args=[stored.pk]), {"post": "yes"})

    assert not Document.objects.exists()
    assert not path.exists()


def test_several_documents_are_deleted_together(client, kb, document):
    other = make_document(kb, "third")
    chosen = {"action": "delete_selected", "_selected_action": [document.pk, other.pk], "post": "yes"}

    client.post(reverse(LIST), chosen)

    assert not Chunk.objects.exists()


def test_the_list_is_searched_by_title_and_filtered_by_status(client, document, stored):
    set_status(stored, "failed")

    by_title = client.get(reverse(LIST), {"q": "Contr"}).context["cl"].result_list
    by_status = client.get(reverse(LIST), {"status__exact": "failed"}).context["cl"].result_list

    assert [each.pk for each in by_title] == [document.pk]
    assert [each.pk for each in by_status] == [stored.pk]


def test_adding_leads_to_the_upload_page(client, kb):
    response = client.get(reverse("admin:kb_document_add"), {"kb": kb.pk})

    assert response.url == f"{reverse('admin:kb_document_upload')}?kb={kb.pk}"


def test_a_superuser_may_change_a_stranger_s_document(client, foreign):
    client.force_login(make_user(superuser=True))

    change(client, foreign, tags="seen")

    foreign.refresh_from_db()
    assert foreign.tags == ["seen"]


@pytest.fixture
def concept(kb):
    return Concept.objects.create(knowledge_base=kb, name="违约责任")


def test_a_document_is_given_concepts_and_loses_them(client, document, concept):
    change(client, document, concepts=[concept.pk])
    assert list(document.concepts.all()) == [concept]

    change(client, document)
    assert not document.concepts.exists()


def test_concepts_do_not_index_a_document_again(client, document, concept):
    change(client, document, concepts=[concept.pk])

    document.refresh_from_db()
    assert document.status == Document.Status.READY


def test_a_document_takes_concepts_of_its_knowledge_base_only(client, curator, document, concept):
    other = Concept.objects.create(knowledge_base=make_kb(curator), name="elsewhere")

    page = client.get(reverse("admin:kb_document_change", args=[document.pk])).content.decode()
    refused = change(client, document, concepts=[other.pk])

    assert f"?knowledge_base={document.knowledge_base_id}" in page
    assert refused.status_code == 200
    assert not document.concepts.exists()


def test_without_concepts_in_the_knowledge_base_none_are_offered(client, document):
    page = client.get(reverse("admin:kb_document_change", args=[document.pk])).content.decode()

    assert 'name="concepts"' not in page
