"""Two writers at once, with the interleaving driven: one is held at a stage until the other has come as far as it can."""

import io
import threading
import time
import zipfile
from functools import partial

import pytest
from django.core.files.base import ContentFile
from django.db import transaction

from kb.base.errors import NotVisible, Rejected
from kb.content.folders import services as folders
from kb.content.folders.services import folder_create, folder_delete, folder_update
from kb.content.services import knowledge_base_delete
from kb.index.bm25 import BM25Store
from kb.index.services import reindex, tokenizing
from kb.ingest.parser.sandbox import run_job
from kb.ingest.services import batches as batch_files, chunks, documents, indexing, previews, rechunk as writing
from kb.ingest.services.batches import batch_add, batch_cancel, batch_create
from kb.ingest.services.chunks import chunk_update, chunks_merge
from kb.ingest.services.documents import (
    document_add,
    document_delete,
    document_update,
    write_whole_documents,
)
from kb.ingest.services.indexing import index_document
from kb.ingest.services.previews import page_sizes
from kb.models import Chunk, ChunkEmbedding, ChunkPostings, Concept, Document, KnowledgeBase
from retrieval.postings import hash_terms
from tests.factories import make_document, make_kb
from tests.interleaving import PATIENCE, Gate, Running, until, until_somebody_waits_for_a_lock
from tests.kb.ingest.parser.documents import make_pdf

pytestmark = pytest.mark.django_db(transaction=True)


def add(kb, text="苹果", name="a.txt"):
    return document_add(knowledge_base=kb, file=ContentFile(text.encode()), name=name, user=kb.owner)


def only_chunk():
    return Chunk.objects.select_related("document", "knowledge_base").get()


def hits(word):
    kb = KnowledgeBase.objects.select_related("version_row").get()
    requested = BM25Store().request(kb.pk, kb.version_row.version, kb.tokenizer_id)
    index = requested.wait(time.monotonic() + PATIENCE).index
    return len(index.search(hash_terms([word]), 5)[0])


def a_retitled_document_being_embedded(monkeypatch):
    document = add(make_kb())
    index_document(document.pk)
    document.refresh_from_db()
    document_update(document, title="标题")
    gate = Gate(monkeypatch, indexing, "prepare", after=True)
    worker = Running(index_document, document.pk)
    gate.wait()
    return worker, gate


def test_deleting_a_base_waits_for_the_document_that_is_being_written(monkeypatch):
    kb = make_kb()
    make_document(kb, "已有内容")
    gate = Gate(monkeypatch, writing, "write_chunks")
    worker = Running(index_document, add(kb).pk)
    gate.wait()
    curator = Running(knowledge_base_delete, kb)
    until_somebody_waits_for_a_lock()
    gate.open()
    assert (worker.outcome(), curator.outcome()) == (None, None)
    assert not Chunk.objects.exists()


def test_deleting_a_document_waits_until_it_is_written(monkeypatch):
    document = add(make_kb())
    gate = Gate(monkeypatch, writing, "write_chunks", after=True)
    worker = Running(index_document, document.pk)
    gate.wait()
    curator = Running(document_delete, document)
    until_somebody_waits_for_a_lock()
    gate.open()
    assert (worker.outcome(), curator.outcome()) == (None, None)
    assert not Document.objects.exists()
    assert not ChunkPostings.objects.exists()


def test_retagging_a_document_waits_until_it_is_written(monkeypatch):
    document = add(make_kb())
    gate = Gate(monkeypatch, writing, "write_chunks", after=True)
    worker = Running(index_document, document.pk)
    gate.wait()
    document.refresh_from_db()
    curator = Running(lambda: document_update(document, tags=["law"]))
    until_somebody_waits_for_a_lock()
    gate.open()
    assert (worker.outcome(), curator.outcome()) == (None, None)
    document.refresh_from_db()
    assert (document.status, document.tags) == ("ready", ["law"])


def test_deleting_a_concept_waits_for_the_deletion_of_its_base(monkeypatch):
    kb = make_kb()
    make_document(kb, "已有内容")
    concept = Concept.objects.create(knowledge_base=kb, name="概念")
    gate = Gate(monkeypatch, KnowledgeBase, "delete")
    owner = Running(knowledge_base_delete, kb)
    gate.wait()
    curator = Running(concept.delete)
    until_somebody_waits_for_a_lock()
    gate.open()
    assert (owner.outcome(), curator.outcome()) == (None, None)
    assert not Concept.objects.exists()


def test_an_import_and_a_worker_on_one_base_take_turns(monkeypatch):
    kb = make_kb()
    document = add(kb)
    gate = Gate(monkeypatch, documents, "write_chunks", after=True)
    passage = (Document(title="t", source="1", sha256="1"), "x y")
    importer = Running(lambda: write_whole_documents(kb, [passage], replaced=Document.objects.none()))
    gate.wait()
    worker = Running(index_document, document.pk)
    until_somebody_waits_for_a_lock()
    gate.open()
    assert (importer.outcome(), worker.outcome()) == (None, None)
    document.refresh_from_db()
    assert document.status == "ready"


