"""Both storages of uploads through one contract; S3 is a real HTTP server."""

import socket
import zipfile
from datetime import timedelta
from io import BytesIO
from pathlib import Path

import boto3
import pytest
from django.core.files import File
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage, default_storage, storages
from django.urls import reverse
from django.utils import timezone
from django.utils.module_loading import import_string
from moto.server import ThreadedMotoServer

from config.environment import NamingEnv, file_storage
from kb.base import object_storage
from kb.base.files import FilesUnavailable, delete_folder, files_below, local_file, note_use, replace_file
from kb.content.services import knowledge_base_delete
from kb.ingest.services.chunk_preview import preview_document
from kb.ingest.services.documents import document_add, document_delete
from kb.ingest.services.indexing import index_document, index_documents
from kb.models import Document
from kb.operations.services.archives.export import export_kb
from kb.operations.services.archives.restore import restore_kb
from kb.operations.services.backups.backup import backup, reading
from kb.operations.services.backups.restore import _restore_files
from tests.factories import make_kb, make_user
from tests.kb.ingest.parser.documents import data_address, make_picture

BUCKET = "zhiku"
TEXT = "The warranty lasts for two years. Keep the receipt."


class CutOff(Exception):
    """What was to be read ends in its middle."""


class Torn(BytesIO):
    def read(self, size=-1):
        if self.tell():
            raise CutOff
        return super().read(min(size, 3) if size > 0 else 3)


@pytest.fixture(scope="module")
def s3():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-no-account")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-no-account")
    made = boto3.resource("s3", endpoint_url=s3, region_name="us-east-1").Bucket(BUCKET)
    made.create()
    yield made
    made.objects.all().delete()
    made.delete()


@pytest.fixture(params=["disk", "s3"])
def storage(request, settings, monkeypatch):
    """The default storage, set up from the environment as the settings do."""
    if request.param == "s3":
        request.getfixturevalue("bucket")
        monkeypatch.setenv("S3_BUCKET", BUCKET)
        monkeypatch.setenv("S3_ENDPOINT_URL", request.getfixturevalue("s3"))
        monkeypatch.setenv("S3_REGION", "us-east-1")
    use(settings, file_storage(NamingEnv()))
    yield request.param
    use(settings, {"BACKEND": "django.core.files.storage.FileSystemStorage"})


def use(settings, default):
    settings.STORAGES = {**settings.STORAGES, "default": default}
    for name in ("_storages",):
        getattr(storages, name).clear()
    default_storage._wrapped = storages["default"]
    Document._meta.get_field("file").storage = storages["default"]


def add(kb, text=TEXT, name="warranty.txt"):
    return document_add(knowledge_base=kb, file=ContentFile(text.encode()), name=name, user=None)


@pytest.mark.django_db(transaction=True)
def test_a_document_is_read_from_where_it_lies(storage):
    document = add(make_kb())
    index_document(document.pk)
    document.refresh_from_db()
    assert (document.status, document.chunks.count()) == ("ready", 1)
    with document.file.open() as file:
        assert file.read() == TEXT.encode()


@pytest.mark.django_db(transaction=True)
def test_small_documents_are_read_together(storage):
    kb = make_kb()
    added = [add(kb, f"{TEXT} {number}", f"{number}.txt") for number in range(3)]
    assert index_documents([each.pk for each in added]) == []
    assert kb.documents.filter(status="ready").count() == 3


@pytest.mark.django_db(transaction=True)
def test_an_archive_of_documents_is_unpacked(storage):
    kb, packed = make_kb(), BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.txt", TEXT)
        archive.writestr("b.txt", TEXT[::-1])
    document = document_add(knowledge_base=kb, file=ContentFile(packed.getvalue()), name="both.zip", user=make_user())
    index_document(document.pk)
    assert sorted(kb.documents.values_list("source", flat=True)) == ["a.txt", "b.txt"]
    assert not default_storage.exists(document.file.name)


@pytest.mark.django_db(transaction=True)
def test_a_preview_cuts_the_stored_file(storage):
    kb = make_kb()
    assert preview_document(kb, add(kb), {}).chunks


