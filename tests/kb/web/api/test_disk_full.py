"""A full disk, of files and of PostgreSQL: what writes says so, and searches and logins that need no room go on."""

import pytest
from django.core.files.base import ContentFile
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from kb.ingest.services.documents import document_add
from kb.models import Document, SearchLog
from tests.disks import database_full, no_room
from tests.factories import make_api_key, make_document, make_kb, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb(make_user("owner", superuser=True))


@pytest.fixture
def browser(client_of, kb):
    browser = client_of(kb.owner)
    browser.raise_request_exception = False
    browser.credentials(HTTP_ACCEPT_LANGUAGE="en")
    return browser


def said(answer):
    return (answer.status_code, answer.json()["code"], "disk is full" in answer.json()["detail"])


def test_an_upload_is_answered_507(browser, kb):
    path = f"/api/v1/knowledge-bases/{kb.pk}/documents/"
    with no_room():
        answer = browser.post(path, {"file": ContentFile(b"text", name="a.txt")}, format="multipart")
    assert said(answer) == (507, "disk_full", True)
    assert "make room" in answer.json()["remedy"]
    assert not Document.objects.exists()
    assert browser.post(path, {"file": ContentFile(b"text", name="a.txt")}, format="multipart").status_code == 201


def test_it_is_said_in_chinese_too(browser, kb):
    browser.credentials(HTTP_ACCEPT_LANGUAGE="zh-hans")
    with no_room():
        answer = browser.post(f"/api/v1/knowledge-bases/{kb.pk}/documents/", {"text": "text"}, format="json")
    assert answer.status_code == 507
    assert "磁盘已满" in answer.json()["detail"]
    assert "腾出空间" in answer.json()["remedy"]


def test_a_page_that_takes_files_says_so(browser, kb):
    document = document_add(knowledge_base=kb, file=ContentFile(b"former"), name="a.txt", user=kb.owner)
    with no_room():
        file = SimpleUploadedFile("b.txt", b"text")
        page = browser.post(reverse("admin:kb_document_replace", args=[document.pk]), {"file": file})
    assert page.status_code == 507
    assert "disk is full" in page.content.decode()
    assert "manage.py doctor" in page.content.decode()


def test_a_write_that_postgresql_has_no_room_for_is_answered_507(browser):
    with database_full():
        answer = browser.post("/api/v1/knowledge-bases/", {"name": "another"}, format="json")
    assert said(answer) == (507, "disk_full", True)


def test_a_login_that_postgresql_has_no_room_for_says_so(browser, kb):
    kb.owner.set_password("of-the-owner")
    kb.owner.save()
    browser.logout()
    with database_full("django_session"):
        page = browser.post(reverse("admin:login"), {"username": "owner", "password": "of-the-owner"})
    assert page.status_code == 507
    assert "disk is full" in page.content.decode()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("explain", [False, True])
def test_a_search_answers_and_its_key_opens_as_before(client_with, kb, explain):
    make_document(kb, "The warranty lasts for two years.")
    program = client_with(make_api_key(kb.owner)[1])
    with database_full():
        body = {"query": "warranty", "knowledge_base_ids": [kb.pk], "explain": explain}
        answer = program.post("/api/v1/search/", body, format="json")
    assert answer.status_code == 200
    assert len(answer.json()["results"]) == 1
    assert not SearchLog.objects.exists()