def test_an_edit_during_a_retitle_is_not_overwritten(monkeypatch):
    worker, gate = a_retitled_document_being_embedded(monkeypatch)
    chunk_update(only_chunk(), text="香蕉", enabled=True)
    gate.open()
    assert worker.outcome() is None
    assert (hits("香蕉"), hits("苹果")) == (1, 0)


def test_switching_a_chunk_off_during_a_retitle_is_not_undone(monkeypatch):
    worker, gate = a_retitled_document_being_embedded(monkeypatch)
    chunk_update(only_chunk(), text=only_chunk().text, enabled=False)
    gate.open()
    assert worker.outcome() is None
    assert not ChunkEmbedding.objects.get().enabled


@pytest.mark.parametrize(
    ("module", "stage", "rebuild"),
    [(tokenizing, "tokenize", reindex.reindex_postings), (reindex, "prepare", reindex.reindex_embeddings)],
)
def test_an_edit_during_a_reindex_is_not_overwritten(monkeypatch, module, stage, rebuild):
    kb = make_kb()
    make_document(kb, "苹果")
    before = ChunkEmbedding.objects.get().vector
    gate = Gate(monkeypatch, module, stage, after=True)
    operator = Running(rebuild, kb)
    gate.wait()
    chunk_update(only_chunk(), text="香蕉", enabled=True)
    gate.open()
    assert operator.outcome() is None
    assert (hits("香蕉"), hits("苹果")) == (1, 0)
    assert ChunkEmbedding.objects.get().vector != before


def test_a_document_deleted_during_a_reindex_is_left_out(monkeypatch):
    kb = make_kb()
    gone = make_document(kb, "甲 乙")
    make_document(kb, "丙 丁")
    gate = Gate(monkeypatch, reindex, "prepare", after=True)
    operator = Running(reindex.reindex_embeddings, kb)
    gate.wait()
    document_delete(gone)
    gate.open()
    assert operator.outcome() is None
    assert ChunkEmbedding.objects.count() == 1


def test_a_document_deleted_while_its_parser_fails_ends_quietly(monkeypatch):
    document = add(make_kb(), "not a pdf", name="a.pdf")
    gate = Gate(monkeypatch, indexing, "_parse")
    worker = Running(index_document, document.pk)
    gate.wait()
    documents.document_delete(document)
    gate.open()
    assert worker.outcome() is None


def test_editing_a_chunk_that_was_replaced_says_that_it_is_gone():
    make_document(make_kb(), "苹果")
    chunk = only_chunk()
    Chunk.objects.all().delete()
    with pytest.raises(NotVisible):
        chunk_update(chunk, text="香蕉", enabled=True)


def test_chunks_merged_while_their_document_is_cut_again_stay_merged(monkeypatch):
    kb = make_kb()
    KnowledgeBase.objects.filter(pk=kb.pk).update(chunk_size=20, chunk_overlap=0)
    document = add(kb, "第一条规定了苹果的办法。\n\n第二条规定了香蕉的办法。")
    index_document(document.pk)
    ids = list(Chunk.objects.values_list("pk", flat=True))
    document.refresh_from_db()
    document_update(document, title="标题")
    documents.document_requeue(document)
    gate = Gate(monkeypatch, indexing, "prepare", after=True)
    worker = Running(index_document, document.pk)
    gate.wait()
    chunks_merge(document=Document.objects.select_related("knowledge_base").get(), chunk_ids=ids)
    gate.open()
    assert worker.outcome() is None
    assert Chunk.objects.get().text == "第一条规定了苹果的办法。\n第二条规定了香蕉的办法。"
    assert (ChunkEmbedding.objects.count(), hits("香蕉"), hits("标题")) == (1, 1, 1)


def test_chunks_merged_during_a_re_embedding_have_the_new_text_s_vector_only(monkeypatch):
    kb = make_kb()
    document = make_document(kb, "苹果", "香蕉")
    ids = list(Chunk.objects.values_list("pk", flat=True))
    gate = Gate(monkeypatch, reindex, "prepare", after=True)
    operator = Running(reindex.reindex_embeddings, kb)
    gate.wait()
    chunks_merge(document=document, chunk_ids=ids)
    merged = ChunkEmbedding.objects.get().vector
    gate.open()
    assert operator.outcome() is None
    assert ChunkEmbedding.objects.get().vector == merged


