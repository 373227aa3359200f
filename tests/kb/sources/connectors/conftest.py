import pytest


@pytest.fixture
def web():
    from tests.web_server import WebServer

    with WebServer() as server:
        yield server
