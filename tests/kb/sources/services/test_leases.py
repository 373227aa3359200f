"""What a worker holds a source by, while a request takes longer than that lasts."""

from datetime import timedelta

import pytest

from kb.models import Source
from kb.sources.services import sources
from tests.interleaving import until
from tests.kb.sources.services.places import create, run, text

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_fetch_that_takes_longer_than_a_lease_keeps_it(kb, place, monkeypatch):
    monkeypatch.setattr(sources, "LEASE", timedelta(seconds=1))
    place.files = {"large.md": text(1)}
    seen = []

    def slow():
        rows = Source.objects.values_list("lease_until", flat=True)
        before = rows.get()
        until(lambda: rows.get() > before)
        seen.append(sources.sweep_sources())

    place.faults["large.md"] = slow
    source = run(create(kb))
    assert (source.status, source.counts, seen) == ("done", {"added": 1}, [[]])
