"""Real PostgreSQL and Redis for every test: those of DATABASE_URL and REDIS_URL, else embedded ones of the tests' own."""

import os
import shutil
import sys
import tempfile
import uuid
from collections import Counter
from math import inf

import pytest
from hypothesis import HealthCheck, settings as hypothesis_settings

from tests import chroma_server

# A busy machine may pause a process for seconds, which says nothing of an example. A run tries what the run before has tried;
# `pytest --hypothesis-profile=search` looks further.
hypothesis_settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.register_profile(
    "search", deadline=None, derandomize=False, max_examples=2_000, suppress_health_check=list(HealthCheck)
)
hypothesis_settings.load_profile("tests")


def pytest_configure(config):
    os.environ["HF_HUB_OFFLINE"] = "1"
    # The processes of a run share the cores, and threads of OpenMP wait for each other by working.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("ZHIKU_LOCAL", "true")  # also on servers of DATABASE_URL: no test has TLS unless it says so
    os.environ.setdefault("RERANKER_MODEL", "")  # the default one is not on the disk, so every search would be degraded
    for kind in ("", "ASK_", "UPLOAD_", "FAILURE_"):  # tests of limits set their own, and no other is to come upon one
        os.environ.setdefault(f"API_{kind}RATE_LIMIT", "")
    for kind in ("", "NAME_"):
        os.environ.setdefault(f"LOGIN_{kind}RATE_LIMIT", "")
    for kind in ("", "ASK_"):
        os.environ.setdefault(f"VISITOR_{kind}RATE_LIMIT", "")
    from config import embedded

    if not os.environ.get("DATABASE_URL"):  # the workers of xdist inherit what the controller has started
        os.environ["ZHIKU_DATA_DIR"] = tempfile.mkdtemp(prefix="zhiku-tests-")
        embedded.ensure(durable=False)
    # Only now, since the settings read the URLs of what has just been started.
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
    import django

    django.setup()
    from django.conf import settings

    from kb.providers.usage import counting

    counting.FLUSH_SECONDS = None  # rows of a thread's own would outlive the transaction of their test
    # Slow ones would take most of the time.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    # Redis is as busy as the tests.
    settings.CACHES["bm25"]["OPTIONS"] |= {"SOCKET_CONNECT_TIMEOUT": 5, "SOCKET_TIMEOUT": 5}
    settings.WHITENOISE_AUTOREFRESH = True  # else every client of a test lists all static files first
    _delete_rows_instead_of_flushing()
    from tests import databases

    databases.begin_run()


def _is_superuser():
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('is_superuser')::boolean")
        return cursor.fetchone()[0]


def _delete_rows_instead_of_flushing():
    """After a test that commits, only tables that hold rows are emptied, and content types and permissions stay.

    Django's flush gives each of the sixty tables and their indexes new files, and makes all permissions again. It is
    still what serves a role that is no superuser's, which may not pass over triggers and foreign keys.
    """
    from django.apps import apps
    from django.db import connection, transaction
    from django.test import TransactionTestCase

    from kb.search.services import search_log
    from kb.signals import first_rows

    flush = TransactionTestCase._fixture_teardown

    def empty(test):
        if not _is_superuser():
            return flush(test)
        search_log.flush()
        tables = set(connection.introspection.django_table_names(only_existing=True, include_views=False))
        tables -= {"django_content_type", "auth_permission"}
        with transaction.atomic(), connection.cursor() as cursor:
            # Other threads that the test has left may be about to commit a row, which is waited for.
            cursor.execute(f"LOCK TABLE {', '.join(tables)} IN SHARE ROW EXCLUSIVE MODE")
            cursor.execute(" UNION ALL ".join(f"SELECT '{each}' WHERE EXISTS (SELECT FROM {each})" for each in tables))
            filled = {name for (name,) in cursor.fetchall()}
            # The planner is not to reckon with thousands of dead rows.
            commands = [f"TRUNCATE {name}" for name in filled & {"kb_chunkembedding", "kb_chunkpostings"}]
            commands += [f"DELETE FROM {name}" for name in filled]
            cursor.execute("; ".join(["SET LOCAL session_replication_role = replica", *commands]))
        return first_rows(sender=apps.get_app_config("kb"))

    TransactionTestCase._fixture_teardown = empty


def pytest_make_parametrize_id(val, argname):
    """The bytes of a file hold when it was made, so as an id they would differ between processes that share the tests out."""
    return argname if isinstance(val, bytes) and len(val) > 40 else None


