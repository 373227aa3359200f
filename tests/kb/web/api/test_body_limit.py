"""How long a body may be is said before anything parses it, for the admin's forms as for the API."""

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpRequest
from django.test import Client
from django.urls import reverse

from kb.ingest.services.batches import batch_create
from tests import factories

pytestmark = pytest.mark.django_db
KIB, MIB = 1024, 1024**2
BOUNDED = [
    "/admin/login/",
    "/i18n/setlang/",
    "/admin/ask/answer/",
    "/admin/kb/document/upload/",
    "/api/v1/search/",
    "/api/dify/retrieval",
]


@pytest.fixture
def parsed(monkeypatch):
    """The paths of requests whose forms were parsed."""
    paths, parse = [], HttpRequest.parse_file_upload

    def watched(request, *args):
        paths.append(request.path)
        return parse(request, *args)

    monkeypatch.setattr(HttpRequest, "parse_file_upload", watched)
    return paths


def upload(size, name="a.txt"):
    return {"file": SimpleUploadedFile(name, b"x" * size)}


@pytest.mark.parametrize("path", BOUNDED)
@pytest.mark.parametrize("cookies", [{}, {"sessionid": "a" * 32, "csrftoken": "a" * 32}], ids=["none", "invented"])
def test_a_stranger_s_body_is_small(parsed, path, cookies):
    client = Client(enforce_csrf_checks=True)
    client.cookies.load(cookies)

    answer = client.post(path, upload(70 * KIB))

    assert answer.status_code == 413
    assert parsed == []


def test_a_stranger_s_refusal_asks_no_database(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert Client().post("/admin/login/", upload(70 * KIB)).status_code == 413


def test_a_small_form_of_a_stranger_is_read():
    assert Client().post("/admin/login/", {"username": "x", "password": "x" * 30_000}).status_code == 200


@pytest.mark.parametrize("path", BOUNDED)
def test_a_body_in_chunks_is_refused(path):
    answer = Client().post(path, HTTP_TRANSFER_ENCODING="chunked", CONTENT_LENGTH="")

    assert answer.status_code == 411


def test_the_error_is_json_under_the_api_and_plain_elsewhere(anonymous):
    of_api, of_admin = anonymous.post("/api/v1/search/", upload(70 * KIB)), Client().post("/admin/", upload(70 * KIB))

    assert of_api.json()["code"] == "too_large"
    assert of_admin["Content-Type"] == "text/plain; charset=utf-8"


def test_a_session_that_has_ended_is_none(parsed):
    client, user = Client(), factories.make_user("li")
    client.force_login(user)
    user.is_active = False
    user.save()

    assert client.post("/admin/login/", upload(70 * KIB)).status_code == 413


def test_a_wrong_key_is_401_and_counts_as_a_failure(client_with, settings):
    settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, "failures": "1/hour"}
    bad = client_with("abcdefgh." + "x" * 40)

    answers = [bad.post("/api/v1/search/", upload(70 * KIB)) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [401, 429]
    assert answers[0]["WWW-Authenticate"] == "Bearer"


def test_a_key_opens_larger_bodies_of_the_api_only(client_with, owner, kb):
    _key, secret = factories.make_api_key(owner, scope="write")
    client = client_with(secret)

    assert client.post(f"/api/v1/knowledge-bases/{kb.pk}/documents/", upload(70 * KIB)).status_code == 201
    assert client.post("/admin/login/", upload(70 * KIB)).status_code == 413


def test_a_signed_in_form_is_as_long_as_its_page_takes(client_of, owner, kb, settings, parsed):
    settings.MAX_UPLOAD_BYTES, settings.MAX_ZIP_BYTES = MIB, 3 * MIB
    client = client_of(owner)
    pages = ["kb_document_upload", "kb_knowledgebase_import", "ask_answer"]

    codes = [client.post(reverse(f"admin:{page}"), upload(3 * MIB)).status_code for page in pages]

    assert codes == [200, 413, 413]
    assert parsed == [reverse("admin:kb_document_upload")]


def test_a_file_of_an_upload_may_be_an_archive(client_of, owner, kb, settings):
    settings.MAX_UPLOAD_BYTES, settings.MAX_ZIP_BYTES = MIB, 3 * MIB
    url = reverse("admin:kb_ingestbatch_file", args=[batch_create(knowledge_base=kb, name="", user=owner).pk])

    assert client_of(owner).post(url, upload(3 * MIB, "a.zip")).status_code != 413


def test_a_signed_in_body_that_is_no_form_is_as_long_as_memory_takes(client_of, owner, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100 * KIB
    body = b"x" * (101 * KIB)

    assert client_of(owner).generic("POST", "/admin/ask/answer/", body).status_code == 413


def test_an_upload_has_no_name_on_the_disk(client_of, owner, kb, settings, tmp_path, monkeypatch):
    """So nothing is left of it where the process is killed."""
    from kb.ingest.admin import uploads

    settings.FILE_UPLOAD_TEMP_DIR = tmp_path
    seen, add = [], uploads.document_add

    def watched(*, file, **fields):
        seen.extend((file.size, list(tmp_path.iterdir())))
        return add(file=file, **fields)

    monkeypatch.setattr(uploads, "document_add", watched)
    size = 3 * MIB  # more than goes to memory
    form = {"knowledge_base": kb.pk, "source_type": "book", "uploads": [SimpleUploadedFile("a.txt", b"x" * size)]}

    answer = client_of(owner).post(reverse("admin:kb_document_upload"), form)

    assert answer.status_code == 302
    assert seen == [size, []]
