"""What becomes of the attachments of a mail."""

import io
import zipfile
from email.message import EmailMessage

import pytest
from django.core.files.base import ContentFile
from django.utils.translation import override

from kb.ingest.services import indexing
from kb.ingest.services.attachments import MOST_DEPTH
from kb.ingest.services.batches import batch_add, batch_create
from kb.ingest.services.documents import (
    document_add,
    document_delete,
    document_held,
    document_replace_file,
    document_requeue,
    remark_sentences,
)
from kb.ingest.services.indexing import index_document, index_documents
from kb.models import Chunk, Document, IngestBatch
from retrieval.errors import RetrievalError
from tests.factories import make_kb
from tests.kb.ingest.formats.outlook import make_msg

pytestmark = pytest.mark.django_db

RULE = "退货须在七天之内提出。"
TABLE = "事项,规定\n退货,七天\n"


@pytest.fixture
def kb():
    return make_kb()


def mail(*attachments, subject="退货规则", body=RULE):
    message = EmailMessage()
    message["Subject"], message["From"] = subject, "张三 <a@b.com>"
    message.set_content(body)
    for name, content in attachments:
        if isinstance(content, EmailMessage):
            message.add_attachment(content)
        else:
            data = content if isinstance(content, bytes) else content.encode()
            message.add_attachment(data, maintype="application", subtype="octet-stream", filename=name)
    return message


def add(kb, message, name="退货.eml", **details):
    data = message if isinstance(message, bytes) else message.as_bytes()
    return document_add(knowledge_base=kb, file=ContentFile(data), name=name, user=kb.owner, **details)


def index_all(kb):
    while waiting := list(Document.objects.filter(knowledge_base=kb, status="pending").values_list("pk", flat=True)):
        for pk in index_documents(waiting):
            index_document(pk)


def sources(kb):
    return dict(Document.objects.filter(knowledge_base=kb).order_by("pk").values_list("source", "status"))


def test_attachments_are_documents_of_the_upload_named_by_the_mail(kb):
    batch = batch_create(knowledge_base=kb, name="往来", user=kb.owner)
    content = ContentFile(mail(("规定.csv", TABLE), ("a.srt", "00:00:01,000 --> 00:00:02,000\n你好")).as_bytes())
    document = batch_add(batch, content, "信/退货.eml", user=kb.owner)
    Document.objects.filter(pk=document.pk).update(tags=["售后"])
    index_all(kb)
    assert sources(kb) == {
        "退货.eml": "ready",
        "退货.eml › 规定.csv": "ready",
        "退货.eml › a.srt": "ready",
    }
    video, table = Document.objects.filter(source__contains="›").order_by("source")
    assert table.title == "退货.eml › 规定"
    assert (table.batch, table.tags, table.created_by) == (batch, ["售后"], kb.owner)
    assert table.metadata == {"path": "信/退货.eml", "mail": "退货.eml", "attachment": "规定.csv"}
    assert (table.source_type, video.source_type) == ("book", "video")
    document.refresh_from_db()
    assert document.metadata == {"path": "信/退货.eml", "from": "张三 <a@b.com>"}
    assert (document.title, document.remarks) == ("退货规则", [])
    assert Chunk.objects.filter(document=document, text__contains=RULE).exists()
    batch.refresh_from_db()
    assert batch.notes == []


def test_a_mail_that_came_alone_with_attachments_gets_an_upload_and_others_none(kb):
    plain, document = add(kb, mail(body="没有附件。")), add(kb, mail(("规定.csv", TABLE)), "b.eml")
    index_all(kb)
    for each in (plain, document):
        each.refresh_from_db()
    assert (plain.batch, document.batch.name) == (None, "b.eml")
    assert Document.objects.filter(batch=document.batch).count() == 2


def test_an_outlook_mail_brings_its_attachments_too(kb):
    inner = {"subject": "内部邮件", "body": "里面的正文。", "attachments": [("深.csv", TABLE.encode())]}
    add(kb, make_msg("退货规则", RULE, attachments=[("", inner)]), "退货.msg")
    index_all(kb)
    assert list(sources(kb)) == ["退货.msg", "退货.msg › 内部邮件.eml", "退货.msg › 内部邮件.eml › 深.csv"]


def test_what_becomes_no_document_is_noted_and_the_mail_is_read(kb):
    known = document_add(knowledge_base=kb, file=ContentFile(TABLE.encode()), name="有.csv", user=kb.owner)
    document = add(kb, mail(("照片.png", b"\x89PNG"), ("规定.csv", TABLE), ("空.txt", b"")))
    index_all(kb)
    document.refresh_from_db()
    assert document.status == "ready"
    with override("en"):
        sentences = remark_sentences(document)
    assert sentences == [
        "These attachments of the mail became no documents: 照片.png, 空.txt. The page of the upload says why."
    ]
    notes = [(note["name"], note["code"], note.get("document")) for note in document.batch.notes]
    assert notes == [
        ("退货.eml › 照片.png", "unsupported_type", None),
        ("退货.eml › 空.txt", "empty_file", None),
        ("退货.eml › 规定.csv", "known", known.pk),
    ]
    document_requeue(document)
    index_all(kb)
    document.refresh_from_db()
    assert len(document.remarks) == 1


def test_two_attachments_of_one_name_are_two_documents(kb):
    add(kb, mail(("a.txt", "一"), ("a.txt", "二")))
    index_all(kb)
    assert Document.objects.filter(knowledge_base=kb, source="退货.eml › a.txt").count() == 2


