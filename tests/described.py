"""How schemathesis tries a description: as a server runs the application, in the connection of the test."""

import pytest
from django.core.signals import request_finished, request_started
from django.db import close_old_connections

from config.wsgi import application

# What is valid by itself may still be refused for what it is about: a name that is taken, a text that says nothing.
REFUSED = ["400", "401", "403", "404", "409", "412", "413", "415", "422", "503"]
ANSWERED = ["2xx", "304", *REFUSED]
CONFIG = {
    "generation": {
        "deterministic": True,
        "max-examples": 3,
        "allow-x00": False,
        "codec": "utf-8",
        "no-shrink": True,
        "database": "none",
    },
    "phases": {"stateful": {"enabled": False}},
    "checks": {
        "positive_data_acceptance": {"expected-statuses": ANSWERED},
        "negative_data_rejection": {"expected-statuses": [*REFUSED, "405", "406", "429"]},
    },
}


def closing(environ, start_response):
    """The application as a server runs it, which closes every response; schemathesis leaves that to the garbage."""
    answer = application(environ, start_response)
    try:
        return [b"".join(answer)]
    finally:
        answer.close()


@pytest.fixture(autouse=True)
def one_connection(settings):
    """The requests share the connection, and so the transaction, of the test; nothing outside is asked."""
    settings.SECURE_SSL_REDIRECT = False
    # A manifest may be long, and whoever has no key is told that first (test_body_limit.py).
    settings.ANONYMOUS_BODY_BYTES = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)
