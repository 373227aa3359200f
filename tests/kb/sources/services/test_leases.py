"""What a worker holds a source by, while a request takes longer than that lasts."""

import errno
from datetime import timedelta
from pathlib import Path

import pytest

from kb.models import Source
from kb.sources.services import sources
from kb.sources.services.sources import source_request
from kb.sources.services.working import run_source
from tests.disks import no_room
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


def waiting(source):
    """Begins a run that ends with the source waiting."""
    source_request(source)
    assert run_source(source.pk) is False
    source.refresh_from_db()
    return (source.status, source.attempts, source.error)


def test_a_source_that_finds_the_disk_full_waits_and_goes_on(kb, place):
    place.files = {"a.md": text(1)}
    place.faults["a.md"] = OSError(errno.ENOSPC, "No space left on device")
    source = create(kb)
    assert waiting(source) == ("waiting", 0, "")
    place.faults.clear()
    assert run_source(source.pk) is False
    source.refresh_from_db()
    assert (source.status, source.counts) == ("done", {"added": 1})


def test_no_source_is_read_while_there_is_no_room(kb, place):
    place.files = {"a.md": text(1)}
    source = create(kb)
    with no_room():
        assert waiting(source) == ("waiting", 0, "")
    assert place.fetched == []


def test_what_is_fetched_lies_where_uploads_do(kb, place, settings, monkeypatch):
    place.files = {"a.md": text(1)}
    fetch, folders = place.fetch, []

    def seen(item, into, most):
        folders.append(Path(f"/proc/self/fd/{into.fileno()}").readlink().parent)
        return fetch(item, into, most)

    monkeypatch.setattr(place, "fetch", seen)
    assert run(create(kb)).status == "done"
    assert folders == [settings.FILE_UPLOAD_TEMP_DIR]
