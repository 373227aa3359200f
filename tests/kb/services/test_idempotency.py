import time
from contextlib import ExitStack, contextmanager

import psycopg
import pytest
from django.db import Error, connection

from kb.models import IdempotencyKey
from kb.services import idempotency
from kb.services.idempotency import Answer, Asked, answer_once
from tests.factories import make_user

KEYS = {"host", "port", "user", "password"}

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(idempotency, "RETRY_SECONDS", 0.1)
    return Asked(user=make_user("owner"), credential="", key="upload-1", fingerprint="0" * 64)


def lose_the_connection():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def test_a_request_that_lost_its_connection_may_be_sent_again(asked):
    with pytest.raises(Error):
        answer_once(asked, lose_the_connection)
    connection.close()

    assert answer_once(asked, lambda: Answer(201, "{}")) == (Answer(201, "{}"), False)


@contextmanager
def database_out_of_reach():
    """It ends all connections and takes none."""
    ours = connection.settings_dict["NAME"]
    parameters = {key: value for key, value in connection.get_connection_params().items() if key in KEYS}
    with psycopg.connect(**parameters | {"dbname": "postgres"}, autocommit=True) as administrator:
        administrator.execute(f'ALTER DATABASE "{ours}" ALLOW_CONNECTIONS false')
        administrator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [ours])
        try:
            yield
        finally:
            administrator.execute(f'ALTER DATABASE "{ours}" ALLOW_CONNECTIONS true')


def test_a_request_that_lost_the_database_may_be_sent_again_as_soon_as_that_is_there(asked):
    with ExitStack() as outage:

        def lose_the_database():
            outage.enter_context(database_out_of_reach())
            IdempotencyKey.objects.count()

        with pytest.raises(Error):
            answer_once(asked, lose_the_database)
        connection.close()

    assert IdempotencyKey.objects.filter(status=None).exists()
    deadline = time.monotonic() + 30
    while IdempotencyKey.objects.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert answer_once(asked, lambda: Answer(201, "{}")) == (Answer(201, "{}"), False)
