import logging
import uuid
from contextlib import nullcontext
from datetime import timedelta

import pytest
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.files.base import ContentFile
from django.db.models import Q
from django.utils import timezone

from kb.base.errors import AlreadyThere, Rejected
from kb.ingest.parser import office
from kb.ingest.parser.parsed import MESSAGES
from kb.ingest.services import indexing
from kb.ingest.services.chunks import chunk_update
from kb.ingest.services.documents import (
    CLAIMED,
    DOCUMENTS,
    document_add,
    document_add_text,
    document_requeue,
    document_update,
    error_sentence,
)
from kb.ingest.services.indexing import MAX_ATTEMPTS, DocumentBatch, index_document, index_documents
from kb.jobs.leases import LeaseLost, Queue
from kb.models import Chunk, ChunkEmbedding, ChunkPostings, Document, KnowledgeBase
from kb.tasks import sweep_lost_documents
from retrieval.postings import Postings, hash_terms
from tests.disks import database_full, no_room
from tests.factories import make_document, make_kb
from tests.kb.ingest.parser.documents import data_address, make_picture
from tests.kb.ingest.parser.office_files import make_ole, make_text, needs_libreoffice

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb()


TEXT = "第一段。\n\n第二段。".encode()


def add(kb, content=TEXT, name="说明.txt", **details):
    return document_add(knowledge_base=kb, file=ContentFile(content), name=name, user=kb.owner, **details)


def index(document):
    index_document(document.pk)
    document.refresh_from_db()
    return document


def claimed(document_id):
    """A worker's hold on a document, if it can be taken."""
    job = DOCUMENTS.claim(Q(pk=document_id), **CLAIMED)
    return job and DocumentBatch([job.row], job.lease)


def test_a_text_becomes_chunks_with_postings_and_vectors(kb):
    document = index(add(kb))
    assert (document.status, document.progress, document.error) == ("ready", 100, "")
    chunks = Chunk.objects.filter(document=document)
    assert chunks.count() > 0
    assert ChunkPostings.objects.filter(chunk__in=chunks).count() == chunks.count()
    assert ChunkEmbedding.objects.filter(chunk__in=chunks, model="hashing").count() == chunks.count()
    kb.refresh_from_db()
    assert kb.dimension == 1_024


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030"])
def test_encodings_of_chinese_text(kb, encoding):
    document = index(add(kb, "知识库里的中文内容，用于检索。".encode(encoding)))
    assert document.status == "ready"
    assert "知识库里的中文内容" in document.chunks.get().text


def test_the_title_is_the_given_one_or_the_files(kb):
    assert index(add(kb, b"given", name="a.txt", title="Given")).title == "Given"
    assert index(add(kb, b"own", name="handbook.txt")).title == "handbook"


def test_the_same_bytes_are_recognised_whatever_their_name(kb):
    first = add(kb)
    with pytest.raises(AlreadyThere) as caught:
        add(kb, name="copy.txt")
    assert caught.value.document_id == first.pk
    assert add(make_kb(), name="copy.txt").pk != first.pk


@pytest.mark.parametrize(
    ("content", "name", "code"),
    [
        (b"", "empty.txt", "empty_file"),
        (b"%PDF-1.7 broken", "broken.pdf", "damaged_file"),
        (b"PK\x03\x04", "a.docx", "type_mismatch"),
    ],
)
def test_a_file_that_cannot_be_read_fails_with_a_sentence_and_harms_nothing(kb, content, name, code):
    good = index(add(kb))
    bad = index(add(kb, content, name=name))
    assert bad.status == "failed"
    assert bad.error
    assert bad.error_code in MESSAGES
    assert bad.error_code == code or code in ("type_mismatch", "damaged_file")
    assert good.chunks.exists()


def test_a_type_that_cannot_be_read_is_refused_at_the_door(kb):
    with pytest.raises(Rejected, match=r"\.pdf") as caught:
        add(kb, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", name="notes.txt")
    assert caught.value.code == "unsupported_type"
    assert not Document.objects.exists()


def test_a_program_is_refused_at_the_door(kb):
    with pytest.raises(Rejected, match=r"“x\.exe”") as caught:
        add(kb, b"plain words", name="x.exe")
    assert caught.value.code == "unsupported_type"
    assert not Document.objects.exists()


@pytest.mark.usefixtures("english")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("旧版.doc", make_ole(WordDocument=bytes(32))),
        ("注释.txt", rb"{\rtf1 words}"),
        ("a.odt", make_text("<text:p>x</text:p>")),
    ],
)
def test_where_libreoffice_is_missing_its_files_are_refused_at_the_door_and_those_stored_before_fail(
    kb, name, content, monkeypatch, tmp_path
):
    """Whoever finds it missing says the same."""
    with monkeypatch.context() as installed:
        installed.setattr(office, "missing_parts", list)
        document = add(kb, content, name=name)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Rejected, match="apt-get install") as caught:
        add(kb, content + b" ", name=name)
    assert caught.value.code == "unsupported_type"
    assert index(document).status == "failed"
    assert document.error_code == "office_missing"
    assert str(caught.value) == error_sentence(document) == document.error