def test_a_mail_that_is_read_again_does_not_bring_back_what_was_deleted(kb):
    document = add(kb, mail(("规定.csv", TABLE)))
    index_all(kb)
    document_delete(Document.objects.get(source="退货.eml › 规定.csv"))
    document_requeue(document)
    index_all(kb)
    assert sources(kb) == {"退货.eml": "ready"}


def test_the_attachments_of_another_file_in_its_place_come_in(kb):
    document = add(kb, mail(("规定.csv", TABLE)))
    index_all(kb)
    with document_held(document) as held:
        file = ContentFile(mail(("新.csv", "a,b\n1,2\n"), body="新的正文。").as_bytes())
        document_replace_file(document=held, file=file, name="新.eml")
    index_all(kb)
    assert list(sources(kb)) == ["新.eml", "退货.eml › 规定.csv", "新.eml › 新.csv"]


def test_attachments_stay_when_their_mail_is_deleted(kb):
    document = add(kb, mail(("规定.csv", TABLE)))
    index_all(kb)
    document_delete(document)
    assert sources(kb) == {"退货.eml › 规定.csv": "ready"}


def test_a_mail_whose_worker_failed_half_way_brings_nothing_twice(kb, monkeypatch):
    document = add(kb, mail(("照片.png", b"\x89PNG"), ("规定.csv", TABLE)))

    def fail(*_args, **_kwargs):
        raise RetrievalError("no model")

    monkeypatch.setattr(indexing, "prepare", fail)
    index_document(document.pk)
    monkeypatch.undo()
    document.refresh_from_db()
    assert (document.status, document.mime) == ("failed", "")
    document_requeue(document)
    index_all(kb)
    assert sources(kb) == {"退货.eml": "ready", "退货.eml › 规定.csv": "ready"}
    batch = IngestBatch.objects.get()
    assert ([note["name"] for note in batch.notes], batch.note_count) == (["退货.eml › 照片.png"], 1)


def test_mails_within_mails_are_read_down_to_a_depth(kb):
    message = mail(("底.txt", "最里面的附件。"), subject="第4层", body="第4层")
    for depth in range(MOST_DEPTH, 0, -1):
        message = mail(("", message), subject=f"第{depth}层", body=f"第{depth}层")
    add(kb, message, "第1层.eml")
    index_all(kb)
    assert [source.rpartition(" › ")[2] for source in sources(kb)] == [f"第{n}层.eml" for n in range(1, 5)]
    [deepest] = Document.objects.filter(source__endswith="第4层.eml")
    assert [remark["code"] for remark in deepest.remarks] == ["attachments_not_read"]
    with override("en"):
        assert "Save its attachments" in remark_sentences(deepest)[0]


def test_an_archive_in_a_mail_is_unpacked_and_counts_no_mail(kb):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("里.eml", mail(("底.txt", "底"), subject="里", body="里").as_bytes())
        archive.writestr("b.txt", "乙")
    add(kb, mail(("包.zip", packed.getvalue())))
    index_all(kb)
    assert set(sources(kb)) == {"退货.eml", "里.eml", "b.txt", "里.eml › 底.txt"}
    assert Document.objects.get(source="里.eml › 底.txt").metadata["mail"] == "退货.eml › 里.eml"


def test_archives_in_mails_in_archives_are_unpacked_to_a_depth(kb):
    within = zipped(mail(("一.zip", zipped(mail(subject="底")))))
    add(kb, mail(("二.zip", within)))
    index_all(kb)
    refused = Document.objects.get(knowledge_base=kb, status="failed")
    assert (refused.source, refused.error_code) == ("内.eml › 一.zip", "nested_archive")
    assert sorted(sources(kb)) == sorted(["退货.eml", "内.eml", refused.source])
    document_add(knowledge_base=kb, file=ContentFile(within), name="信.zip", user=kb.owner)
    refused.delete()
    Document.objects.get(source="内.eml").delete()
    index_all(kb)
    assert sorted(Document.objects.values_list("title", flat=True)) == ["底", "退货规则", "退货规则"]


def zipped(message):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as target:
        target.writestr("内.eml", message.as_bytes())
    return stream.getvalue()


def test_more_attachments_than_are_taken_out_are_remarked(kb):
    document = add(kb, mail(*((f"{number}.txt", str(number)) for number in range(501))))
    index_document(document.pk)
    document.refresh_from_db()
    assert (document.status, Document.objects.filter(knowledge_base=kb).count()) == ("ready", 1)
    with override("en"):
        assert "more than 500 attachments" in remark_sentences(document)[0]


def test_small_mails_without_attachments_are_indexed_together(kb):
    plain = [add(kb, mail(body=f"第{number}封。"), f"{number}.eml") for number in range(3)]
    other = add(kb, mail(("规定.csv", TABLE)), "b.eml")
    assert index_documents([*(each.pk for each in plain), other.pk]) == [other.pk]
    assert Document.objects.filter(status="ready").count() == 3


def test_what_a_curator_says_of_a_mail_is_above_what_the_mail_says_and_what_is_taken_away_stays_away(kb):
    document = add(kb, mail(), metadata={"from": "李四", "year": 2024})
    index_all(kb)
    document.refresh_from_db()
    assert document.metadata == {"from": "李四", "year": 2024}
    stale = Document.objects.select_related("knowledge_base").get(pk=document.pk)
    Document.objects.filter(pk=document.pk).update(metadata={"from": "李四"})
    indexing._finish(indexing.DocumentBatch([stale], None), [stale])
    document.refresh_from_db()
    assert document.metadata == {"from": "李四"}
