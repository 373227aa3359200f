import gc
import io
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import OperationalError, connection

from kb.content.models import batch_waiting
from kb.ingest.services import batches as batch_files, indexing
from kb.ingest.services.batches import (
    PIECE,
    NewFile,
    batch_add,
    batch_add_many,
    batch_cancel,
    batch_create,
    batch_pause,
    batch_progress,
    batch_resume,
    batch_retry,
    is_moving,
    with_progress,
)
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, Document, IngestBatch
from kb.tasks import feed_batch, ingest_document, sweep_lost_documents
from tests.factories import make_kb

pytestmark = pytest.mark.django_db


@pytest.fixture
def batch():
    kb = make_kb()
    return batch_create(knowledge_base=kb, name="laws", user=kb.owner)


def add(batch, text, name="a.txt"):
    content = text if isinstance(text, bytes) else text.encode()
    return batch_add(batch, ContentFile(content), name, user=batch.created_by)


def statuses(batch):
    return dict(Document.objects.filter(batch=batch).values_list("source", "status"))


def zipped(**files):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


@pytest.fixture
def sent(monkeypatch):
    """Ids of the documents that tasks enqueue."""
    ids = []
    monkeypatch.setattr("kb.tasks.enqueue", lambda task, *args: ids.append((task.name.rpartition(".")[2], *args)))
    return ids


def test_a_hostile_file_holds_up_none_of_its_upload(batch):
    good = [add(batch, f"第{number}条", f"{number}.txt") for number in range(2)]
    hostile = add(batch, b"%PDF-1.7\n" + b"\0" * 5_000, "bad.pdf")
    good.append(add(batch, "最后一条", "last.txt"))

    for document in (good[0], hostile, *good[1:]):
        ingest_document(document.pk)

    assert statuses(batch) == {"0.txt": "ready", "1.txt": "ready", "bad.pdf": "failed", "last.txt": "ready"}
    assert Document.objects.get(pk=hostile.pk).error_code == "damaged_file"


def test_progress_counts_by_status_and_stage_and_tells_rate_and_time_left(batch):
    done, *others = [add(batch, f"text {number}", f"{number}.txt") for number in range(4)]
    ingest_document(done.pk)
    Document.objects.filter(pk=others[0].pk).update(status="processing", stage="embed")

    progress = batch_progress(batch)

    assert progress.counts == {"ready": 1, "processing": 1, "pending": 2}
    assert progress.stages == {"embed": 1}
    assert (progress.total, progress.done, progress.percent) == (4, 1, 25)
    assert progress.rate > 0
    assert progress.seconds_left == round(3 / progress.rate)


def test_progress_of_many_uploads_is_one_statement(batch, django_assert_num_queries):
    add(batch, "text")
    empty = batch_create(knowledge_base=batch.knowledge_base, name="none", user=None)
    with django_assert_num_queries(1):
        told = with_progress([batch, empty])
    assert [each.progress.total for each in told] == [1, 0]


def test_workers_take_up_no_document_of_a_paused_upload(batch):
    document = add(batch, "text")
    batch_pause(batch)

    ingest_document(document.pk)

    assert statuses(batch) == {"a.txt": "pending"}
    assert not is_moving(batch, batch_progress(batch))


def test_the_sweep_passes_over_paused_uploads(batch, sent):
    add(batch, "text")
    Document.objects.update(updated_at="2020-01-01T00:00Z")
    batch_pause(batch)

    assert sweep_lost_documents() == 0


def test_a_resumed_upload_is_fed_to_the_workers_in_bounded_portions(
    batch, sent, monkeypatch, django_capture_on_commit_callbacks
):
    documents = [add(batch, f"text {number}", f"{number}.txt") for number in range(3)]
    batch_pause(batch)
    monkeypatch.setattr("kb.tasks.SWEEP_LIMIT", 2)
    told = []
    batch_waiting.connect(lambda batch_id, **_: told.append(batch_id), weak=False, dispatch_uid="test")
    try:
        with django_capture_on_commit_callbacks(execute=True):
            batch_resume(batch)
    finally:
        batch_waiting.disconnect(dispatch_uid="test")

    feed_batch(told[0], 0)
    first, second, third = [document.pk for document in documents]
    assert sent == [("ingest_documents", first, second), ("feed_batch", batch.pk, second)]
    feed_batch(batch.pk, second)
    assert sent[2:] == [("ingest_documents", third)]


