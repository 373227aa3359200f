import threading
import time

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection, transaction

from kb.base.db.transactions import lock_knowledge_bases
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, Document, KnowledgeBase
from tests import factories
from tests.interleaving import PATIENCE

pytestmark = pytest.mark.django_db

KINDS = ("documents", "chunks", "knowledge-bases")


@pytest.fixture
def url_of(kb, document, chunk):
    rows = {"documents": document, "chunks": chunk, "knowledge-bases": kb}
    return lambda kind: f"/api/v1/{kind}/{rows[kind].pk}/"


CHANGES = {"documents": {"title": "new"}, "chunks": {"enabled": False}, "knowledge-bases": {"description": "new"}}


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_not_changed_is_304_without_a_body(client, url_of, kind):
    first = client.get(url_of(kind))
    assert first.headers["ETag"] == first.json()["etag"]

    for known in (first.headers["ETag"], f'"other", W/{first.headers["ETag"]}', "*"):
        again = client.get(url_of(kind), headers={"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["ETag"] == first.headers["ETag"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_makes_another_etag(client, url_of, kind):
    before = client.get(url_of(kind)).headers["ETag"]

    changed = client.patch(url_of(kind), CHANGES[kind], format="json")

    assert changed.headers["ETag"] == changed.json()["etag"] != before
    after = client.get(url_of(kind), headers={"If-None-Match": before})
    assert (after.status_code, after.headers["ETag"]) == (200, changed.headers["ETag"])


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_changed_since_it_was_read_is_not_changed(client, url_of, kind):
    before = client.get(url_of(kind))
    after = client.patch(url_of(kind), CHANGES[kind], format="json")

    for method in (client.patch, client.delete):
        response = method(url_of(kind), CHANGES[kind], format="json", headers={"If-Match": before.headers["ETag"]})
        assert (response.status_code, response.json()["code"]) == (412, "precondition_failed")
        assert response.json()["etag"] == after.headers["ETag"]
    assert client.get(url_of(kind)).json() == after.json()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", [None, "*"])
def test_what_is_as_it_was_read_is_changed_and_deleted(client, url_of, kind, known):
    etag = known or client.get(url_of(kind)).headers["ETag"]
    changed = client.patch(url_of(kind), CHANGES[kind], format="json", headers={"If-Match": etag})
    assert changed.status_code == 200

    deleted = client.delete(url_of(kind), headers={"If-Match": known or changed.headers["ETag"]})

    assert deleted.status_code == 204
    assert client.get(url_of(kind)).status_code == 404


def test_a_chunks_text_is_changed_only_as_it_was_read(client, url_of, chunk):
    etag = client.get(url_of("chunks")).headers["ETag"]
    Chunk.objects.filter(pk=chunk.pk).update(enabled=False)

    refused = client.patch(url_of("chunks"), {"text": "new"}, format="json", headers={"If-Match": etag})
    changed = client.patch(url_of("chunks"), {"text": "new"}, format="json")

    assert (refused.status_code, changed.status_code, changed.json()["text"]) == (412, 200, "new")


def test_items_of_lists_carry_the_etag_of_the_item(client, kb, document, chunk):
    lists = {
        "knowledge-bases/": f"knowledge-bases/{kb.pk}/",
        f"knowledge-bases/{kb.pk}/documents/": f"documents/{document.pk}/",
        f"documents/{document.pk}/chunks/": f"chunks/{chunk.pk}/",
    }
    for of_list, of_item in lists.items():
        item = client.get(f"/api/v1/{of_list}").json()["results"][0]
        assert item["etag"] == client.get(f"/api/v1/{of_item}").headers["ETag"]


def test_what_a_worker_does_is_a_change_too(client, kb):
    created = client.post(f"/api/v1/knowledge-bases/{kb.pk}/documents/", {"text": "Five days."}, format="json")
    url = f"/api/v1/documents/{created.json()['id']}/"
    waiting = client.get(url, headers={"If-None-Match": created.headers["ETag"]})
    assert (waiting.status_code, waiting.headers["Retry-After"]) == (304, "1")

    index_document(created.json()["id"])

    done = client.get(url, headers={"If-None-Match": created.headers["ETag"]})
    assert (done.status_code, done.json()["status"], "Retry-After" in done.headers) == (200, "ready", False)


def test_put_replaces_all_that_is_said_about_a_document(client, document):
    url = f"/api/v1/documents/{document.pk}/"

    replaced = client.put(url, {"title": "员工手册", "tags": ["new"]}, format="json")

    assert replaced.status_code == 200
    assert (replaced.json()["metadata"], replaced.json()["tags"]) == ({}, ["new"])
    assert client.put(url, {"tags": []}, format="json").json()["fields"].keys() == {"title"}


def test_a_new_file_keeps_the_document_and_its_details(client, kb, document):
    index_document(client.post(f"/api/v1/documents/{document.pk}/retry/").json()["id"])
    url = f"/api/v1/documents/{document.pk}/"
    before = client.get(url)

    response = client.put(
        f"{url}file/",
        {"file": SimpleUploadedFile("second.txt", b"The second edition: six days.")},
        format="multipart",
        headers={"If-Match": before.headers["ETag"]},
    )
    index_document(document.pk)

    assert response.status_code == 200
    after = client.get(url).json()
    assert (after["id"], after["title"], after["tags"]) == (document.pk, "员工手册", ["人事"])
    assert (after["source"], after["status"], after["chunk_count"]) == ("second.txt", "ready", 1)
    assert b"".join(client.get(f"{url}file/").streaming_content) == b"The second edition: six days."


def test_a_new_file_is_refused_where_it_is_another_documents_or_the_document_has_changed(client, kb, document):
    other = client.post(f"/api/v1/knowledge-bases/{kb.pk}/documents/", {"text": "Six."}, format="json").json()
    url = f"/api/v1/documents/{document.pk}/file/"

    def put(content, name="a.txt", **headers):
        return client.put(url, {"file": SimpleUploadedFile(name, content)}, format="multipart", headers=headers)

    known = put(b"Six.")
    assert (known.status_code, known.json()["document_id"]) == (409, other["id"])
    assert put(b"Seven.", **{"If-Match": '"old"'}).status_code == 412
    assert put(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR").status_code == 415
    assert put(b"PK", "many.zip").status_code == 415
    assert client.put(url, {}, format="multipart").status_code == 400


@pytest.mark.django_db(transaction=True)
def test_of_two_that_change_what_they_have_read_one_is_refused(client_of, owner, kb, document):
    """Both wait for the lock with the same ETag: whoever is second sees the change of the first."""
    url = f"/api/v1/documents/{document.pk}/"
    etag = client_of(owner).get(url).headers["ETag"]
    answers = []

    def change(client, title):
        try:
            answers.append(client.patch(url, {"title": title}, format="json", headers={"If-Match": etag}).status_code)
        finally:
            connection.close()

    threads = [threading.Thread(target=change, args=(client_of(owner), f"title {n}")) for n in range(2)]
    with transaction.atomic():
        lock_knowledge_bases([kb.pk])
        for thread in threads:
            thread.start()
        _wait_for_waiting(2)
    for thread in threads:
        thread.join()

    assert sorted(answers) == [200, 412]
    assert Document.objects.get(pk=document.pk).title.startswith("title")


def _wait_for_waiting(count):
    """Until so many sessions of the database wait for a lock."""
    waiting, deadline = 0, time.monotonic() + PATIENCE
    while waiting < count:
        assert time.monotonic() < deadline
        with connection.cursor() as cursor:
            # A transaction goes on seeing the sessions that there were when it asked first.
            cursor.execute("SELECT pg_stat_clear_snapshot(), pg_sleep(0.005)")
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            (waiting,) = cursor.fetchone()


def test_knowledge_bases_are_locked_before_they_are_changed(client, kb):
    stale = KnowledgeBase.objects.get(pk=kb.pk)
    KnowledgeBase.objects.filter(pk=kb.pk).update(description="by another")

    client.patch(f"/api/v1/knowledge-bases/{kb.pk}/", {"name": "renamed"}, format="json")

    stale.refresh_from_db()
    assert (stale.name, stale.description) == ("renamed", "by another")


def test_a_stranger_learns_nothing_by_an_etag(client_of, url_of):
    stranger = client_of(factories.make_user())

    for kind in KINDS:
        assert stranger.get(url_of(kind), headers={"If-None-Match": "*"}).status_code == 404
        assert stranger.delete(url_of(kind), headers={"If-Match": "*"}).status_code == 404