@pytest.mark.django_db(transaction=True)
def test_a_deleted_document_leaves_no_file(storage):
    document = add(make_kb())
    name = document.file.name
    assert default_storage.exists(name)
    document_delete(document)
    assert not default_storage.exists(name)


@pytest.mark.django_db(transaction=True)
def test_a_deleted_knowledge_base_leaves_none_and_takes_no_other(storage):
    kept, going = make_kb(), make_kb()
    other = add(kept)
    names = [add(going, f"{TEXT} {number}", f"{number}.txt").file.name for number in range(3)]
    knowledge_base_delete(going)
    assert not any(map(default_storage.exists, names))
    assert default_storage.exists(other.file.name)


def test_a_folder_does_not_take_one_whose_name_begins_alike(storage):
    for name in ("documents/1/a.txt", "documents/10/a.txt"):
        replace_file(name, ContentFile(b"x", name=name))
    delete_folder("documents/1")
    assert not default_storage.exists("documents/1/a.txt")
    assert default_storage.exists("documents/10/a.txt")


def test_the_files_below_a_folder_are_named_with_size_and_time(storage):
    before = timezone.now() - timedelta(seconds=2)  # an object store counts in seconds
    for name, data in {"a/1.txt": b"one", "a/b/2.txt": b"other", "ab/3.txt": b"of another folder"}.items():
        replace_file(name, ContentFile(data))
        note_use(name)

    found = list(files_below("a"))

    assert sorted((file.name, file.size) for file in found) == [("a/1.txt", 3), ("a/b/2.txt", 5)]
    assert all(before <= file.used_at <= timezone.now() for file in found)
    assert list(files_below("nowhere")) == []
    for folder in ("a", "ab"):
        delete_folder(folder)


def test_a_file_is_replaced_under_its_name(storage):
    for content in (b"old", b"new"):
        replace_file("documents/1/a.txt", ContentFile(content, name="a.txt"))
    with default_storage.open("documents/1/a.txt") as file:
        assert file.read() == b"new"


def test_a_file_stays_until_the_one_in_its_place_is_whole(storage):
    replace_file("documents/1/a.txt", ContentFile(b"old", name="a.txt"))
    with pytest.raises(CutOff):
        replace_file("documents/1/a.txt", File(Torn(b"again"), name="a.txt"))
    with default_storage.open("documents/1/a.txt") as file:
        assert file.read() == b"old"
    assert default_storage.listdir("documents/1")[1] == ["a.txt"]


@pytest.mark.django_db(transaction=True)
def test_two_uploads_of_the_same_bytes_share_no_file(storage):
    """The one that comes second deletes its own, and must not delete the other's."""
    kb = make_kb()
    first = Document(knowledge_base=kb, sha256="0" * 64)
    second = Document(knowledge_base=kb, sha256="0" * 64)
    for document in (first, second):
        document.file.save("a.txt", ContentFile(b"same"), save=False)
    second.file.delete(save=False)
    assert default_storage.exists(first.file.name)


@pytest.mark.django_db(transaction=True)
def test_a_file_that_has_gone_is_no_fault_of_the_store(storage):
    document = add(make_kb())
    default_storage.delete(document.file.name)
    with pytest.raises(FileNotFoundError), local_file(document.file) as path:
        path.read_bytes()


@pytest.mark.django_db(transaction=True)
def test_a_knowledge_base_goes_out_and_comes_in_with_its_originals(storage, tmp_path):
    kb = make_kb()
    document = add(kb)
    index_document(document.pk)
    assert export_kb(kb, tmp_path / "kb.zip").files == 1
    restored = restore_kb(tmp_path / "kb.zip", owner=make_user(), name="again").knowledge_base
    copy = restored.documents.get()
    assert copy.file.name != document.file.name
    with copy.file.open() as file:
        assert file.read() == TEXT.encode()


@pytest.mark.django_db(transaction=True)
def test_files_are_served_by_the_view_that_checks_who_asks(storage, client):
    kb = make_kb()
    document = add(kb)
    path = f"/api/v1/documents/{document.pk}/file/"
    client.force_login(make_user("stranger"))
    assert client.get(path).status_code == 404
    client.force_login(kb.owner)
    answer = client.get(path)
    assert b"".join(answer.streaming_content) == TEXT.encode()


