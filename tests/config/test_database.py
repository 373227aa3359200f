import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

pytestmark = pytest.mark.django_db


def test_statements_are_not_kept_for_debug_alone(settings):
    settings.DEBUG = True
    connection.queries_log.clear()

    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")

    assert connection.queries == []


def test_statements_are_kept_for_those_who_ask():
    with CaptureQueriesContext(connection) as kept, connection.cursor() as cursor:
        cursor.execute("SELECT %s", ["asked"])

    assert [each["sql"] for each in kept] == ["SELECT 'asked'"]