@needs_libreoffice
def test_files_for_libreoffice_are_indexed_one_by_one(kb):
    documents = [
        add(kb, rb"{\rtf1 words}", name="a.rtf"),
        add(kb, rb"{\rtf1 other}", name="b.txt"),
        add(kb, b"plain", name="c.txt"),
    ]
    ids = [document.pk for document in documents]
    assert index_documents(ids) == ids[:2]
    for document, text in zip(documents, ("words", "other", "plain"), strict=True):
        assert index(document).status == "ready"
        assert [chunk.text for chunk in document.chunks.all()] == [text]


def test_a_file_over_the_limit_is_refused_at_the_door(kb, settings):
    settings.MAX_UPLOAD_BYTES = 10
    with pytest.raises(Rejected) as caught:
        add(kb, b"x" * 11)
    assert caught.value.code == "too_large"


def test_pasted_text_is_a_document_like_any_other(kb):
    document = document_add_text(knowledge_base=kb, text="粘贴的内容", title="便签", user=kb.owner)
    assert index(document).chunks.get().text == "粘贴的内容"
    with pytest.raises(Rejected):
        document_add_text(knowledge_base=kb, text="  \n", title="", user=kb.owner)


def test_indexing_again_replaces_chunks_and_doubles_none(kb):
    document = index(add(kb))
    count = document.chunks.count()
    document_requeue(document)
    assert index(document).chunks.count() == count


def test_a_model_that_is_not_here_fails_the_document_with_its_remedy(kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model="BAAI/not-here")
    document = index(add(kb))
    assert document.error_code == "model_unavailable"
    assert "manage.py" in document.error


def test_one_worker_at_a_time_holds_a_document(kb):
    document = add(kb)
    assert claimed(document.pk) is not None
    assert claimed(document.pk) is None


def test_a_lost_workers_document_can_be_taken_and_the_lost_worker_then_writes_nothing(kb):
    document = add(kb)
    lost = claimed(document.pk)
    Document.objects.filter(pk=document.pk).update(lease_until=timezone.now() - timedelta(seconds=1))
    assert claimed(document.pk) is not None
    with pytest.raises(LeaseLost):
        lost.report(Document.Stage.EMBED, 50)


def test_progress_renews_the_lease(kb):
    job = claimed(add(kb).pk)
    Document.objects.update(lease_until=timezone.now())
    job.report(Document.Stage.EMBED, 50)
    document = Document.objects.get()
    assert (document.stage, document.progress) == ("embed", 50)
    assert document.lease_until > timezone.now() + timedelta(seconds=settings.INGEST_LEASE_SECONDS) / 2


def test_a_document_that_kills_its_worker_again_and_again_is_given_up(kb):
    document = add(kb)
    Document.objects.filter(pk=document.pk).update(attempts=MAX_ATTEMPTS)
    assert index(document).error_code == "worker_lost"


def test_a_document_whose_base_changed_its_model_meanwhile_goes_back_to_the_queue(kb, monkeypatch):
    document = add(kb)
    job = DOCUMENTS.claim(Q(pk=document.pk), **CLAIMED)
    KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model="other")
    monkeypatch.setattr(Queue, "claim", lambda *_arguments, **_fields: job)
    index_document(document.pk)
    document.refresh_from_db()
    assert (document.status, document.lease, document.attempts) == ("pending", None, 1)
    assert not document.chunks.exists()


def test_a_deleted_document_is_left_alone(kb, caplog):
    document = add(kb)
    job = claimed(document.pk)
    Document.objects.filter(pk=document.pk)._raw_delete("default")
    with caplog.at_level(logging.INFO), pytest.raises(LeaseLost):
        job.report(Document.Stage.CHUNK, 15)


