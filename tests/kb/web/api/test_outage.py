"""A database that goes away under a caller with a session, whom only the database can tell."""

import pytest
from django.db import OperationalError, connection

from tests.factories import make_user

pytestmark = pytest.mark.django_db


def away(*_):
    raise OperationalError("connection refused")


@pytest.fixture
def browser(client_of):
    browser = client_of(make_user())
    browser.raise_request_exception = False
    return browser


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_session_is_answered_503(browser, method):
    with connection.execute_wrapper(away):
        answer = getattr(browser, method)("/api/v1/knowledge-bases/", {})

    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert int(answer.headers["Retry-After"]) > 0


def test_a_form_of_the_admin_is_answered_503(browser):
    with connection.execute_wrapper(away):
        answer = browser.post("/admin/kb/knowledgebase/add/", {})

    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0


def test_what_needs_no_session_asks_for_none(browser):
    with connection.execute_wrapper(away):
        assert browser.get("/api/v1/health/").status_code == 200
