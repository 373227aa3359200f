import threading
from contextlib import ExitStack

import pytest
from django.db import Error, connection

from kb.models import IdempotencyKey
from kb.web import services as idempotency
from kb.web.services import answer_once
from tests.factories import make_user
from tests.interleaving import PATIENCE
from tests.outage import database_out_of_reach

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def asked():
    yield IdempotencyKey(user=make_user("owner"), credential="", key="upload-1", fingerprint="0" * 64)
    connection.close()  # so that the tests to come have one that works, whatever became of this


def lose_the_connection():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        cursor.execute("SELECT 1")


def test_a_request_that_lost_its_connection_may_be_sent_again(asked):
    with pytest.raises(Error):
        answer_once(asked, lose_the_connection)

    assert answer_once(asked, lambda: (201, "{}")) is None
    assert IdempotencyKey.objects.filter(status=201, body="{}").exists()


def test_a_request_that_lost_the_database_may_be_sent_again_as_soon_as_that_is_there(asked, monkeypatch):
    monkeypatch.setattr(idempotency, "RETRY_SECONDS", 0.1)
    with ExitStack() as outage:

        def lose_the_database():
            outage.enter_context(database_out_of_reach())
            # No longer than that: the database that is there again may take its time.
            outage.enter_context(monkeypatch.context()).setattr(connection.pool, "timeout", 1)
            IdempotencyKey.objects.count()

        with pytest.raises(Error):
            answer_once(asked, lose_the_database)
        [trying_again] = (thread for thread in threading.enumerate() if thread.name == "idempotency")

    trying_again.join(PATIENCE)
    assert not trying_again.is_alive()
    assert not IdempotencyKey.objects.exists()
    assert answer_once(asked, lambda: (201, "{}")) is None
    assert IdempotencyKey.objects.filter(status=201, body="{}").exists()
