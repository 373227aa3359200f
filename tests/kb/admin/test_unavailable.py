import pytest
from django.db import OperationalError, connection
from django.urls import reverse

from tests.factories import make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def out_of_reach():
    """Statements that fail as those of a database that was stopped."""

    def refuse(*_arguments):
        raise OperationalError("terminating connection due to administrator command")

    with connection.execute_wrapper(refuse):
        yield


@pytest.mark.parametrize("name", ["admin:index", "admin:kb_document_changelist", "admin:search_debug"])
def test_a_page_without_a_database_says_when_to_come_back(client, out_of_reach, name):
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = "en"
    client.cookies["sessionid"] = "of-somebody"

    response = client.get(reverse(name))

    assert response.status_code == 503
    assert response.headers["Retry-After"] == "30"
    assert "The database is out of reach" in response.content.decode()
    assert "manage.py doctor" in response.content.decode()


def test_with_its_database_the_page_is_there(client):
    client.force_login(make_user(superuser=True))
    assert client.get(reverse("admin:index")).status_code == 200
