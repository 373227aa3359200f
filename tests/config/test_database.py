import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.outage import database_out_of_reach

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


@pytest.mark.django_db(transaction=True)
def test_a_restart_of_postgresql_costs_no_request_once_it_is_there_again():
    connection.ensure_connection()
    connection.close()  # it waits in the pool

    with database_out_of_reach():
        pass

    with connection.cursor() as cursor:
        assert cursor.execute("SELECT 1").fetchone() == (1,)
