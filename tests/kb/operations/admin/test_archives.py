"""The pages that export and import whole knowledge bases."""

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from kb.models import KnowledgeBase
from tests.factories import make_member

pytestmark = pytest.mark.django_db

IMPORT = "/admin/kb/knowledgebase/import/"


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


def export_url(kb):
    return f"/admin/kb/knowledgebase/{kb.pk}/export/"


def downloaded(client, kb):
    response = client.get(f"{export_url(kb)}file/", {"vectors": "on"})
    assert "attachment" in response["Content-Disposition"]
    assert response["X-Content-Type-Options"] == "nosniff"
    return b"".join(response.streaming_content)


def test_the_export_page_leads_to_the_file_which_becomes_a_knowledge_base(client, kb, document, curator):
    assert "Export “legal”" in client.get(export_url(kb)).content.decode()
    file = SimpleUploadedFile("kb.zip", downloaded(client, kb), "application/zip")
    response = client.post(IMPORT, {"file": file, "name": "copy"}, follow=True)
    made = KnowledgeBase.objects.get(name="copy", owner=curator)
    assert response.redirect_chain[-1][0] == f"/admin/kb/knowledgebase/{made.pk}/change/"
    assert "“copy” was imported" in response.content.decode()


def test_errors_stand_beside_their_fields(client, kb):
    file = SimpleUploadedFile("kb.zip", downloaded(client, kb), "application/zip")
    assert "choose another name" in client.post(IMPORT, {"file": file}).content.decode()
    wrong = SimpleUploadedFile("kb.zip", b"hello", "application/zip")
    assert "no ZIP file" in client.post(IMPORT, {"file": wrong}).content.decode()


def test_viewers_and_strangers_export_nothing(client, kb, foreign, curator):
    assert client.get(export_url(foreign.knowledge_base)).status_code == 404
    client.force_login(make_member(kb))
    for path in (export_url(kb), f"{export_url(kb)}file/"):
        assert client.get(path).status_code == 403


def test_the_list_and_the_knowledge_base_lead_to_the_pages(client, kb):
    assert "import-archive" in client.get("/admin/kb/knowledgebase/").content.decode()
    assert export_url(kb) in client.get(f"/admin/kb/knowledgebase/{kb.pk}/change/").content.decode()
