"""Two first syncs of one folder at the same time."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from kb.models import Source
from kb.sources.push.services import push_sync
from tests.factories import make_kb
from tests.interleaving import until_somebody_waits_for_a_lock

pytestmark = pytest.mark.django_db(transaction=True)


def test_both_find_the_source_that_one_of_them_has_made():
    kb = make_kb()

    def sync():
        try:
            return push_sync(knowledge_base=kb, user=kb.owner, name="docs", files=[])
        finally:
            connection.close()

    with ThreadPoolExecutor() as pool:
        with transaction.atomic():
            push_sync(knowledge_base=kb, user=kb.owner, name="docs", files=[])
            other = pool.submit(sync)
            until_somebody_waits_for_a_lock()
        assert other.result().source == "docs"
    assert Source.objects.get().name == "docs"
