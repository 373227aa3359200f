import pytest


@pytest.fixture
def web():
    from tests.web_server import WebServer

    with WebServer() as server:
        yield server


@pytest.fixture
def tls_web():
    """A server with a certificate for named.example.org, and a context that trusts it."""
    import ssl

    from tests.web_server import CERTIFICATE, WebServer

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    with WebServer(tls=context) as web:
        yield web, ssl.create_default_context(cafile=str(CERTIFICATE))
