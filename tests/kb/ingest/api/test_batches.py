"""Many files at once: taken in without waiting for workers, reported and controlled over the API."""

import io
import resource
import zipfile

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from kb.ingest.services.batches import batch_create
from kb.models import Chunk, Document, IngestBatch
from kb.tasks import ingest_document, ingest_documents
from tests import factories

pytestmark = pytest.mark.django_db

MIB = 1024**2


@pytest.fixture
def url(kb):
    return f"/api/v1/knowledge-bases/{kb.pk}/batches/"


@pytest.fixture
def batch(kb, owner):
    return batch_create(knowledge_base=kb, name="files", user=owner)


def text(number, name=""):
    return SimpleUploadedFile(name or f"{number}.txt", f"第{number}条讲的是保修。".encode())


def post(client, url, *files, **fields):
    return client.post(url, {"files": list(files), **fields}, format="multipart")


def of(batch):
    return f"/api/v1/batches/{batch.pk}/"


def index_all():
    ingest_documents(*Document.objects.filter(status="pending").values_list("pk", flat=True))


def test_many_files_become_waiting_documents_of_one_upload(client, kb, owner, url):
    response = post(client, url, text(1), text(2), text(3), source_type="qa", name="条文")

    row = response.json()
    assert response.status_code == 201
    assert (row["name"], row["knowledge_base_id"], row["refused"]) == ("条文", kb.pk, [])
    assert row["progress"]["counts"] == {"pending": 3}
    assert (row["progress"]["total"], row["progress"]["done"], row["progress"]["seconds_left"]) == (3, 0, None)
    stored = Document.objects.order_by("pk").values_list("source", "source_type", "batch", "created_by")
    assert list(stored) == [(f"{number}.txt", "qa", row["id"], owner.pk) for number in (1, 2, 3)]


def test_an_upload_without_a_name_has_that_of_its_first_file(client, url):
    assert post(client, url, text(1), text(2)).json()["name"] == "1.txt"


def test_paths_say_in_which_folders_files_lay_and_the_table_describes_them(client, url):
    table = SimpleUploadedFile(
        "t.csv", "filename,title,tags,year\na/1.txt,第一条,法律;保修,2024\n2.txt,,,2025\n".encode()
    )

    response = post(client, url, text(1), text(2), paths=["a/1.txt", "b/2.txt"], table=table)

    assert response.status_code == 201
    stored = Document.objects.order_by("pk").values_list("source", "title", "tags", "metadata")
    assert list(stored) == [
        ("1.txt", "第一条", ["法律", "保修"], {"year": 2024, "path": "a/1.txt"}),
        ("2.txt", "", [], {"year": 2025, "path": "b/2.txt"}),
    ]


def test_a_table_that_cannot_be_read_begins_no_upload(client, url):
    response = post(client, url, text(1), table=SimpleUploadedFile("t.csv", b"name\nx\n"))

    assert (response.status_code, response.json()["code"]) == (400, "table_invalid")
    assert not IngestBatch.objects.exists()


def test_metadata_of_the_table_filters_searches(client, kb, url):
    table = SimpleUploadedFile("t.csv", b"filename,tags,year\n1.txt,law,2024\n2.txt,,2025\n3.txt,law,2025\n")
    post(client, url, text(1), text(2), text(3), table=table)
    index_all()

    def found(**filters):
        body = {"query": "保修", "knowledge_base_ids": [kb.pk], "filters": filters, "score_threshold": 0}
        answer = client.post("/api/v1/search/", body, format="json").json()
        return sorted(each["source"] for each in answer["results"])

    assert found() == ["1.txt", "2.txt", "3.txt"]
    assert found(metadata=[{"key": "year", "op": "eq", "value": 2025}]) == ["2.txt", "3.txt"]
    assert found(metadata=[{"key": "year", "op": "eq", "value": 2025}], tags=["law"]) == ["3.txt"]
    assert found(metadata=[{"key": "year", "op": "gte", "value": 2026}]) == []


def test_what_cannot_be_taken_is_named_and_keeps_nothing_else_out(client, kb, url):
    known = factories.make_document(kb, "x")
    data = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(40)
    first = text(1).read()
    again = SimpleUploadedFile("same.txt", first)
    post(client, url, SimpleUploadedFile("was.txt", b"was here"))
    was = Document.objects.exclude(pk=known.pk).get()

    response = post(
        client, url, text(1), SimpleUploadedFile("p.png", data), again, SimpleUploadedFile("n.txt", b"was here")
    )

    row = response.json()
    assert response.status_code == 201
    assert [(each["name"], each["code"], each["document_id"]) for each in row["refused"]] == [
        ("p.png", "unsupported_type", None),
        ("n.txt", "known", was.pk),
    ]
    assert all(each["message"] for each in row["refused"])
    assert row["progress"]["total"] == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"files": []}, "files"),
        ({"files": [text(1)], "paths": ["a", "b"]}, "paths"),
        ({"files": [text(1)], "source_type": "song"}, "source_type"),
        ({"files": [text(1)], "no_such": "x"}, "no_such"),
    ],
)
def test_a_request_that_says_something_wrong_is_refused_whole(client, url, fields, field):
    response = client.post(url, fields, format="multipart")

    assert response.status_code == 400
    assert field in response.json()["fields"]
    assert not IngestBatch.objects.exists()


