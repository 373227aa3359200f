import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from kb.models import Document
from tests.factories import make_kb, make_member

URL = "admin:kb_document_upload"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


@pytest.fixture(autouse=True)
def _english(client):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"


def upload(client, kb, *files, **values):
    data = {"knowledge_base": kb.pk, "source_type": "book", "uploads": files, "title": "", "text": "", **values}
    return client.post(reverse(URL), data, follow=True)


def test_several_files_are_added_and_the_list_of_their_knowledge_base_follows(client, kb, curator):
    files = [SimpleUploadedFile("a.txt", b"first"), SimpleUploadedFile("b.md", b"# second")]

    page = upload(client, kb, *files, source_type="web")

    assert "Added 2 documents." in page.content.decode()
    assert page.redirect_chain[-1][0] == reverse("admin:kb_knowledgebase_documents", args=[kb.pk])
    added = Document.objects.order_by("source").values_list("source", "source_type", "status", "created_by")
    assert list(added) == [("a.txt", "web", "pending", curator.pk), ("b.md", "web", "pending", curator.pk)]


def test_subtitles_are_videos_unless_the_curator_says_otherwise(client, kb):
    cue = b"00:00:01,000 --> 00:00:02,000\n"
    upload(client, kb, SimpleUploadedFile("a.srt", cue + b"a"), SimpleUploadedFile("a.txt", b"text"), source_type="")
    upload(client, kb, SimpleUploadedFile("b.srt", cue + b"b"), source_type="book")
    kinds = dict(Document.objects.values_list("source", "source_type"))
    assert kinds == {"a.srt": "video", "a.txt": "book", "b.srt": "book"}


def test_a_duplicate_is_named_and_linked(client, kb):
    upload(client, kb, SimpleUploadedFile("a.txt", b"same"))

    page = upload(client, kb, SimpleUploadedFile("copy.txt", b"same")).content.decode()

    known = Document.objects.get()
    assert "“copy.txt” is here already" in page
    assert f'href="{reverse("admin:kb_document_change", args=[known.pk])}">a.txt</a>' in page


def test_a_file_of_a_type_that_cannot_be_read_is_refused_and_the_others_are_added(client, kb):
    page = upload(client, kb, SimpleUploadedFile("a.exe", PNG), SimpleUploadedFile("b.txt", b"text")).content.decode()

    assert "“a.exe” is a program" in page
    assert "Added 1 document." in page


def test_a_file_name_is_shown_as_text(client, kb):
    page = upload(client, kb, SimpleUploadedFile("<b>x.exe", PNG)).content.decode()

    assert "<b>x.exe" not in page


def test_a_pasted_text_becomes_a_document(client, kb):
    upload(client, kb, title="Notes", text="违约金")

    document = Document.objects.get()
    assert document.title == "Notes"
    with document.file.open() as file:
        assert file.read().decode() == "违约金"


def test_a_pasted_text_needs_a_title(client, kb):
    page = upload(client, kb, text="违约金")

    assert "A pasted text needs a title" in page.content.decode()
    assert not Document.objects.exists()


def test_a_pasted_text_that_is_known_is_named(client, kb):
    upload(client, kb, title="First", text="same")

    page = upload(client, kb, title="Second", text="same").content.decode()

    assert "“Second” is here already" in page


def test_nothing_at_all_is_refused(client, kb):
    assert "Choose at least one file, or paste some text." in upload(client, kb).content.decode()


@pytest.mark.parametrize("is_viewer", [True, False])
def test_one_cannot_add_to_a_knowledge_base_that_one_may_not_change(client, curator, is_viewer):
    kb = make_kb(name="someone-else-s")
    if is_viewer:
        make_member(kb, user=curator)
    make_kb(curator)

    page = upload(client, kb, SimpleUploadedFile("a.txt", b"text"))

    assert page.status_code == 200
    assert not Document.objects.exists()
    assert kb.name not in page.content.decode()


@pytest.mark.parametrize("parameter", ["kb", "knowledge_base"])
def test_a_link_preselects_the_knowledge_base(client, curator, kb, parameter):
    make_kb(curator)

    page = client.get(reverse(URL), {parameter: kb.pk}).content.decode()

    assert f'<option value="{kb.pk}" selected>' in page


def test_the_only_knowledge_base_is_preselected(client, kb):
    assert f'<option value="{kb.pk}" selected>' in client.get(reverse(URL)).content.decode()


def test_one_of_several_has_to_be_chosen(client, curator, kb):
    make_kb(curator)

    assert f'<option value="{kb.pk}" selected>' not in client.get(reverse(URL)).content.decode()


def test_without_a_knowledge_base_the_page_leads_to_making_one(client):
    assert reverse("admin:kb_knowledgebase_add") in client.get(reverse(URL)).content.decode()
