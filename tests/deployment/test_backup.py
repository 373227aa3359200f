"""A backup under writes, and what becomes of it in another database: the commands as processes of their own."""

import io
import json
import os
import re
import shutil
import tarfile
import threading
from pathlib import Path

import pytest
from django.apps import apps
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.db.models import FileField

from kb.base.errors import Rejected
from kb.base.files import files_below
from kb.index.vector_index import maintain_vector_indexes
from kb.ingest.services.documents import document_add
from kb.ingest.services.indexing import index_document
from kb.ingest.services.preview_store import preview_write
from kb.models import Document, Installation, Picture
from kb.operations.services.archives.export import export_kb
from kb.operations.services.archives.restore import restore_kb
from kb.operations.services.backups import backup as programs
from kb.operations.services.backups.backup import backup, reading
from kb.search.services.search import SearchRequest, search
from tests.deployment.stack import Stack
from tests.factories import make_kb, make_user, principal
from tests.kb.ingest.parser.documents import data_address, make_picture

pytestmark = pytest.mark.django_db(transaction=True)
QUERY = "How long is the warranty?"


@pytest.fixture
def kb():
    kb = make_kb(make_user("owner", superuser=True), name="handbook")
    for number in range(3):
        text = f"Part {number}: the warranty lasts for {number + 2} years. Keep the receipt."
        index_document(add(kb, text, f"{number}.txt").pk)
    return kb


def add(kb, text, name):
    return document_add(knowledge_base=kb, file=ContentFile(text.encode()), name=name, user=None)


def add_with_pictures(kb):
    """A document whose two pictures are files of their own."""
    shown = "\n\n".join(f"![Pump {number}]({data_address(make_picture(number))})" for number in (1, 2))
    index_document(add(kb, f"# Plant\n\nThe pumps stand in the hall.\n\n{shown}", "plant.md").pk)
    return list(Picture.objects.select_related("document").order_by("pk"))


def stored():
    """The names of all files of the installation, but for what is made of others again and for backups and archives."""
    names = {file.name for file in files_below("")}
    return {name for name in names if "/previews/" not in name and not name.startswith(("archives/", "backups/"))}


def found(kb):
    request = SearchRequest(query=QUERY, knowledge_base_ids=[kb.pk], overrides={"score_threshold": 0}, log=False)
    return [(hit.passage.stored_chunk_id, hit.score) for hit in search(principal(kb.owner), request).result.hits]


def rewritten(source, target, change):
    """A copy of a backup whose members are what `change` makes of them; None leaves one out."""
    with tarfile.open(source) as old, tarfile.open(target, "w") as new:
        for member in old:
            content = change(member.name, old.extractfile(member).read())
            if content is not None:
                member.size = len(content)
                new.addfile(member, io.BytesIO(content))
    return target


def test_a_backup_under_writes_is_restored_into_an_empty_database_and_searches_find_the_same(kb, tmp_path, settings):
    before, installation = found(kb), str(Installation.objects.get().pk)
    pictures = add_with_pictures(kb)
    done = threading.Event()

    def write():
        number = 0
        while not done.is_set():
            number += 1
            index_document(add(kb, f"Meanwhile {number}", f"new{number}.txt").pk)
        connections.close_all()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        held = backup(tmp_path / "all.tar")
    finally:
        done.set()
        writer.join()
    assert held["documents"] >= 3
    assert (tmp_path / "all.tar").stat().st_mode & 0o077 == 0, "it holds the hashes of passwords and keys"
    assert held["files"] == held["documents"] + len(pictures)

    with Stack(SECRET_KEY=settings.SECRET_KEY) as stack:
        stack.environment["EMBEDDING_MODEL"] = "hashing"
        printed = json.loads(stack.manage("restore", str(tmp_path / "all.tar"), "--json").stdout)
        assert printed["counts"]["documents"] == held["documents"]
        assert printed["files"] == held["files"]
        assert printed["installation"] != installation
        again = stack.manage("search", QUERY, "--kb", "handbook", "--json", "--score-threshold", "0")
        hits = [(hit["chunk_id"], hit["score"]) for hit in json.loads(again.stdout)["results"]]
        assert [chunk for chunk, _ in hits][: len(before)] == [chunk for chunk, _ in before]
        media = Path(stack.environment["ZHIKU_DATA_DIR"]) / "media"
        assert len(list((media / "documents").rglob("*.*"))) == held["files"]
        for picture in pictures:
            with default_storage.open(picture.file_name) as file:
                assert (media / picture.file_name).read_bytes() == file.read()

        restore = ["restore", str(tmp_path / "all.tar")]
        refused, forced = stack.manage_in_turn(restore, [*restore, "--force", "--json"], check=False)
        assert refused.returncode == 1
        assert "--force" in refused.stderr
        assert forced.returncode == 0, forced.stderr
        assert json.loads(forced.stdout)["installation"] not in (installation, printed["installation"])


