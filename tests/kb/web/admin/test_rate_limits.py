"""The limits of requests are those of API and MCP, for one user together."""

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from kb.ingest.services.batches import batch_create
from kb.models import Document

HTML = {"accept": "text/html"}


@pytest.fixture
def limit(settings):
    def change(**limits):
        settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, **limits}

    return change


def upload(kb, name):
    file = SimpleUploadedFile(name, f"text of {name}".encode())
    return {"knowledge_base": kb.pk, "source_type": "book", "uploads": [file]}


def test_questions_are_limited(client, kb, document, limit):
    limit(ask="2/hour")
    asked = {"query": "违约金", "kb": [kb.pk]}

    codes = [client.post(reverse("admin:ask_answer"), asked).status_code for _ in range(4)]

    assert codes == [200, 200, 429, 429]


def test_a_refused_question_is_a_sentence_for_the_page_s_script(client, kb, document, limit):
    limit(ask="1/hour")
    asked = {"query": "违约金", "kb": [kb.pk]}
    client.post(reverse("admin:ask_answer"), asked)

    answer = client.post(reverse("admin:ask_answer"), asked, headers={"accept-language": "en"})

    assert answer.json()["detail"] == f"Too many requests: try again in {answer['Retry-After']} seconds."


def test_questions_of_the_api_and_of_the_admin_count_together(client, kb, document, limit):
    limit(ask="1/hour")
    body = {"query": "违约金", "knowledge_base_ids": [kb.pk]}
    token = client.get(reverse("admin:ask")).context["csrf_token"]
    headers = {"X-CSRFToken": str(token)}
    assert client.post("/api/v1/ask/", body, content_type="application/json", headers=headers).status_code == 200

    assert client.post(reverse("admin:ask_answer"), {"query": "违约金", "kb": [kb.pk]}).status_code == 429


@pytest.mark.parametrize("page", ["search_debug", "why_not", "compare"])
def test_pages_that_search_are_limited_and_their_forms_are_not(client, kb, document, limit, page):
    limit(general="2/hour")
    url = reverse(f"admin:{page}")

    codes = [client.get(url, {"q": "违约金", "kb": kb.pk}, headers=HTML).status_code for _ in range(3)]

    assert codes == [200, 200, 429]
    assert client.get(url).status_code == 200


def test_uploads_are_limited(client, kb, limit):
    limit(upload="1/hour")
    url = reverse("admin:kb_document_upload")
    client.post(url, upload(kb, "first.txt"))

    answer = client.post(url, upload(kb, "second.txt"), headers=HTML)

    assert answer.status_code == 429
    assert int(answer["Retry-After"]) > 0
    assert [document.source for document in Document.objects.all()] == ["first.txt"]
    assert client.get(url).status_code == 200


def test_files_that_a_browser_sends_one_by_one_are_limited(client, curator, kb, limit):
    limit(upload="1/hour")
    batch = batch_create(knowledge_base=kb, name="laws", user=curator)
    url = reverse("admin:kb_ingestbatch_file", args=[batch.pk])

    codes = [
        client.post(url, {"file": SimpleUploadedFile(f"{number}.txt", f"text {number}".encode())}).status_code
        for number in range(3)
    ]

    assert codes == [201, 429, 429]


@pytest.mark.parametrize("page", ["kb_knowledgebase_import", "kb_evalset_import"])
def test_imports_are_limited(client, kb, limit, page):
    limit(upload="1/hour")

    codes = [client.post(reverse(f"admin:{page}"), {}, headers=HTML).status_code for _ in range(2)]

    assert codes == [200, 429]


def test_without_a_limit_nothing_is_refused(client, kb, document):
    codes = {client.post(reverse("admin:kb_document_upload"), upload(kb, f"{n}.txt")).status_code for n in range(5)}

    assert codes == {302}
