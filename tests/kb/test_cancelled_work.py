"""Background work that waits for a silent server ends when its row is deleted or cancelled, and nothing is said against the server."""

import itertools
import threading
from functools import partial

import pytest
from django.core.files.base import ContentFile

from kb import tasks
from kb.graph.services.writing import extract_document, graph_request
from kb.index.services.reembedding import reembedding_cancel, reembedding_start
from kb.ingest.services.documents import document_add, document_delete
from kb.ingest.services.indexing import index_document
from kb.ingest.services.pictures import describe_pictures
from kb.models import Document, KnowledgeBase, ModelDownload, Picture, Reembedding
from kb.providers.downloads.services import download_cancel, download_run, download_start
from kb.providers.embedding_models import generator, vision_model
from tests.factories import make_document, make_kb, make_user
from tests.hub import reachable
from tests.kb.ingest.parser.documents import data_address, make_picture
from tests.silent_server import SilentServer, ends_when_cancelled

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("english")]
MODEL = "BAAI/bge-small-zh-v1.5"
_numbers = itertools.count(1)


@pytest.fixture
def silent(settings):
    settings.LLM_BASE_URL_IS_SET, settings.LLM_API_KEY = True, ""
    settings.LLM_SECONDS = 300.0
    with SilentServer() as server:
        settings.LLM_BASE_URL, settings.LLM_MODEL = f"{server.url}/v1", f"silent-{next(_numbers)}"
        yield server


def add(kb, text, name):
    return document_add(knowledge_base=kb, file=ContentFile(text.encode()), name=name, user=kb.owner)


def is_trusted(model):
    """Whether nothing counts against a model's server."""
    return model._guard.breaker._failures == 0


@pytest.fixture
def kb():
    return make_kb(language="en")


def test_a_reading_for_the_graph(kb, silent, monkeypatch):
    document = make_document(kb, "The lamp is made by Acme.", "The lock is made by Acme.")
    graph_request(document)

    def delete():
        Document.objects.filter(pk=document.pk).delete()

    assert ends_when_cancelled(monkeypatch, silent.asked, extract_document, delete, document.pk)
    assert silent.is_left()
    assert is_trusted(generator())


def with_picture(kb, settings):
    """A document with a picture, which a model is to describe."""
    text = f"# Plant\n\nThe pump.\n\n![A pump]({data_address(make_picture(1))})"
    document = add(kb, text, "plant.md")
    index_document(document.pk)
    settings.VISION_MODEL = f"seer-{next(_numbers)}"
    return document


def test_the_description_of_a_picture(kb, silent, settings, monkeypatch):
    document = with_picture(kb, settings)

    def delete():
        document_delete(document)

    assert ends_when_cancelled(monkeypatch, silent.asked, describe_pictures, delete, document.pk)
    assert silent.is_left()
    assert is_trusted(vision_model())


def test_a_picture_that_is_replaced_meanwhile_is_no_fault_of_the_model(kb, silent, settings, monkeypatch):
    document = with_picture(kb, settings)
    delete = Picture.objects.filter(document=document).delete
    assert ends_when_cancelled(monkeypatch, silent.asked, describe_pictures, delete, document.pk)
    document.refresh_from_db()
    assert not document.remarks


def test_the_vectors_of_a_document(silent, settings, monkeypatch):
    settings.EMBEDDING_BASE_URL = f"{silent.url}/v1"
    kb = make_kb(language="en", embedding_model="openai:silent")
    document = add(kb, "The lamp.", "lamp.md")

    def delete():
        document_delete(document)

    assert ends_when_cancelled(monkeypatch, silent.asked, index_document, delete, document.pk)
    assert silent.is_left()


@pytest.mark.parametrize("ends", ["deleted", "cancelled"])
def test_the_vectors_of_another_model(silent, settings, monkeypatch, ends):
    settings.EMBEDDING_BASE_URL = f"{silent.url}/v1"
    kb = make_kb(language="en")
    make_document(kb, "The lamp is made by Acme.")
    reembedding_start(kb, "openai:silent")
    cancel = {"deleted": KnowledgeBase.objects.filter(pk=kb.pk).delete, "cancelled": partial(reembedding_cancel, kb)}
    assert ends_when_cancelled(monkeypatch, silent.asked, tasks.reembed_knowledge_base, cancel[ends], kb.pk)
    assert silent.is_left()
    assert [row.status for row in Reembedding.objects.all()] == ["cancelled"] * (ends == "cancelled")


def test_a_parser_elsewhere(kb, silent, settings, monkeypatch):
    settings.DOCLING_SERVE_URL = silent.url
    KnowledgeBase.objects.filter(pk=kb.pk).update(parser=KnowledgeBase.Parser.DOCLING)
    kb.refresh_from_db()
    document = add(kb, "<p>The lamp.</p>", "lamp.html")

    def delete():
        document_delete(document)

    assert ends_when_cancelled(monkeypatch, silent.asked, index_document, delete, document.pk)
    assert silent.is_left()


class TestDownloads:
    def download(self, monkeypatch, asked):
        row = download_start(make_user("root", superuser=True), MODEL)

        def cancel():
            assert download_cancel(row.created_by, row)

        assert ends_when_cancelled(monkeypatch, asked, download_run, cancel, row.pk)
        row.refresh_from_db()
        assert (row.status, row.error) == (ModelDownload.Status.CANCELLED, "")

    def test_a_hub_that_does_not_say_what_it_has(self, silent, settings, monkeypatch, tmp_path):
        with reachable(monkeypatch, tmp_path / "cache", {}):
            settings.HF_ENDPOINT = silent.url
            self.download(monkeypatch, silent.asked)
        assert silent.is_left()

    def test_a_file_of_which_nothing_comes(self, settings, monkeypatch, tmp_path):
        files = {"config.json": b"{}", "model.safetensors": b"weights"}
        with reachable(monkeypatch, tmp_path / "cache", {MODEL: files}) as hub:
            settings.HF_ENDPOINT = hub.url
            asked = hub.hung["model.safetensors"] = threading.Event()
            self.download(monkeypatch, asked)
