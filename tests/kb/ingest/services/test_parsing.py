"""Documents of a knowledge base that has them read by Docling Serve, from the upload to the chunks."""

import pytest
from django.core.files.base import ContentFile
from django.utils.translation import override

from kb.base.files import local_file
from kb.content.services import knowledge_base_update
from kb.ingest.remote_parsers import protocol, registry
from kb.ingest.services.documents import document_add, remark_sentences
from kb.ingest.services.indexing import index_document, index_documents, outdated_documents
from kb.ingest.services.parsing import read_file
from kb.jobs.leases import LeaseLost
from kb.models import Chunk, Document, KnowledgeBase, Principal
from retrieval.execution import CircuitBreaker
from tests.docling_server import answer, docling_server, new_document, result, task
from tests.factories import make_kb
from tests.kb.ingest.parser.documents import make_pdf, make_xlsx

pytestmark = pytest.mark.django_db

PDF = make_pdf(["内置读取的正文。"])


@pytest.fixture
def server(settings):
    registry.breaker.cache_clear()
    with docling_server() as started:
        settings.DOCLING_SERVE_URL = started.url
        yield started


@pytest.fixture
def kb():
    kb = make_kb()
    KnowledgeBase.objects.filter(pk=kb.pk).update(parser=KnowledgeBase.Parser.DOCLING)
    kb.refresh_from_db()
    return kb


def indexed(kb, data=PDF, name="手册.pdf"):
    document = document_add(knowledge_base=kb, file=ContentFile(data), name=name, user=kb.owner)
    index_document(document.pk)
    document.refresh_from_db()
    assert (document.status, document.error) == ("ready", "")
    return document


def texts(document):
    return list(Chunk.objects.filter(document=document).order_by("position").values_list("text", flat=True))


def test_a_pdf_becomes_what_the_server_makes_of_it(server, kb):
    document = indexed(kb)
    assert "| TH-02 | 36 |" in texts(document)[-1]
    chunk = Chunk.objects.filter(document=document).last()
    assert (chunk.page, chunk.heading_path, document.title, document.remarks) == (2, ["保修"], "手册", [])
    assert not outdated_documents(kb).exists()


def test_what_the_server_is_not_asked_to_read_is_read_here_without_a_remark(server, kb):
    document = indexed(kb, make_xlsx(["型号", "价"], ["TH-01", 399]), "价目.xlsx")
    assert (texts(document), document.remarks) == (["型号: TH-01\n价: 399"], [])
    assert server.asked == []
    assert not outdated_documents(kb).exists()


def test_a_server_that_fails_gives_way_to_the_built_in_reader_with_a_remark(server, kb):
    server.default["submit"] = answer({"detail": "no"}, 401)
    document = indexed(kb)
    assert texts(document) == ["内置读取的正文。"]
    [remark] = document.remarks
    assert (remark["code"], remark["params"]["parser"]) == ("parser_did_not_read", "Docling Serve")
    assert remark["params"]["reason"]["arguments"] == {"status": 401}
    with override("en"):
        assert remark_sentences(document) == [
            "Docling Serve did not read this document, so the built-in reader did: it answered with HTTP 401. "
            "Once it works, process the document again."
        ]


def test_a_document_that_was_read_here_instead_counts_as_outdated_until_it_is_read_again(server, kb):
    server.script["submit"].append(task("failure"))
    document = indexed(kb)
    assert list(outdated_documents(kb)) == [document]
    Document.objects.filter(pk=document.pk).update(status=Document.Status.PENDING)
    index_document(document.pk)
    document.refresh_from_db()
    assert (document.remarks, list(outdated_documents(kb))) == ([], [])
    assert "| TH-02 | 36 |" in texts(document)[-1]


@pytest.mark.parametrize(
    ("body", "reason"),
    [(answer(b"{}"), protocol.EMPTY), (answer(b"<html>"), protocol.MALFORMED), (answer(result(new_document())), protocol.EMPTY)],
)  # fmt: skip
def test_an_answer_that_is_no_document_gives_way_too(server, kb, body, reason):
    server.default["result"] = body
    document = indexed(kb)
    assert (texts(document), document.remarks[0]["params"]["reason"]) == (["内置读取的正文。"], reason.as_dict())


def test_without_an_address_the_remark_says_so(kb, settings):
    settings.DOCLING_SERVE_URL = ""
    assert indexed(kb).remarks[0]["params"]["reason"] == protocol.NOT_SET_UP.as_dict()


def test_a_server_that_fails_repeatedly_rests_and_is_tried_again(server, kb, monkeypatch):
    now = [0.0]
    guard = CircuitBreaker(failures_to_open=2, seconds_open=15.0, clock=lambda: now[0])
    monkeypatch.setattr("kb.ingest.services.parsing.breaker", lambda *_: guard)
    server.default["submit"] = answer({}, 401)
    for number in range(2):
        indexed(kb, PDF + b"\n%" + str(number).encode(), f"{number}.pdf")
    asked = len(server.asked)
    assert indexed(kb, PDF + b"\n%a", "a.pdf").remarks[0]["params"]["reason"] == protocol.RESTING.as_dict()
    assert len(server.asked) == asked
    now[0] = 16.0
    server.default["submit"] = task("pending")
    assert indexed(kb, PDF + b"\n%b", "b.pdf").remarks == []
    assert indexed(kb, PDF + b"\n%c", "c.pdf").remarks == []


def test_a_file_that_the_server_cannot_convert_is_no_reason_to_rest(server, kb):
    server.default["submit"] = task("failure")
    for number in range(4):
        document = indexed(kb, PDF + b"\n%" + str(number).encode(), f"{number}.pdf")
        assert document.remarks[0]["params"]["reason"] == protocol.REFUSED.as_dict()


def test_a_document_that_is_taken_away_meanwhile_is_given_up(server, kb):
    document = document_add(knowledge_base=kb, file=ContentFile(PDF), name="a.pdf", user=kb.owner)

    def give_up():
        if "poll" in server.asked:
            raise LeaseLost

    server.default["poll"] = task("started")
    with local_file(document.file) as path, pytest.raises(LeaseLost):
        read_file(path, "a.pdf", kb, on_wait=give_up)
    assert server.asked == ["submit", "poll"]


def test_small_documents_wait_for_a_task_of_their_own(server, kb):
    document = document_add(knowledge_base=kb, file=ContentFile(PDF), name="a.pdf", user=kb.owner)
    assert index_documents([document.pk]) == [document.pk]
    assert server.asked == []


def test_a_knowledge_base_that_changes_its_parser_has_outdated_documents(server):
    kb = make_kb()
    document = indexed(kb)
    knowledge_base_update(kb, by=Principal(kb.owner), parser="docling")
    assert list(outdated_documents(kb)) == [document]