def test_cancelling_takes_what_is_not_done_out_of_the_queue(batch):
    done, waiting = add(batch, "done"), add(batch, "waiting", "b.txt")
    ingest_document(done.pk)

    assert batch_cancel(batch) == 1

    ingest_document(waiting.pk)
    assert statuses(batch) == {"a.txt": "ready", "b.txt": "cancelled"}
    assert not is_moving(batch, batch_progress(batch))


def test_a_worker_writes_nothing_more_of_a_document_that_is_cancelled_meanwhile(batch, monkeypatch):
    document = add(batch, "text")

    def cancelled_meanwhile(*args, **kwargs):
        batch_cancel(batch)
        return real(*args, **kwargs)

    real = indexing.prepare
    monkeypatch.setattr(indexing, "prepare", cancelled_meanwhile)
    index_document(document.pk)

    assert statuses(batch) == {"a.txt": "cancelled"}
    assert not Chunk.objects.exists()


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_failed_and_cancelled_documents_are_taken_up_again_and_no_others(batch, status):
    document, other = add(batch, "text"), add(batch, "other", "b.txt")
    ingest_document(other.pk)
    Document.objects.filter(pk=document.pk).update(status=status, attempts=4, error="why", error_code="timeout")

    assert batch_retry(batch, status) == 1
    ingest_document(document.pk)

    assert statuses(batch) == {"a.txt": "ready", "b.txt": "ready"}
    assert Document.objects.get(pk=document.pk).error == ""


def test_a_task_that_is_delivered_again_while_the_first_runs_does_nothing(batch, monkeypatch):
    document = add(batch, "第一条。")
    parsed = []

    def delivered_again(*args, **kwargs):
        parsed.append(document.pk)
        ingest_document(document.pk)
        return real(*args, **kwargs)

    real = indexing._parse
    monkeypatch.setattr(indexing, "_parse", delivered_again)
    ingest_document(document.pk)

    assert parsed == [document.pk]
    assert Document.objects.get().attempts == 0
    assert Chunk.objects.count() == 1


def test_an_archive_gives_way_to_a_document_a_member(batch):
    archive = add(batch, zipped(**{"法律/a.txt": "第一条", "法律/b.md": "# 第二条", "photo.png": "x"}), "laws.zip")

    ingest_document(archive.pk)

    added = Document.objects.filter(batch=batch).order_by("source")
    assert [document.source for document in added] == ["a.txt", "b.md"]
    assert added[0].metadata == {"archive": "laws.zip", "path": "法律/a.txt"}
    batch.refresh_from_db()
    assert [(each["name"], each["code"]) for each in batch.notes] == [("photo.png", "unsupported_type")]
    for document in added:
        ingest_document(document.pk)
    assert set(statuses(batch).values()) == {"ready"}


def test_an_archive_whose_worker_died_half_way_is_carried_on(batch, monkeypatch):
    archive = add(batch, zipped(**{"a.txt": "first", "b.txt": "second"}), "laws.zip")
    monkeypatch.setattr("kb.ingest.services.batches.PIECE", 1)
    monkeypatch.setattr("kb.ingest.services.batches.batch_add_many", _dies_at("b.txt"))
    with pytest.raises(KeyboardInterrupt):
        ingest_document(archive.pk)
    assert sorted(statuses(batch)) == ["a.txt", "laws.zip"]
    monkeypatch.undo()
    Document.objects.filter(pk=archive.pk).update(lease_until="2020-01-01T00:00Z")

    ingest_document(archive.pk)

    assert sorted(statuses(batch)) == ["a.txt", "b.txt"]
    batch.refresh_from_db()
    assert batch.notes == []


def _dies_at(name):
    def take(batch, files, **kwargs):
        if files[0].name == name:
            raise KeyboardInterrupt
        return batch_add_many(batch, files, **kwargs)

    return take


def test_a_member_that_is_there_already_is_noted_with_the_document_that_holds_it(batch):
    known = add(batch, "same")
    archive = add(batch, zipped(**{"copy.txt": "same"}), "laws.zip")

    ingest_document(archive.pk)

    batch.refresh_from_db()
    assert batch.notes == [{"name": "copy.txt", "code": "known", "params": {}, "document": known.pk}]


def test_the_tags_of_an_archive_are_those_of_its_files(batch):
    archive = add(batch, zipped(**{"a.txt": "first"}), "laws.zip")
    Document.objects.filter(pk=archive.pk).update(tags=["law"])
    ingest_document(archive.pk)
    assert Document.objects.get().tags == ["law"]


