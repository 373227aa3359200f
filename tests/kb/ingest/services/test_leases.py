import threading
import uuid
from datetime import timedelta

import pytest
from django.utils import timezone

from kb.ingest.services.documents import DOCUMENTS
from kb.models import Document
from tests.factories import make_document, make_kb
from tests.interleaving import until

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


def end(rows):
    return rows.values_list("lease_until", flat=True).get()


def await_renewal(rows):
    before = end(rows)
    until(lambda: end(rows) > before)


def test_a_lease_is_renewed_while_its_worker_lives(held):
    rows, lease = held
    with DOCUMENTS.renewing(lease):
        await_renewal(rows)
        await_renewal(rows)


def test_nothing_renews_it_once_the_work_is_over(held):
    rows, lease = held
    with DOCUMENTS.renewing(lease):
        await_renewal(rows)
    assert not [each for each in threading.enumerate() if each.name == "lease"]


def test_another_workers_lease_is_left_alone(held):
    rows, _lease = held
    other, mine = make_document(make_kb(), "电源"), uuid.uuid4()
    own = Document.objects.filter(pk=other.pk)
    own.update(status="processing", lease=mine, lease_until=timezone.now())
    before = end(rows)
    with DOCUMENTS.renewing(mine):
        await_renewal(own)
    assert end(rows) == before


def test_a_lease_ends_after_the_time_of_the_settings(settings):
    settings.INGEST_LEASE_SECONDS = 60
    before = timezone.now()
    ends = DOCUMENTS.renewed()["lease_until"]
    assert before <= ends - timedelta(seconds=60) <= timezone.now()