def test_more_files_than_a_request_may_hold_are_refused_in_a_sentence(client, url):
    response = post(client, url, *(text(number) for number in range(101)))

    assert (response.status_code, response.json()["code"]) == (413, "too_large")
    assert not Document.objects.exists()


def test_further_files_go_into_the_same_upload_and_one_sent_twice_is_no_trouble(client, batch):
    assert post(client, f"{of(batch)}files/", text(1)).status_code == 200
    row = post(client, f"{of(batch)}files/", text(1), text(2)).json()

    assert row["refused"] == []
    assert row["progress"]["counts"] == {"pending": 2}


def test_progress_names_what_has_failed_and_why(client, batch):
    post(client, f"{of(batch)}files/", text(1), SimpleUploadedFile("empty.txt", b""), text(2))
    index_all()

    row = client.get(of(batch)).json()

    assert row["progress"]["counts"] == {"ready": 2, "failed": 1}
    assert (row["progress"]["done"], row["progress"]["percent"]) == (3, 100)
    assert row["progress"]["rate"] > 0
    [failed] = row["failed"]
    assert (failed["source"], failed["error"]["code"]) == ("empty.txt", "empty_file")
    assert failed["error"]["message"].startswith("The file holds no text.")


def test_an_upload_is_paused_resumed_cancelled_and_retried(client, batch):
    post(client, f"{of(batch)}files/", text(1), text(2), SimpleUploadedFile("empty.txt", b""))

    assert client.post(f"{of(batch)}pause/").json()["paused"] is True
    index_all()
    assert client.get(of(batch)).json()["progress"]["counts"] == {"pending": 3}
    assert client.post(f"{of(batch)}resume/").json()["paused"] is False

    index_all()
    assert client.post(f"{of(batch)}retry/").json()["progress"]["counts"] == {"ready": 2, "pending": 1}
    assert client.post(f"{of(batch)}cancel/").json()["progress"]["counts"] == {"ready": 2, "cancelled": 1}
    again = client.post(f"{of(batch)}retry/", {"status": "cancelled"}, format="json")
    assert again.json()["progress"]["counts"] == {"ready": 2, "pending": 1}
    assert client.post(f"{of(batch)}retry/", {"status": "ready"}, format="json").status_code == 400


def test_uploads_are_listed_newest_first_in_few_statements(client, kb, owner, url, django_assert_max_num_queries):
    first, second = (batch_create(knowledge_base=kb, name=name, user=owner) for name in "ab")
    batch_create(knowledge_base=factories.make_kb(owner, "other"), name="c", user=owner)
    post(client, f"{of(first)}files/", text(1))

    with django_assert_max_num_queries(10):
        rows = client.get(url).json()["results"]

    assert [(row["name"], row["progress"]["total"]) for row in rows] == [("b", 0), ("a", 1)]
    assert rows[1]["id"] == first.pk
    assert second.pk == rows[0]["id"]


def test_an_archive_of_ten_thousand_files_is_taken_in_without_blocking_the_server_or_filling_its_memory(client, url):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(10_000):
            archive.writestr(f"{number // 100}/{number}.txt", f"第{number}条")
    upload = SimpleUploadedFile("statutes.zip", packed.getvalue())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    response = post(client, url, upload)  # stores the archive, and no more

    assert response.json()["progress"]["counts"] == {"pending": 1}
    ingest_document(Document.objects.get().pk)
    row = client.get(of(IngestBatch.objects.get())).json()
    assert row["progress"]["counts"] == {"pending": 10_000}
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 150 * MIB
    some = list(Document.objects.order_by("pk").values_list("pk", flat=True)[:200])
    ingest_documents(*some)
    assert client.get(of(IngestBatch.objects.get())).json()["progress"]["counts"] == {"ready": 200, "pending": 9_800}
    assert Chunk.objects.count() == 200


def test_an_archive_may_be_larger_than_a_single_file(client, url, settings):
    settings.MAX_UPLOAD_BYTES, settings.MAX_ZIP_BYTES = MIB, 3 * MIB
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.txt", b"a" * (5 * MIB // 2))
    assert post(client, url, SimpleUploadedFile("a.zip", packed.getvalue())).status_code == 201

    packed = io.BytesIO(b"PK\3\4" + bytes(5 * MIB))
    refused = post(client, url, SimpleUploadedFile("b.zip", packed.getvalue()))
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