@pytest.mark.parametrize("name", ["长" * 1_001 + ".txt", "第一章." + "长" * 200, "长" * 250])
def test_a_file_of_a_very_long_name_is_taken_in(batch, name):
    document = add(batch, "第一条。", name)
    index_document(document.pk)
    document.refresh_from_db()
    assert (document.status, document.source[:4], len(document.source)) == ("ready", name[:4], min(len(name), 1_000))


def test_a_file_of_a_very_long_name_in_an_archive_keeps_none_of_the_others_out(batch):
    archive = add(batch, zipped(**{"a.txt": "first", "长" * 1_001 + ".txt": "second"}), "laws.zip")
    ingest_document(archive.pk)
    sources = sorted(Document.objects.values_list("source", flat=True))
    assert [(source[-4:], len(source)) for source in sources] == [(".txt", 5), (".txt", 1_000)]


def test_files_are_not_left_behind_whatever_keeps_their_rows_out(batch, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("first")

    def broken(*_arguments):
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(batch_files, "copy_rows", broken)
    with pytest.raises(OperationalError):
        batch_add_many(batch, [NewFile("a.txt", tmp_path / "a.txt")], user=None)
    folder = Path(default_storage.path(f"documents/{batch.knowledge_base_id}"))
    assert not folder.exists() or list(folder.iterdir()) == []


def test_the_files_of_an_archive_that_is_cancelled_meanwhile_stay_out(batch, monkeypatch):
    archive = add(batch, zipped(**{"a.txt": "first", "b.txt": "second"}), "laws.zip")
    real = batch_files._store

    def cancelled_meanwhile(*arguments):
        batch_cancel(batch)
        return real(*arguments)

    monkeypatch.setattr(batch_files, "_store", cancelled_meanwhile)
    ingest_document(archive.pk)
    assert statuses(batch) == {"laws.zip": "cancelled"}


def test_what_a_killed_worker_has_unpacked_goes_with_the_next_attempt(batch, tmp_path, monkeypatch, settings):
    settings.FILE_UPLOAD_TEMP_DIR = tmp_path
    archive = add(batch, zipped(**{"a.txt": "first"}), "laws.zip")
    with monkeypatch.context() as killed:
        killed.setattr(tempfile.TemporaryDirectory, "cleanup", lambda self: self._finalizer.detach() and None)
        killed.setattr("kb.ingest.services.batches.batch_add_many", _dies_at("a.txt"))
        with pytest.raises(KeyboardInterrupt):
            ingest_document(archive.pk)
    assert len(list(tmp_path.glob("zhiku-unpack-*"))) == 1
    Document.objects.filter(pk=archive.pk).update(lease_until="2020-01-01T00:00Z")

    ingest_document(archive.pk)

    assert list(tmp_path.glob("zhiku-unpack-*")) == []


def test_a_damaged_archive_fails_with_a_sentence(batch):
    archive = add(batch, zipped(**{"../out.txt": "x"}), "laws.zip")
    ingest_document(archive.pk)
    assert Document.objects.get().error_code == "unsafe_archive"


def test_an_archive_that_came_alone_gets_an_upload_of_its_own():
    kb = make_kb()
    from kb.ingest.services.documents import document_add

    archive = document_add(knowledge_base=kb, file=ContentFile(zipped(**{"a.txt": "x"})), name="l.zip", user=kb.owner)
    ingest_document(archive.pk)
    assert Document.objects.get().batch == IngestBatch.objects.get(name="l.zip")


def test_ten_thousand_documents_are_taken_in_with_bounded_memory_and_statements(batch, tmp_path):
    files = []
    for number in range(10_000):
        path = tmp_path / f"{number}.txt"
        path.write_text(f"text {number}")
        files.append(NewFile(f"folder/{number}.txt", path))
    statements = 0

    def count(execute, *args):
        nonlocal statements
        statements += 1
        return execute(*args)

    memory = []
    with connection.execute_wrapper(count):
        for start in range(0, len(files), PIECE):
            if start in (6_000, 8_000):
                gc.collect()
                tracemalloc.start()
            batch_add_many(batch, files[start : start + PIECE], user=None)
            connection.run_on_commit.clear()  # the test's transaction never commits, so they would hold every document
            if start + PIECE in (8_000, 10_000):
                gc.collect()
                memory.append(tracemalloc.get_traced_memory())
                tracemalloc.stop()
    held, peak = map(min, zip(*memory, strict=True))  # another thread that loads something once counts in one of them

    assert batch_progress(batch).counts == {"pending": 10_000}
    assert statements <= 10 * (len(files) // PIECE)
    assert held < 1024**2  # of 2,000 documents nothing stays
    assert peak < 20 * 1024**2