def pytest_collection_modifyitems(items):
    """The longest ones first, so that no process is left alone with them in the end.

    Of several tests with one id only one would run where they are shared out among processes.
    """
    doubled = [node_id for node_id, count in Counter(item.nodeid for item in items).items() if count > 1]
    if doubled:
        raise pytest.UsageError(f"several tests have the id {doubled[0]}")
    items.sort(key=lambda item: item.get_closest_marker("quality") is None)


def _close_chromium():
    if opened := sys.modules.get("tests.browser.chromium"):
        opened.close()


def pytest_unconfigure(config):
    from kb.providers.usage import counting

    counting.forget()  # what is left would wait for a database that is stopped now
    if hasattr(config, "workerinput"):
        return
    from config import embedded
    from tests import databases

    if os.environ.get("ZHIKU_EMBEDDED"):
        embedded.stop()
        shutil.rmtree(embedded.data_dir())
    else:
        databases.end_run()


@pytest.fixture(scope="session")
def _media(tmp_path_factory):
    return tmp_path_factory.mktemp("media")


@pytest.fixture(autouse=True)
def _own_files(settings, _media):
    """A folder that is made when a test stores its first file."""
    settings.MEDIA_ROOT = _media / uuid.uuid4().hex


@pytest.fixture(autouse=True)
def _fresh_process_state(request, monkeypatch):
    """What a process or a thread keeps must not outlive a test: a request leaves its language behind in the thread.

    Redis does outlive it, so each test has keys of its own there: vectors and responses of one never serve another.
    """
    from django.utils import translation

    from kb.base import cache as query_caches, models
    from kb.index import bm25
    from kb.providers import endpoints
    from kb.providers.usage import counting
    from kb.search import wiring as conf

    has_database = request.node.get_closest_marker("django_db") or "db" in request.fixturenames
    monkeypatch.setattr(endpoints, "_held", endpoints._Held() if has_database else endpoints._Held(read_at=inf))

    translation.deactivate()
    counting.forget()
    conf._load_tokenizer.cache_clear()
    models.installation_id.cache_clear()
    bm25._shared_cache.cache_clear()
    monkeypatch.setattr(query_caches, "KEY_SPACE", f"test-{uuid.uuid4().hex}")
    query_caches.forget()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """Of all processes of the run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own


@pytest.fixture(scope="session")
def first_start(run_folder):
    from tests.first_start import first_start

    folder = run_folder / "first-start"
    folder.mkdir(exist_ok=True)
    return first_start(folder)


@pytest.fixture
def english():
    """Sentences in English; without it those of a test are in the language of the site."""
    from django.utils import translation

    with translation.override("en"):
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item, nextitem):
    """Builders go on after they have handed out their index, to publish it; the tables must not be emptied under them.

    Chromium is kept for the next file that has tests with it.
    """
    from kb.index import bm25

    if bm25._shared_flights.cache_info().currsize:
        bm25._shared_flights()._executor.shutdown(wait=True)
        bm25._shared_flights.cache_clear()
    yield
    if nextitem is None or (nextitem.path != item.path and "chromium" not in nextitem.fixturenames):
        _close_chromium()


@pytest.fixture(scope="session")
def _milvus_file(tmp_path_factory):
    """Milvus Lite, started once for a test process: its file is open to one process only."""
    from kb.index.mirrors import registry

    yield tmp_path_factory.mktemp("milvus") / "copies.db"
    for each in registry._held.mirrors.values():
        if each.store == "milvus":
            each._client.close()


@pytest.fixture
def milvus(settings, _milvus_file):
    """A Milvus of the tests' own, which knowledge bases may be moved to."""
    settings.MILVUS_URI, settings.STORE_SECONDS = str(_milvus_file), 30.0
    return _fresh_breakers()


@pytest.fixture(scope="session")
def _chroma_server(tmp_path_factory):
    with chroma_server.running(tmp_path_factory.mktemp("chroma")) as url:
        yield url


@pytest.fixture
def chroma(settings, _chroma_server):
    """A ChromaDB of the tests' own, which knowledge bases may be moved to."""
    settings.CHROMA_URL, settings.STORE_SECONDS = _chroma_server, 30.0
    return _fresh_breakers()


@pytest.fixture(scope="session")
def _chroma_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("chroma-embedded")


@pytest.fixture
def embedded_chroma(settings, _chroma_directory):
    """ChromaDB within this process."""
    settings.CHROMA_URL = str(_chroma_directory)
    return _fresh_breakers()


def _fresh_breakers():
    from kb.index.mirrors import registry

    registry._held.breakers.clear()
