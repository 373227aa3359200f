import time

import pytest
from django.db import Error, connection

from kb.models import IdempotencyKey
from kb.services import idempotency
from kb.services.idempotency import Answer, Asked, answer_once
from tests.factories import make_user

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_request_that_lost_the_database_may_be_sent_again_as_soon_as_that_is_there(monkeypatch):
    monkeypatch.setattr(idempotency, "RETRY_SECONDS", 0.1)
    asked = Asked(user=make_user("owner"), credential="", key="upload-1", fingerprint="0" * 64)

    def lose():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(Error):
        answer_once(asked, lose)
    connection.close()

    deadline = time.monotonic() + 30
    while IdempotencyKey.objects.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert answer_once(asked, lambda: Answer(201, "{}")) == (Answer(201, "{}"), False)
