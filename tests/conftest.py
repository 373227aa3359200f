"""Real PostgreSQL and Redis for every test: those of DATABASE_URL and REDIS_URL, else embedded ones of the tests' own."""

import os
import shutil
import tempfile
import uuid

import pytest


def pytest_configure(config):
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("DEBUG", "true")
    os.environ.setdefault("RERANKER_MODEL", "")  # the default one is not on the disk, so every search would be degraded
    from config import embedded

    if not os.environ.get("DATABASE_URL"):  # the workers of xdist inherit what the controller has started
        os.environ["ZHIKU_DATA_DIR"] = tempfile.mkdtemp(prefix="zhiku-tests-")
        embedded.ensure(durable=False)
    # Only now, since the settings read the URLs of what has just been started.
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
    import django

    django.setup()
    from django.conf import settings

    settings.PASSWORD_HASHERS = [
        "django.contrib.auth.hashers.MD5PasswordHasher"
    ]  # slow ones would take most of the time


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput") and os.environ.get("ZHIKU_EMBEDDED"):
        from config import embedded

        embedded.stop()
        shutil.rmtree(embedded.data_dir())


@pytest.fixture(autouse=True)
def _own_files(settings, tmp_path):
    settings.MEDIA_ROOT = tmp_path / "media"


@pytest.fixture(autouse=True)
def _fresh_process_state(monkeypatch):
    """What a process or a thread keeps must not outlive a test: a request leaves its language behind in the thread.

    Redis does outlive it, so each test has keys of its own there: vectors and responses of one never serve another.
    """
    from django.utils import translation

    from kb import conf
    from kb.stores import bm25, installation, query_caches

    translation.deactivate()
    conf._load_tokenizer.cache_clear()
    installation._stored_id.cache_clear()
    bm25._shared_cache.cache_clear()
    monkeypatch.setattr(query_caches, "KEY_SPACE", f"test-{uuid.uuid4().hex}")
    query_caches.forget()


@pytest.fixture
def english():
    """Sentences in English; without it those of a test are in the language of the site."""
    from django.utils import translation

    with translation.override("en"):
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown():
    """Builders go on after they have handed out their index, to publish it; the tables must not be emptied under them."""
    from kb.stores import bm25

    if bm25._shared_flights.cache_info().currsize:
        bm25._shared_flights()._executor.shutdown(wait=True)
        bm25._shared_flights.cache_clear()
