import sys
from datetime import timedelta
from pathlib import Path

import pytest
from celery import current_app
from django.db import ConnectionHandler, connection
from django.db.models import F
from django.utils import timezone

from config.celery import warn_of_an_open_sandbox
from kb.base.findings import Finding, State
from kb.index.services.tokenizing import read_settings, tokenizer_change
from kb.ingest.parser.parsed import ParseError
from kb.ingest.services.batches import batch_resume
from kb.ingest.services.documents import document_requeue
from kb.models import Document, IngestBatch, Source
from kb.operations.services.health import health
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db
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
    """A database of the tests' Redis that no worker listens to: those of tests/deployment have the last eight."""
    broker(current_app.conf.broker_url.rsplit("/", 1)[0] + "/7")


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


def test_no_worker_for_long_work_is_degraded_and_says_what_stands_still(quiet_broker):
    finding = health.long_worker()
    assert finding.state is State.DEGRADED
    assert "sources" in finding.detail
    assert "-Q long,moves" in finding.remedy


@pytest.mark.parametrize("queues", [["celery", "documents"], ["long", "moves"]])
def test_a_worker_counts_for_the_queues_that_it_takes_from(queues, monkeypatch):
    """A worker of the release before takes no long work."""
    replies = {"celery@host": [{"name": name} for name in queues]}
    monkeypatch.setattr("celery.app.control.Inspect.active_queues", lambda _inspect: replies)
    found = {health.worker: "documents" in queues, health.long_worker: "long" in queues}
    assert {check: check().state is State.OK for check in found} == found


def test_without_a_broker_no_worker_answers(broker):
    broker(NOBODY)
    assert health.workers(health.LONG_QUEUE) == []


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


def test_git_is_missed_only_where_a_source_needs_it(monkeypatch, tmp_path):
    assert health.git_programs().detail == "git, ssh installed"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert health.git_programs().state is State.OK
    Source.objects.create(knowledge_base=make_kb(), name="handbook", kind=Source.Kind.GIT)
    finding = health.git_programs()
    assert finding.state is State.DEGRADED
    assert "handbook" in finding.detail
    assert "apt install git openssh-client" in finding.remedy


def test_counts_documents():
    make_document(make_kb(), "保修")
    assert health.documents() == Finding("documents", State.OK, "1 in all, 0 failed, 0 stuck")


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
    Document.objects.update(waiting_since=F("waiting_since") - timedelta(hours=1))
    assert "1 stuck" in health.documents().detail


def test_a_document_that_is_to_be_processed_once_more_begins_to_wait_then():
    document = make_document(make_kb(), "保修")
    long_ago = timezone.now() - timedelta(days=9)
    Document.objects.update(created_at=long_ago, waiting_since=long_ago)
    document_requeue(document)
    assert health.documents().state is State.OK


def test_a_document_of_a_paused_upload_is_not_stuck():
    kb = make_kb()
    batch = IngestBatch.objects.create(knowledge_base=kb, paused=True)
    make_document(kb, "保修")
    Document.objects.update(
        status=Document.Status.PENDING, batch=batch, waiting_since=timezone.now() - timedelta(days=1)
    )
    assert health.documents().state is State.OK
    batch_resume(batch)
    assert health.documents().state is State.OK


def test_a_document_whose_worker_was_lost_long_ago_is_stuck():
    make_document(make_kb(), "保修")
    Document.objects.update(status=Document.Status.PROCESSING, lease_until=timezone.now() - timedelta(hours=1))
    assert "manage.py serve" in health.documents().remedy


@pytest.mark.parametrize(
    ("environment", "local", "state"),
    [("x" * 60, False, State.OK), ("", True, State.OK), ("", False, State.DEGRADED)],
)
def test_tells_where_the_secret_key_is_from(settings, monkeypatch, environment, local, state):
    monkeypatch.setenv("SECRET_KEY", environment)
    settings.LOCAL = local
    finding = health.secret_key()
    assert finding.state is state
    assert "x" * 60 not in finding.detail


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp and Landlock are Linux's")
def test_parsers_are_held_by_seccomp_and_landlock():
    assert health.parser_sandbox().state is State.OK
    assert health.parser_sandbox in health.INDEPENDENT


@pytest.mark.parametrize(
    ("held", "named"),
    [
        ((False, True), "libseccomp2"),
        ((True, False), "lsm="),
        ((False, False), "libseccomp2"),
    ],
)
def test_parsers_that_the_host_cannot_hold_are_degraded(monkeypatch, held, named):
    monkeypatch.setattr(health, "confinement", lambda: held)
    finding = health.parser_sandbox()
    assert finding.state is State.DEGRADED
    assert named in finding.remedy


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp and Landlock are Linux's")
def test_data_among_installed_packages_is_degraded(settings):
    settings.DATA_DIR = Path(pytest.__file__).resolve().parent / ".data"
    finding = health.parser_sandbox()
    assert finding.state is State.DEGRADED
    assert "ZHIKU_DATA_DIR" in finding.remedy


def test_parsers_that_do_not_start_are_broken(monkeypatch):
    def fail():
        raise ParseError("parser_crashed")

    monkeypatch.setattr(health, "confinement", fail)
    assert health.parser_sandbox().state is State.BROKEN


def test_a_worker_warns_of_an_open_sandbox(monkeypatch, caplog):
    monkeypatch.setattr(health, "confinement", lambda: (False, True))
    warn_of_an_open_sandbox()
    assert "libseccomp2" in caplog.text