def test_the_sweep_finds_lost_documents_and_only_those(kb):
    old = timezone.now() - timedelta(minutes=10)
    waiting, _fresh, lost, working = (add(kb, f"text {n}".encode(), name=f"{n}.txt") for n in range(4))
    Document.objects.filter(pk=waiting.pk).update(updated_at=old)
    for document, until in ((lost, old), (working, timezone.now() + timedelta(seconds=settings.INGEST_LEASE_SECONDS))):
        Document.objects.filter(pk=document.pk).update(status="processing", lease=uuid.uuid4(), lease_until=until)
    assert sweep_lost_documents() == 2


def test_an_edited_chunk_is_tokenised_and_embedded_again(kb):
    chunk = make_document(kb, "旧的内容").chunks.get()
    before = (bytes(chunk.postings.get().terms), chunk.embeddings.get().vector)
    chunk_update(chunk, text="全新的说法", enabled=True)
    chunk.refresh_from_db()
    assert chunk.text == "全新的说法"
    assert bytes(chunk.postings.get().terms) != before[0]
    assert chunk.embeddings.get().vector != before[1]


def test_a_blank_chunk_is_refused(kb):
    chunk = make_document(kb, "内容").chunks.get()
    with pytest.raises(Rejected):
        chunk_update(chunk, text=" ", enabled=True)


def test_a_chunk_keeps_its_text_when_the_model_is_out_of_reach(kb):
    chunk = make_document(kb, "内容").chunks.get()
    chunk.knowledge_base.embedding_model = "BAAI/not-here"
    with pytest.raises(Rejected) as caught:
        chunk_update(chunk, text="别的", enabled=True)
    assert caught.value.code == "model_unavailable"
    chunk.refresh_from_db()
    assert chunk.text == "内容"


def test_chunks_are_cut_by_the_bases_settings(kb):
    KnowledgeBase.objects.filter(pk=kb.pk).update(chunk_size=40, chunk_overlap=0, chunk_unit="tokens")
    document = index(add(kb, ("一句不长的话。" * 40).encode()))
    assert document.chunks.count() > 3
    assert all(chunk.token_count <= 40 for chunk in document.chunks.all())


def test_a_new_title_keeps_edited_chunks_and_indexes_them_under_it(kb):
    document = index(add(kb, title="旧标题"))
    chunk = document.chunks.first()
    chunk_update(chunk, text="改过的内容", enabled=False)
    document.refresh_from_db()
    document_update(document, title="崭新标题")
    assert document.status == "pending"
    document = index(document)
    kept = document.chunks.get(pk=chunk.pk)
    assert (document.status, kept.text, kept.enabled) == ("ready", "改过的内容", False)
    new_term = hash_terms(["崭新"])[0]
    assert new_term in Postings.from_bytes(*kept.postings.values_list("terms", "frequencies", "length").get()).terms


def test_a_document_imported_without_a_file_keeps_its_chunks(kb):
    document = make_document(kb, "没有文件的内容")
    document_requeue(document)
    assert index(document).chunks.get().text == "没有文件的内容"


def test_what_nobody_expected_fails_the_document_and_is_logged(kb, caplog):
    document = add(kb)
    document.file.storage.delete(document.file.name)
    assert index(document).error_code == "internal_error"
    assert "FileNotFoundError" in caplog.text


def test_an_overlap_as_large_as_the_chunk_is_refused(kb):
    kb.chunk_size = kb.chunk_overlap = 100
    with pytest.raises(ValidationError, match=r"overlap|重叠"):
        kb.full_clean()


def test_retitling_twice_before_the_worker_comes_keeps_edited_chunks(kb):
    document = index(add(kb))
    chunk_update(document.chunks.first(), text="编辑过的", enabled=True)
    for title in ("一", "二"):
        document_update(Document.objects.get(pk=document.pk), title=title)
    assert index(document).chunks.first().text == "编辑过的"


@pytest.mark.parametrize("metadata", [[1], 5, "x", {"a": "\x00"}, {"a": [[[[[[[[[[[1]]]]]]]]]]]}, {"a": "x" * 40_000}])
def test_metadata_that_cannot_be_kept_are_refused(kb, metadata):
    document = make_document(kb, "内容")
    document.metadata = metadata
    with pytest.raises(ValidationError):
        document.full_clean(exclude=["file", "title", "mime"])


KEYWORDS, QUESTION = ChunkEmbedding.Kind.KEYWORDS, ChunkEmbedding.Kind.QUESTION
LEASES = "《民法典》规定租赁合同的租赁期限不得超过二十年。"


@pytest.fixture
def kb_with_keywords(kb):
    kb.keyword_vectors = True
    kb.save()
    return kb


