import threading
import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from kb.ingest.services.documents import DOCUMENTS
from kb.models import Document
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def held(settings):
    """A document in the hands of a worker whose lease is about to end."""
    settings.INGEST_LEASE_SECONDS = 0.3
    document = make_document(make_kb(), "保修")
    lease = uuid.uuid4()
    rows = Document.objects.filter(pk=document.pk)
    rows.update(status="processing", lease=lease, lease_until=timezone.now())
    return rows, lease


def until(rows):
    return rows.values_list("lease_until", flat=True).get()


def renewed_after(rows, moment):
    """Whether the lease comes to end later than at a moment, within the time of some renewals."""
    waiting = threading.Event()
    for _look in range(100):
        if until(rows) > moment:
            return True
        waiting.wait(0.05)
    return False


def test_a_lease_is_renewed_while_its_worker_lives(held):
    rows, lease = held
    before = until(rows)
    with DOCUMENTS.renewing(lease):
        assert renewed_after(rows, before)
        assert renewed_after(rows, until(rows))


def test_nothing_renews_it_once_the_work_is_over(held):
    rows, lease = held
    with DOCUMENTS.renewing(lease):
        assert renewed_after(rows, until(rows))
    assert not [each for each in threading.enumerate() if each.name == "lease"]


def test_another_workers_lease_is_left_alone(held):
    rows, _lease = held
    with DOCUMENTS.renewing(uuid.uuid4()):
        assert not renewed_after(rows, timezone.now() + timedelta(seconds=0.2))


def test_a_lease_ends_after_the_time_of_the_settings(settings):
    settings.INGEST_LEASE_SECONDS = 60
    before = timezone.now()
    until = DOCUMENTS.renewed()["lease_until"]
    assert before <= until - timedelta(seconds=60) <= timezone.now()