def test_it_holds_every_stored_file_but_previews(kb, tmp_path):
    pictures = add_with_pictures(kb)
    preview_write(f"documents/{kb.pk}/previews/{pictures[0].document_id}/page.png", b"drawn")
    export_kb(kb, tmp_path / "kb.zip")
    restore_kb(tmp_path / "kb.zip", owner=kb.owner, name="copy")
    done = backup(tmp_path / "all.tar")
    with tarfile.open(tmp_path / "all.tar") as tar:
        held = {name.removeprefix("files/") for name in tar.getnames() if name.startswith("files/")}
    assert held == stored()
    assert {picture.file_name for picture in Picture.objects.select_related("document")} < held
    assert (done["files"], done["missing_files"]) == (len(held), 0)
    verify(tmp_path / "all.tar")


def test_files_are_stored_by_these_alone():
    """Whoever comes upon a new one: have the backup take its files, then name it here."""
    fields = {str(each) for model in apps.get_models() for each in model._meta.fields if isinstance(each, FileField)}
    assert fields == {"kb.Document.file"}
    root = Path("kb")
    writes = re.compile(r"\b(replace_file|storage\.save)\(")
    writers = {str(path.relative_to(root)) for path in root.rglob("*.py") if writes.search(path.read_text())}
    assert writers == {
        "base/files.py",
        "ingest/services/pictures.py",
        "ingest/services/preview_store.py",
        "management/commands/backup.py",
        "operations/services/archives/restore.py",
        "operations/services/backups/restore.py",
    }


@pytest.fixture
def _nowhere_else():
    """Documents of this database can be in no other: what is restored fails when its rows come."""
    with connection.cursor() as cursor:
        condition = f"current_database() = '{connection.settings_dict['NAME']}'"
        cursor.execute(f"ALTER TABLE kb_document ADD CONSTRAINT nowhere_else CHECK ({condition})")
    yield
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE kb_document DROP CONSTRAINT nowhere_else")


def test_a_restore_that_fails_midway_leaves_the_database_as_it_was(kb, archive, tmp_path, settings, request):
    request.getfixturevalue("_nowhere_else")
    backup(tmp_path / "other.tar")
    counted = (
        "SELECT (SELECT count(*) FROM kb_document), (SELECT count(*) FROM kb_chunk), (SELECT count(*) FROM kb_user)"
    )
    with Stack(SECRET_KEY=settings.SECRET_KEY) as stack:
        stack.manage("restore", str(archive))
        before = stack.rows(counted)

        failed, found = stack.manage_in_turn(
            ["restore", str(tmp_path / "other.tar"), "--force"], ["search", QUERY, "--kb", "handbook"], check=False
        )

        assert failed.returncode == 1
        assert "nowhere_else" in failed.stderr
        assert stack.rows(counted) == before
        assert before[0][0] == 3
        assert found.returncode == 0, found.stderr
        assert found.stdout


@pytest.fixture
def _not_migratable():
    """A migration that makes a table counts as not applied, so that it fails wherever this database is restored."""
    with connection.cursor() as cursor:
        cursor.execute(
            "DELETE FROM django_migrations WHERE app = 'kb' AND name >= '0029_invitations'"
            " RETURNING id, app, name, applied"
        )
        rows = cursor.fetchall()
    yield
    with connection.cursor() as cursor:
        statement = "INSERT INTO django_migrations (id, app, name, applied) VALUES (%s, %s, %s, %s)"
        cursor.executemany(statement, rows)


def test_rows_whose_migration_fails_are_not_of_the_former_installation(kb, tmp_path, settings, request):
    request.getfixturevalue("_not_migratable")
    installation = str(Installation.objects.get().pk)
    backup(tmp_path / "all.tar")
    with Stack(SECRET_KEY=settings.SECRET_KEY) as stack:
        failed = stack.manage("restore", str(tmp_path / "all.tar"), check=False)
        assert failed.returncode == 1
        assert "could not be migrated" in failed.stderr
        [(count, restored)] = stack.rows("SELECT (SELECT count(*) FROM kb_document), id::text FROM kb_installation")
        assert count == 3
        assert restored != installation