def vectors(kb, kind):
    return ChunkEmbedding.objects.filter(knowledge_base=kb, kind=kind)


def test_a_knowledge_base_with_keyword_vectors_keeps_the_keywords_of_chunks(kb_with_keywords):
    document = index(add(kb_with_keywords, LEASES.encode()))

    assert "民法典" in document.chunks.get().keywords
    assert vectors(kb_with_keywords, KEYWORDS).count() == 1


def test_one_without_them_keeps_none(kb):
    document = index(add(kb, LEASES.encode()))

    assert document.chunks.get().keywords == []
    assert not vectors(kb, KEYWORDS).exists()


def test_an_edit_renews_the_keywords(kb_with_keywords):
    chunk = index(add(kb_with_keywords, LEASES.encode())).chunks.get()

    chunk_update(chunk, text="温控器的保修期是两年。", enabled=True)

    chunk.refresh_from_db()
    assert "民法典" not in chunk.keywords
    assert "温控器" in chunk.keywords
    assert vectors(kb_with_keywords, KEYWORDS).count() == 1


def test_questions_of_a_chunk_are_embedded_and_go_with_it(kb):
    chunk = index(add(kb, LEASES.encode())).chunks.get()

    chunk_update(chunk, text=chunk.text, enabled=True, questions=["最长租多久?", " ", "超过怎么办?"])
    chunk.refresh_from_db()
    assert chunk.questions == ["最长租多久?", "超过怎么办?"]
    assert vectors(kb, QUESTION).count() == 2

    chunk_update(chunk, text="别的", enabled=True)
    assert vectors(kb, QUESTION).count() == 2

    chunk.refresh_from_db()
    chunk_update(chunk, text="别的", enabled=True, questions=[])
    assert not vectors(kb, QUESTION).exists()


def test_a_new_title_keeps_the_questions_and_their_vectors(kb):
    document = index(add(kb, LEASES.encode()))
    chunk_update(document.chunks.get(), text=LEASES, enabled=True, questions=["最长租多久?"])
    Document.objects.filter(pk=document.pk).update(status=Document.Status.PENDING, keep_chunks=True, title="新题")

    index(document)

    assert document.chunks.get().questions == ["最长租多久?"]
    assert vectors(kb, QUESTION).count() == 1


def state(document):
    document.refresh_from_db()
    return (document.status, document.attempts, document.error, document.lease)


WAITING = ("pending", 0, "", None)


def test_a_document_that_finds_the_disk_full_waits_and_goes_on_by_itself(kb, monkeypatch):
    document = add(kb)
    monkeypatch.setattr(indexing, "_write", full_once(indexing._write))
    index_document(document.pk)
    assert state(document) == WAITING
    assert sweep_lost_documents() == 0
    Document.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    assert sweep_lost_documents() == 1
    assert index(document).status == "ready"


def full_once(write):
    """PostgreSQL has no room for what is written first."""
    disks = [database_full()]

    def written(*arguments):
        with disks.pop() if disks else nullcontext():
            write(*arguments)

    return written


def test_small_documents_that_find_the_disk_full_wait_together(kb, monkeypatch):
    documents = [add(kb, f"Note {number}".encode(), f"{number}.txt") for number in range(2)]
    monkeypatch.setattr(indexing, "_write", full_once(indexing._write))
    ids = [each.pk for each in documents]
    assert index_documents(ids) == ids
    assert [state(each) for each in documents] == [WAITING] * 2
    assert index_documents(ids) == []


def test_a_picture_that_finds_the_disk_full_blames_no_document(kb):
    document = add(kb, f"# Plant\n\nA pump.\n\n![A pump]({data_address(make_picture(1))})".encode(), "plant.md")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(indexing, "has_room", lambda: True)
        with no_room():
            index_document(document.pk)
    assert state(document) == WAITING
    assert index(document).status == "ready"


def test_a_file_whose_parser_fails_on_a_full_disk_is_not_blamed(kb, monkeypatch):
    document = add(kb, b"%PDF-1.7 and no more", "a.pdf")
    answers = iter([True, False])
    monkeypatch.setattr(indexing, "has_room", lambda: next(answers, True))
    index_document(document.pk)
    assert state(document) == WAITING
    assert index(document).status == "failed"


def test_no_document_is_taken_while_there_is_no_room(kb):
    document = add(kb)
    with no_room():
        index_document(document.pk)
        assert index_documents([document.pk]) == [document.pk]
    assert state(document) == WAITING
