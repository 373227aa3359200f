import pytest

# The factories are imported late: this file is read before the test services, and so the settings, are there.


@pytest.fixture
def curator(db):
    """A staff user without any of Django's model permissions, logged in by `client`."""
    from tests.factories import make_user

    return make_user("curator")


@pytest.fixture
def client(client, curator):
    client.force_login(curator)
    return client


@pytest.fixture
def kb(curator):
    from tests.factories import make_kb

    return make_kb(curator, "legal")


@pytest.fixture
def document(kb):
    from tests.factories import make_document

    return make_document(kb, "违约金过高的，可以请求减少。", "诉讼时效期间为三年。", title="Contracts")


@pytest.fixture
def foreign(db):
    """A document of a stranger's knowledge base."""
    from tests.factories import make_document, make_kb, make_user

    return make_document(make_kb(make_user("stranger"), "stranger-base"), "Secret text.", title="stranger-title")
