import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from kb.content.folders.services import Tree, folder_create
from kb.models import Document, Folder
from kb.operations.services.archives.export import export_open
from kb.operations.services.archives.restore import restore_kb
from kb.tasks import ingest_document
from tests.factories import make_document, make_kb, principal
from tests.kb.ingest.services.batches.test_batches import zipped


@pytest.fixture
def url(kb):
    return f"/api/v1/knowledge-bases/{kb.pk}/folders/"


@pytest.fixture
def laws(kb):
    return folder_create(kb=kb, name="laws")


def test_folders_are_made_listed_changed_and_deleted(client, kb, url):
    laws = client.post(url, {"name": "laws"}, format="json")
    labour = client.post(url, {"name": "labour", "folder_id": laws.json()["id"]}, format="json")

    assert (laws.status_code, labour.status_code) == (201, 201)
    assert labour.json()["path"] == ["laws", "labour"]
    listed = client.get(url).json()["results"]
    assert [(each["name"], each["folder_id"], each["document_count"]) for each in listed] == [
        ("labour", laws.json()["id"], 0),
        ("laws", None, 0),
    ]
    address = f"/api/v1/folders/{labour.json()['id']}/"
    assert client.patch(address, {"name": "work", "folder_id": None}, format="json").json()["path"] == ["work"]
    assert client.delete(address).status_code == 204
    assert [each.name for each in Folder.objects.all()] == ["laws"]


def test_a_folder_is_listed_by_the_one_it_is_in(client, kb, url, laws):
    folder_create(kb=kb, name="labour", parent=laws)

    found = client.get(url, {"folder_id": laws.pk}).json()["results"]

    assert [each["name"] for each in found] == ["labour"]


def test_a_name_that_is_taken_is_refused(client, url, laws):
    answer = client.post(url, {"name": "laws"}, format="json")

    assert (answer.status_code, answer.json()["code"]) == (400, "name_taken")


def test_documents_go_with_the_folder_only_where_that_is_said(client, kb, laws):
    document = make_document(kb, "text", folder=laws)
    client.delete(f"/api/v1/folders/{laws.pk}/")
    assert Document.objects.get(pk=document.pk).folder is None

    again = folder_create(kb=kb, name="laws")
    Document.objects.update(folder=again)
    client.delete(f"/api/v1/folders/{again.pk}/?documents=delete")
    assert not Document.objects.exists()


def test_a_document_is_added_to_a_folder_moved_and_found_by_it(client, kb, laws):
    documents = f"/api/v1/knowledge-bases/{kb.pk}/documents/"
    made = client.post(documents, {"title": "a", "text": "words", "folder_id": laws.pk}, format="json").json()
    assert made["folder_id"] == laws.pk
    assert [each["id"] for each in client.get(documents, {"folder_id": laws.pk}).json()["results"]] == [made["id"]]

    moved = client.patch(f"/api/v1/documents/{made['id']}/", {"folder_id": None}, format="json").json()

    assert moved["folder_id"] is None
    assert client.get(documents, {"folder_id": laws.pk}).json()["results"] == []


def test_a_folder_of_another_knowledge_base_takes_no_document(client, kb):
    elsewhere = folder_create(kb=make_kb(kb.owner, "other"), name="laws")
    documents = f"/api/v1/knowledge-bases/{kb.pk}/documents/"

    answer = client.post(documents, {"title": "a", "text": "words", "folder_id": elsewhere.pk}, format="json")

    assert answer.status_code == 404
    assert not Document.objects.exists()


def test_a_search_keeps_to_a_folder(client, kb, laws):
    inside = make_document(kb, "The warranty lasts two years.", folder=laws)
    make_document(kb, "The warranty lasts three years.")

    body = {"query": "warranty", "knowledge_base_ids": [kb.pk], "filters": {"folder_ids": [laws.pk]}}
    found = client.post("/api/v1/search/", body, format="json").json()

    assert {each["document_id"] for each in found["results"] + found["near_misses"]} == {inside.pk}


def test_an_upload_keeps_the_tree_of_its_paths(client, kb, laws):
    files = [SimpleUploadedFile(name, name.encode()) for name in ("a.txt", "b.txt")]
    body = {"files": files, "paths": ["labour/a.txt", "labour/pay/b.txt"], "folder_id": laws.pk}

    answer = client.post(f"/api/v1/knowledge-bases/{kb.pk}/batches/", body, format="multipart")

    assert (answer.status_code, answer.json()["folder_id"]) == (201, laws.pk)
    tree = Tree(kb.pk)
    assert {row.source: tree.names(row.folder_id) for row in Document.objects.all()} == {
        "a.txt": ("laws", "labour"),
        "b.txt": ("laws", "labour", "pay"),
    }


def test_an_archive_keeps_its_tree_in_the_folder_that_it_was_put_into(client, kb, laws):
    file = SimpleUploadedFile("all.zip", zipped(**{"labour/a.txt": "first", "b.txt": "second"}))
    body = {"files": [file], "paths": ["new/all.zip"], "folder_id": laws.pk}
    client.post(f"/api/v1/knowledge-bases/{kb.pk}/batches/", body, format="multipart")

    ingest_document(Document.objects.get().pk)

    tree = Tree(kb.pk)
    assert {row.source: tree.names(row.folder_id) for row in Document.objects.all()} == {
        "a.txt": ("laws", "new", "labour"),
        "b.txt": ("laws", "new"),
    }


def test_an_archive_of_a_knowledge_base_holds_its_folders(kb, laws, tmp_path):
    labour = folder_create(kb=kb, name="labour")
    Folder.objects.filter(pk=laws.pk).update(parent=labour)  # the one around is the newer one
    folder_create(kb=kb, name="laws")
    make_document(kb, "text", folder=laws)
    path = tmp_path / "kb.zip"
    with export_open(principal(kb.owner), kb) as archive:
        path.write_bytes(archive.read())

    restored = restore_kb(path, owner=kb.owner, name="copy").knowledge_base

    tree = Tree(restored.pk)
    assert [each.names for each in tree.paths()] == [("labour",), ("labour", "laws"), ("laws",)]
    assert tree.names(restored.documents.get().folder_id) == ("labour", "laws")
