import pytest


@pytest.fixture
def kb():
    from tests.factories import make_kb

    return make_kb(language="en")


@pytest.fixture
def web():
    from tests.web_server import WebServer

    with WebServer() as server:
        yield server
