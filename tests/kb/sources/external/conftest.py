import pytest

# Imported late: this file is read before the settings are there.


@pytest.fixture(autouse=True)
def _fresh_sources():
    """What one test has read or given up must not serve or be missing in another."""
    from kb.search import wiring
    from kb.sources.connectors import live, live as live_search
    from kb.sources.external.providers import vertex

    live.CACHE.clear()
    live_search._indexed.cache_clear()
    wiring._breaker.cache_clear()
    wiring._share.cache_clear()
    vertex._client.cache_clear()


@pytest.fixture(autouse=True)
def _patience(settings):
    """What reads a feed or a page is a process of its own, which may start late."""
    settings.RETRIEVAL = {**settings.RETRIEVAL, "external_timeout_ms": 30_000}
    settings.LATENCY_BUDGET_MS = 40_000


@pytest.fixture
def web(settings):
    from tests.web_server import WebServer

    with WebServer() as server:
        settings.WEB_ALLOWED_HOSTS = ["127.0.0.1"]
        yield server


@pytest.fixture
def service(settings):
    from kb.sources.external.providers import vertex
    from tests.vertex_server import VertexServer

    with VertexServer() as running:
        settings.EXTERNAL_PROVIDERS = [vertex.KIND]
        settings.VERTEX_PROJECTS = ["library"]
        settings.VERTEX_ENDPOINTS = [running.endpoint]
        yield running


@pytest.fixture
def owner(db):
    from tests.factories import make_user

    return make_user("owner")


@pytest.fixture
def kb(owner):
    from tests.factories import make_document, make_kb

    kb = make_kb(owner, "library", language="en")
    make_document(kb, "The archive opens at nine and closes at five.", title="Hours")
    make_document(kb, "Readers may borrow four books for a month.", title="Loans")
    return kb