def test_two_merges_of_the_same_chunks_take_turns_and_the_second_is_refused(monkeypatch):
    document = make_document(make_kb(), "苹果", "香蕉")
    ids = list(Chunk.objects.values_list("pk", flat=True))
    gate = Gate(monkeypatch, chunks, "unchanged_chunks", after=True)
    first = Running(lambda: chunks_merge(document=document, chunk_ids=ids))
    gate.wait()
    second = Running(lambda: chunks_merge(document=document, chunk_ids=ids))
    until_somebody_waits_for_a_lock()
    gate.open()
    assert first.outcome() is None
    assert isinstance(second.outcome(), NotVisible)
    assert Chunk.objects.get().text == "苹果\n香蕉"


@pytest.mark.parametrize("change", [{"text": "香蕉", "enabled": True}, {"text": "苹果", "enabled": False}])
def test_a_change_of_a_chunk_does_not_undo_another_that_was_faster(monkeypatch, change):
    document = add(make_kb())
    index_document(document.pk)
    gate = Gate(monkeypatch, chunks, "prepared_chunks", after=True)
    slow = Running(lambda: chunk_update(only_chunk(), text="苹果", enabled=True, questions=["哪一种水果？"]))
    gate.wait()
    monkeypatch.undo()
    chunk_update(only_chunk(), **change)
    gate.open()

    refused = slow.outcome()
    assert isinstance(refused, Rejected)
    assert refused.code == "chunk_changed"
    chunk = only_chunk()
    assert (chunk.text, chunk.enabled, chunk.questions) == (change["text"], change["enabled"], [])


def test_cancelling_an_upload_takes_along_what_an_archive_is_bringing_in(monkeypatch):
    kb = make_kb()
    batch = batch_create(knowledge_base=kb, name="laws", user=kb.owner)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.txt", "first")
    stored = batch_add(batch, ContentFile(packed.getvalue()), "laws.zip", user=kb.owner)
    gate = Gate(monkeypatch, batch_files, "copy_rows", after=True)
    worker = Running(index_document, stored.pk)
    gate.wait()
    curator = Running(batch_cancel, batch)
    until_somebody_waits_for_a_lock()
    gate.open()

    assert (worker.outcome(), curator.outcome()) == (None, None)
    assert set(Document.objects.values_list("source", "status")) == {("laws.zip", "cancelled"), ("a.txt", "cancelled")}


def test_a_file_added_to_a_folder_that_is_being_deleted_stays():
    kb = make_kb()
    around = folder_create(kb=kb, name="around")
    folder = folder_create(kb=kb, name="folder", parent=around)
    written, goes_on = threading.Event(), threading.Event()

    def add_slowly():
        with transaction.atomic():
            add_to(kb, folder)
            written.set()
            assert goes_on.wait(PATIENCE)

    adding = Running(add_slowly)
    assert written.wait(PATIENCE)
    deleting = Running(folder_delete, folder)
    until_somebody_waits_for_a_lock()
    goes_on.set()

    assert (adding.outcome(), deleting.outcome()) == (None, None)
    assert Document.objects.get().folder == around


def test_a_file_for_a_folder_that_was_deleted_meanwhile_is_refused(monkeypatch):
    kb = make_kb()
    folder = folder_create(kb=kb, name="folder")
    gate = Gate(monkeypatch, documents, "sha256_of")
    adding = Running(add_to, kb, folder)
    gate.wait()
    folder_delete(folder)
    gate.open()

    assert isinstance(adding.outcome(), NotVisible)
    assert not Document.objects.exists()


def add_to(kb, folder):
    document_add(knowledge_base=kb, file=ContentFile(b"words"), name="a.txt", user=kb.owner, folder_id=folder.pk)


def test_two_who_put_folders_into_each_other_make_no_circle(monkeypatch):
    kb = make_kb()
    one, other = folder_create(kb=kb, name="one"), folder_create(kb=kb, name="other")
    gate = Gate(monkeypatch, folders, "_check", after=True)
    first = Running(partial(folder_update, one, parent=other))
    gate.wait()
    second = Running(partial(folder_update, other, parent=one))
    until_somebody_waits_for_a_lock()
    gate.open()

    assert first.outcome() is None
    assert second.outcome().code == "within_itself"


def test_a_file_that_is_slow_to_draw_leaves_the_other_threads_of_a_server_free(monkeypatch):
    document = add_pdf(make_kb())
    goes_on = threading.Event()

    def slow(*arguments, **keywords):
        assert goes_on.wait(PATIENCE)
        return run_job(*arguments, **keywords)

    monkeypatch.setattr(previews, "run_job", slow)
    monkeypatch.setattr(previews, "_PATIENCE_SECONDS", 10 * PATIENCE)
    looking = [Running(page_sizes, document) for _number in range(8)]
    until(lambda: sum(not each.is_alive() for each in looking) == 4)
    goes_on.set()

    errors = [each.outcome() for each in looking]
    assert errors.count(None) == 4
    assert {error.code for error in errors if error} == {"preview_pending"}


def add_pdf(kb):
    return document_add(knowledge_base=kb, file=ContentFile(make_pdf(["x"])), name="a.pdf", user=kb.owner)