@pytest.fixture
def store_out_of_reach(settings, monkeypatch, bucket):
    monkeypatch.setenv("S3_BUCKET", BUCKET)
    monkeypatch.setenv("S3_ENDPOINT_URL", "http://127.0.0.1:1")
    yield
    use(settings, {"BACKEND": "django.core.files.storage.FileSystemStorage"})


@pytest.mark.django_db(transaction=True)
def test_a_store_out_of_reach_is_a_503_and_loses_no_document(settings, store_out_of_reach, client):
    kb = make_kb()
    document = add(kb)
    use(settings, file_storage(NamingEnv()))
    client.force_login(kb.owner)
    answer = client.get(f"/api/v1/documents/{document.pk}/file/")
    assert (answer.status_code, answer.json()["code"]) == (503, "files_unavailable")
    assert answer.headers["Retry-After"]
    page = client.get(reverse("admin:kb_document_download", args=[document.pk]), headers={"accept-language": "en"})
    assert page.status_code == 503
    assert "The store of the files cannot be reached" in page.content.decode()
    assert page.headers["Retry-After"]
    for _ in range(5):
        index_document(document.pk)
    document.refresh_from_db()
    assert (document.status, document.attempts) == ("pending", 0)
    with pytest.raises(FilesUnavailable, match="S3_ENDPOINT_URL"):
        add(kb, "other")


@pytest.mark.django_db(transaction=True)
def test_a_store_that_accepts_and_never_answers_is_a_503_as_well(settings, bucket, monkeypatch, client):
    kb = make_kb()
    document = add(kb)
    monkeypatch.setattr(object_storage, "READ_SECONDS", 1)
    monkeypatch.setenv("S3_BUCKET", BUCKET)
    with socket.create_server(("127.0.0.1", 0), backlog=16) as hanging:
        monkeypatch.setenv("S3_ENDPOINT_URL", f"http://127.0.0.1:{hanging.getsockname()[1]}")
        use(settings, file_storage(NamingEnv()))
        client.force_login(kb.owner)
        answer = client.get(f"/api/v1/documents/{document.pk}/file/")
        use(settings, {"BACKEND": "django.core.files.storage.FileSystemStorage"})
    assert (answer.status_code, answer.json()["code"]) == (503, "files_unavailable")
    assert answer.headers["Retry-After"]


def test_a_call_to_the_store_has_seconds_and_one_more_attempt():
    config = object_storage.ObjectStorage(
        bucket_name=BUCKET, region_name="us-east-1", addressing_style="auto"
    ).connection.meta.client.meta.config
    assert (config.connect_timeout, config.read_timeout, config.retries["total_max_attempts"]) == (3, 15, 2)
    assert config.s3 == {"addressing_style": "auto"}, "the limits come beside what the settings say"


def test_without_a_bucket_files_lie_on_the_disk(monkeypatch, settings):
    monkeypatch.delenv("S3_BUCKET", raising=False)
    storage = file_storage(NamingEnv())
    assert issubclass(import_string(storage["BACKEND"]), FileSystemStorage)
    assert storage["OPTIONS"] == {"file_permissions_mode": 0o600, "directory_permissions_mode": 0o700}
    assert Path(storages["default"].location) == settings.MEDIA_ROOT


@pytest.mark.django_db(transaction=True)
def test_a_backup_holds_uploads_and_pictures_and_puts_them_back(storage, tmp_path):
    document = add(make_kb(), f"# Plant\n\n{TEXT}\n\n![A pump]({data_address(make_picture(1))})", "plant.md")
    index_document(document.pk)
    names = [document.file.name, document.pictures.get().file_name]
    assert backup(tmp_path / "all.tar")["files"] == 2
    for name in names:
        default_storage.delete(name)
    with reading(tmp_path / "all.tar", is_trusted=False) as archive:
        _restore_files(archive, lambda _bytes: None)
    assert all(default_storage.exists(name) for name in names)