STEPS = """
from pathlib import Path
from kb.operations.services.backups.restore import restore
restore(Path({path!r}), is_forced=True, on_step=lambda name, total: print("step", name, total))
"""


def test_a_restore_names_its_steps_builds_what_searches_need_and_lets_documents_wait_again(kb, tmp_path, settings):
    settings.VECTOR_INDEX_MIN_ROWS = 2
    maintain_vector_indexes(kb.pk)
    Document.objects.filter(source="0.txt").update(status="processing", lease_until="2100-01-01T00:00:00Z")
    backup(tmp_path / "all.tar")
    indexes = "SELECT c.relname FROM pg_class c WHERE starts_with(c.relname, 'hnsw_')"
    with Stack(SECRET_KEY=settings.SECRET_KEY, VECTOR_INDEX_MIN_ROWS="2") as stack:
        archive = str(tmp_path / "all.tar")
        restored, _ = stack.manage_in_turn(
            ["shell", "--no-imports", "--command", STEPS.format(path=archive)], ["restore", archive, "--force"]
        )
        steps = [line.split()[1:] for line in restored.stdout.splitlines() if line.startswith("step ")]
        names = [name for name, _ in steps]
        assert {"kb_chunk", "kb_chunkembedding", "postings_lexemes", "kb_chunk_pkey"} <= set(names)
        assert {int(total) for _, total in steps} == {len(names)}
        assert len(set(names)) == len(names)
        assert not any(name.startswith("hnsw_") for name in names)

        assert len(stack.rows(indexes)) == 1
        assert stack.rows("SELECT chunk_count FROM bm25_indexes") == [(3,)]
        assert stack.rows("SELECT status, lease_until FROM kb_document WHERE source = '0.txt'") == [("pending", None)]
    maintain_after(kb)


def maintain_after(kb):
    """Drops the index, which would slow the tests that follow."""
    kb.delete()
    maintain_vector_indexes()


@pytest.fixture(scope="module")
def _made(tmp_path_factory):
    return tmp_path_factory.mktemp("backup") / "all.tar"


@pytest.fixture
def archive(request, _made, tmp_path):
    """A backup of the knowledge base, made once for the file; each test has a copy."""
    if not _made.exists():
        request.getfixturevalue("kb")
        backup(_made)
    return shutil.copy(_made, tmp_path / "all.tar")


def verify(path, **how):
    with reading(path, is_trusted=how.get("is_trusted", False)) as backup_file:
        return backup_file.manifest


def test_it_names_what_it_holds_and_no_secret(archive, settings):
    assert verify(archive)["counts"]["documents"] == 3
    data = archive.read_bytes()
    assert settings.SECRET_KEY.encode() not in data


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_one_that_is_cut_off_is_refused(archive, share):
    data = archive.read_bytes()
    archive.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(Rejected, match="not whole"):
        verify(archive)


def test_one_whose_file_was_changed_is_refused(archive, tmp_path):
    forged = rewritten(
        archive, tmp_path / "f.tar", lambda name, data: data[::-1] if name.startswith("files/") else data
    )
    with pytest.raises(Rejected, match="its parts"):
        verify(forged)


def test_one_that_lacks_a_file_is_refused(archive, tmp_path):
    forged = rewritten(archive, tmp_path / "f.tar", lambda name, data: None if name.startswith("files/") else data)
    with pytest.raises(Rejected, match="its parts"):
        verify(forged)


def test_one_whose_manifest_was_changed_is_refused(archive, tmp_path):
    def change(name, data):
        return data.replace(b'"zhiku"', b'"Zhiku"', 1) if name == "manifest.json" else data

    with pytest.raises(Rejected, match="forged") as refused:
        verify(rewritten(archive, tmp_path / "f.tar", change))
    assert refused.value.code == "unsigned_backup"


def test_a_file_that_would_leave_its_folder_is_refused(archive, tmp_path):
    with tarfile.open(archive, "a") as tar:
        tar.addfile(tarfile.TarInfo("files/documents/1/../../../evil.txt"), io.BytesIO())
    with pytest.raises(Rejected, match="does not belong there"):
        verify(archive)


