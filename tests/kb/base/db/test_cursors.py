"""Cursors that bind on the server and answer in binary."""

import pytest
from django.db import DataError, connection, transaction

from kb.base.db.transactions import binary_cursor, streaming_cursor, untimed_cursor

pytestmark = pytest.mark.django_db(transaction=True)

ONE_DIVIDED = "SELECT 1 / (n - 5) FROM generate_series(1, 9) n"


def timeout():
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        return cursor.fetchone()[0]


@pytest.fixture
def impatient():
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '7s'")
        yield
        cursor.execute("SET statement_timeout = 0")


def test_bytes_go_there_and_back_as_they_are():
    payload = bytes(range(256)) * 5_000
    with binary_cursor() as cursor:
        row = cursor.execute("SELECT %s, length(%s)", [payload, payload], binary=True).fetchone()
    assert row == (payload, len(payload))


def test_an_error_of_the_driver_is_one_of_djangos():
    with pytest.raises(DataError, match="division by zero"), binary_cursor() as cursor:
        cursor.execute(ONE_DIVIDED)


def test_the_timeout_is_lifted_for_the_transaction_only(impatient):
    with untimed_cursor() as cursor:
        during = cursor.execute("SHOW statement_timeout").fetchone()
    assert (during, timeout()) == (("0",), "7s")


def test_a_stream_brings_all_rows_however_many_come_at_a_time(impatient):
    with streaming_cursor(3) as cursor:
        cursor.execute("SELECT n, convert_to(n::text, 'UTF8') FROM generate_series(1, %s) n", [10], binary=True)
        rows = list(cursor)
    assert rows == [(n, str(n).encode()) for n in range(1, 11)]
    assert timeout() == "7s"


def test_a_stream_that_breaks_leaves_a_connection_that_works():
    with pytest.raises(DataError, match="division by zero"), transaction.atomic(), streaming_cursor(2) as cursor:
        list(cursor.execute(ONE_DIVIDED))
    assert timeout() == "0"


def test_a_stream_can_be_left_early():
    with streaming_cursor(2) as cursor:
        first = cursor.execute("SELECT n FROM generate_series(1, 9) n").fetchone()
    assert (first, timeout()) == ((1,), "0")
