"""Django is imported inside the fixtures: pytest loads this file before the settings can be."""

import pytest


@pytest.fixture(autouse=True)
def api_settings(settings):
    settings.LANGUAGE_CODE = "en"
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the default is slow by design


@pytest.fixture(autouse=True)
def settled(db):
    """Logs are written and indexes are published in the background: neither may outlive its test's database."""
    from kb.search.services import search_log
    from tests.kb.index.searching import settle

    yield
    search_log.flush()
    settle()


@pytest.fixture
def owner():
    from tests import factories

    return factories.make_user("owner")


@pytest.fixture
def kb(owner):
    from tests import factories

    return factories.make_kb(owner, "handbook")


@pytest.fixture
def document(kb):
    from tests import factories

    return factories.make_document(
        kb,
        "工作满一年的员工每年享有五天带薪年假。",
        "Employees may work from home on two days a week.",
        title="员工手册",
        tags=["人事"],
        metadata={"author": "Li"},
    )


@pytest.fixture
def chunk(document):
    return document.chunks.get(position=0)


@pytest.fixture
def client_of(anonymous):
    """Makes a client with a session of a user."""

    def make(user):
        client = type(anonymous)()
        client.force_login(user)
        return client

    return make


@pytest.fixture
def client(client_of, owner):
    return client_of(owner)


@pytest.fixture
def client_with(anonymous):
    """Makes a client that sends an API key."""

    def make(secret):
        return type(anonymous)(headers={"Authorization": f"Bearer {secret}"})

    return make


@pytest.fixture
def anonymous():
    from rest_framework.test import APIClient

    return APIClient()