def linked(name, kind):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    return member


def with_holes(name):
    """A member that says it is gigabytes of nothing."""
    member = tarfile.TarInfo(name)
    member.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(2**32)}
    member.pax_headers |= {"GNU.sparse.name": name, "GNU.sparse.map": f"{2**32},0", "GNU.sparse.numblocks": "1"}
    return member


@pytest.mark.parametrize(
    "member",
    [
        linked("files/documents/1/a.txt", tarfile.SYMTYPE),
        linked("files/documents/1/a.txt", tarfile.LNKTYPE),
        linked("database.dump", tarfile.FIFOTYPE),
        with_holes("files/documents/1/a.txt"),
        tarfile.TarInfo("database.dump"),
        tarfile.TarInfo("manifest.json"),
    ],
    ids=["symbolic link", "hard link", "pipe", "holes", "dump twice", "manifest twice"],
)
def test_what_no_backup_holds_is_refused(archive, member):
    with tarfile.open(archive, "a", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member)
    with pytest.raises(Rejected, match="does not belong there"):
        verify(archive, is_trusted=True)


def test_one_of_another_secret_key_is_taken_only_where_it_is_trusted(archive, settings):
    settings.SECRET_KEY = "another"
    with pytest.raises(Rejected, match="--trust"):
        verify(archive)
    assert verify(archive, is_trusted=True)["format"] == "zhiku-backup"


def test_a_file_that_has_gone_is_counted_and_left_out(kb, tmp_path):
    gone = Document.objects.first()
    gone.file.storage.delete(gone.file.name)
    done = backup(tmp_path / "all.tar")
    assert (done["files"], done["missing_files"]) == (2, 1)


def test_a_picture_that_has_gone_is_counted_and_said(kb, tmp_path, capsys):
    gone, kept = add_with_pictures(kb)
    default_storage.delete(gone.file_name)
    call_command("backup", str(tmp_path / "all.tar"))
    assert "1 uploaded files and pictures are not there" in capsys.readouterr().err
    with tarfile.open(tmp_path / "all.tar") as tar:
        assert f"files/{kept.file_name}" in tar.getnames()


def test_without_pg_dump_it_says_what_to_install_and_leaves_nothing(kb, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "find_spec", lambda _name: None)
    with pytest.raises(Rejected, match="postgresql-client"):
        backup(tmp_path / "all.tar")
    assert not list(tmp_path.glob("all.tar*"))


def test_an_older_pg_dump_is_named(kb, tmp_path, monkeypatch):
    old = tmp_path / "pg_dump"
    old.write_text("#!/bin/sh\necho 'pg_dump (PostgreSQL) 9.6'\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
    monkeypatch.setattr(programs, "find_spec", lambda _name: None)
    monkeypatch.setattr(programs, "_candidates", lambda _name: iter([old]))
    with pytest.raises(Rejected, match="version 9"):
        backup(tmp_path / "all.tar")


def test_the_password_is_in_no_argument(kb, monkeypatch):
    from django.db import connection

    monkeypatch.setitem(connection.settings_dict, "PASSWORD", "swordfish")
    assert programs._environment()["PGPASSWORD"] == "swordfish"


def test_a_file_that_is_there_is_not_replaced(kb, tmp_path):
    (tmp_path / "mine.tar").write_text("mine")
    with pytest.raises(CommandError, match="there already"):
        call_command("backup", str(tmp_path / "mine.tar"))
    assert (tmp_path / "mine.tar").read_text() == "mine"


def test_it_goes_into_the_storage_of_uploads(kb, capsys):
    call_command("backup", "monday.tar", "--storage", "--json")
    assert json.loads(capsys.readouterr().out)["documents"] == 3
    assert default_storage.exists("backups/monday.tar")


@pytest.mark.parametrize("command", ["backup", "restore"])
@pytest.mark.parametrize("name", ["../monday.tar", "a/monday.tar", ".monday.tar", ".."])
def test_in_the_storage_of_uploads_it_has_a_plain_name(db, command, name):
    with pytest.raises(CommandError, match=r"a plain name, such as monday\.tar"):
        call_command(command, name, "--storage")


def test_a_backup_that_is_not_there_is_said():
    with pytest.raises(CommandError, match="there is no backup"):
        call_command("restore", "nowhere.tar")
