"""Each file ends as failed with a sentence, within limits, and the worker goes on."""

import base64
import hashlib
import resource
from pathlib import Path

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage

from kb.base.errors import Rejected
from kb.ingest.parser.parse import is_readable_head
from kb.ingest.parser.sandbox import Limits, parse_file
from kb.ingest.services.documents import HEAD_BYTES, document_add
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, Document
from tests.factories import make_kb
from tests.kb.ingest.parser.hostile import HOSTILE, MIB

pytestmark = [pytest.mark.django_db, pytest.mark.sandbox]


@pytest.fixture(autouse=True)
def _limits(settings):
    settings.PARSE_SECONDS, settings.PARSE_MEMORY_BYTES = 60, 1024 * MIB


def test_there_are_forty_hostile_files():
    assert len(HOSTILE) >= 40


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_fails_with_a_sentence_and_the_worker_lives(name):
    filename, make, codes = HOSTILE[name]
    kb = make_kb()
    document = _stored(kb, filename, make())
    index_document(document.pk)
    document.refresh_from_db()
    assert (document.status, document.error_code in codes) == ("failed", True), document.error
    assert "pload" in document.error
    assert not Chunk.objects.filter(document=document).exists()
    assert _is_indexed(kb)


def test_two_hundred_megabytes_of_zeros_cost_the_worker_no_memory(tmp_path):
    kb = make_kb()
    path = default_storage.save("zeros.txt", ContentFile(b""))
    with Path(default_storage.path(path)).open("r+b") as file:
        file.truncate(200 * MIB)
    document = Document.objects.create(knowledge_base=kb, source="zeros.txt", sha256="0" * 64, file=path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    index_document(document.pk)
    document.refresh_from_db()
    assert (document.status, document.error_code) == ("failed", "too_large")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024
    assert _is_indexed(kb)


def _stored(kb, name, data):
    """What is refused at the door, with a sentence too, comes in as a file of an archive does."""
    if is_readable_head(data[:HEAD_BYTES]):
        return document_add(knowledge_base=kb, file=ContentFile(data), name=name, user=kb.owner)
    with pytest.raises(Rejected) as refused:
        document_add(knowledge_base=kb, file=ContentFile(data), name=name, user=kb.owner)
    assert refused.value.code == "unsupported_type"
    document = Document(knowledge_base=kb, source=name, sha256=hashlib.sha256(data).hexdigest(), size=len(data))
    document.file.save(name, ContentFile(data))
    return document


def _is_indexed(kb):
    document = document_add(knowledge_base=kb, file=ContentFile("好的文件。".encode()), name="b.txt", user=kb.owner)
    index_document(document.pk)
    document.refresh_from_db()
    return document.status == Document.Status.READY


LARGE = {
    "a hundred thousand parts": (
        "a.eml",
        b"Subject: p\nContent-Type: multipart/mixed; boundary=x\n\n"
        + b"--x\nContent-Disposition: attachment; filename=a.txt\n\nhi\n" * 100_000,
    ),
    "lines that go on without end": (
        "a.eml",
        b"Subject: p\nContent-Type: text/plain; format=flowed\n\nhi \n" + b"a \n" * 3_000_000,
    ),
    "hundreds of thousands of texts": (
        "a.eml",
        b"Subject: p\nContent-Type: multipart/mixed; boundary=x\n\n" + b"--x\n\nhi\n" * 300_000,
    ),
    "a line of blanks": ("a.txt", b"[0:01] hi\n[0:02] b\n[0:03] c\n[0:04] d" + b" " * MIB + b"x\n" + b" " * MIB + b"x"),
    "comments and no page": ("a.txt", b"<!---->" * 500 + b"hi"),
    "headers of megabytes": (
        "a.eml",
        b"Subject: " + b"=?utf-8?Q?a?= " * 300_000 + b"\nTo: " + b'"a;b" <a@b.c>, ' * 200_000 + b"\n\nhi",
    ),
    "base64 of megabytes": (
        "a.eml",
        b"Subject: b\nContent-Transfer-Encoding: base64\n\n" + base64.encodebytes(b"a line of text\n" * 500_000),
    ),
    "a hundred thousand cues that run backwards": (
        "a.srt",
        b"".join(
            b"%d:%02d:%02d,0 --> 99:00:00,0\nx\n\n" % (n // 3600, n // 60 % 60, n % 60) for n in range(100_000, 0, -1)
        ),
    ),
    "tags without end": ("a.vtt", b"WEBVTT\n\n00:01.000 --> 00:02.000\n" + b"<v " * 500_000 + b"{\\" * 500_000),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_is_large_of_its_kind_is_read_within_the_limits(name, tmp_path):
    filename, data = LARGE[name]
    (tmp_path / "file").write_bytes(data)
    document = parse_file(tmp_path / "file", filename, limits=Limits(memory_bytes=1024 * MIB, seconds=60))
    assert document.sections
