"""A listing that takes longer than a worker's turn goes on where it stopped, and nothing counts as gone before its end."""

import hashlib
import json
from types import SimpleNamespace

import pytest

from kb.base.net.addresses import FetchError
from kb.models import Document, ListedItem, Source
from kb.sources.connectors.folder.connector import Folder
from kb.sources.services import runs, sync
from kb.sources.services.sources import source_cancel, source_pause, source_request, source_resume, source_update
from kb.sources.services.working import run_source
from tests.kb.sources.services.places import create, lose_the_worker, run, text

pytestmark = pytest.mark.django_db


@pytest.fixture
def slow(place, monkeypatch):
    """A place of six files that is listed two by two, for each of which a worker's turn is spent."""
    monkeypatch.setattr(sync, "LISTING_S", 0.0)
    place.files = {f"{number}.md": text(number) for number in range(6)}
    place.portion = 2
    return place


PORTIONS = [["0.md", "1.md"], ["2.md", "3.md"], ["4.md", "5.md"]]


def test_a_listing_of_several_turns_asks_for_nothing_twice(kb, slow):
    source = run(create(kb))
    assert (source.status, source.counts, source.listing) == ("done", {"added": 6}, None)
    assert slow.listed == PORTIONS
    assert slow.fetched == [f"{number}.md" for number in range(6)]


def test_a_run_whose_worker_is_lost_while_it_lists_goes_on_from_the_last_turn(kb, slow, monkeypatch):
    source = create(kb)
    assert run_source(source.pk)

    def killed():
        raise KeyboardInterrupt

    slow.on_portion = killed
    monkeypatch.setattr(sync, "LISTING_S", 900.0)
    with pytest.raises(KeyboardInterrupt):
        run_source(source.pk)
    lose_the_worker(source)
    slow.on_portion = lambda: None
    while run_source(source.pk):
        pass
    source.refresh_from_db()
    assert (source.status, source.counts) == ("done", {"added": 6})
    assert slow.listed == [PORTIONS[0], PORTIONS[1], *PORTIONS[1:]]


def test_nothing_that_is_listed_later_counts_as_gone(kb, slow):
    source = run(create(kb))
    del slow.files["0.md"]
    slow.files["new.md"] = text(9)
    source_request(source)
    while run_source(source.pk):
        source.refresh_from_db()
        if not source.listing["is_whole"]:
            assert not source.items.filter(state="gone").exists()
    source.refresh_from_db()
    assert source.counts == {"unchanged": 5, "added": 1, "gone": 1}
    assert Document.objects.count() == 7


def test_files_are_fetched_slice_by_slice_after_one_listing(kb, slow):
    source = create(kb)
    assert run(source, slice_s=0.0).counts == {"added": 6}
    assert slow.listed == PORTIONS
    assert not ListedItem.objects.exists()


def test_the_clock_of_a_slice_starts_after_the_listing(kb, place, monkeypatch):
    now = 0.0

    def passes():
        nonlocal now
        now += 5_000

    monkeypatch.setattr(sync, "time", SimpleNamespace(monotonic=lambda: now))
    place.files, place.on_portion = {f"{number}.md": text(number) for number in range(4)}, passes
    source = create(kb)
    assert not run_source(source.pk)
    source.refresh_from_db()
    assert (source.status, source.counts) == ("done", {"added": 4})


def test_the_clock_of_a_slice_starts_after_the_first_file(kb, place, monkeypatch):
    """For it git brings a whole repository."""
    now = 0.0

    def passes():
        nonlocal now
        now += 5_000

    monkeypatch.setattr(sync, "time", SimpleNamespace(monotonic=lambda: now))
    place.files = {f"{number}.md": text(number) for number in range(4)}
    place.faults["0.md"] = passes
    assert not run_source(create(kb).pk)


def test_a_listing_without_end_is_given_up(kb, slow, monkeypatch):
    monkeypatch.setattr(sync, "MOST_TURNS", 2)
    source = run(create(kb))
    assert (source.status, source.error_code, source.listing) == ("failed", "slow_listing", None)
    assert not Document.objects.exists()


def test_a_listing_of_more_files_than_a_source_may_have_is_given_up(kb, slow, monkeypatch):
    monkeypatch.setattr(sync, "MOST_FILES", 5)
    source = run(create(kb))
    assert (source.status, source.error_code) == ("failed", "too_many_items")
    assert slow.fetched == []

    del slow.files["5.md"]
    assert run(source).counts == {"added": 5}


def test_a_listing_in_which_nothing_is_taken_notices_that_its_run_has_ended(kb, slow, monkeypatch):
    monkeypatch.setattr(runs, "REPORT_S", 0.0)
    source = create(kb)

    def portions(_position):
        yield [], 1
        source_cancel(source)
        yield [], 2
        raise AssertionError("it was asked for more")

    slow.portions = portions
    monkeypatch.setattr(sync, "LISTING_S", 900.0)
    assert not run_source(source.pk)
    assert Source.objects.get().status == "cancelled"


def test_what_was_listed_of_another_place_is_forgotten(kb, slow):
    source = create(kb)
    run_source(source.pk)
    source_pause(source)
    source_update(source, settings={"root": "another"})
    source_resume(source)
    while run_source(source.pk):
        pass
    assert slow.listed == [PORTIONS[0], *PORTIONS]


def test_what_an_ended_run_has_listed_is_forgotten(kb, slow):
    source = create(kb)
    run_source(source.pk)
    source_cancel(source)
    slow.files = {"9.md": text(9)}
    assert run(source).counts == {"added": 1}
    assert slow.fetched == ["9.md"]


def test_a_folder_is_listed_on_from_where_it_stopped(tmp_path, settings):
    settings.SOURCE_FOLDERS = [str(tmp_path)]
    for name in ("a/1.md", "b/2.md", "c\\d/3.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    with Folder({"path": str(tmp_path)}) as folder:
        first, second, *_ = folder.portions(None)
    with Folder({"path": str(tmp_path)}) as folder:
        rest = [
            item.key for portion in folder.portions(json.loads(json.dumps(second.position))) for item in portion.items
        ]
    assert ([*first.items], [item.key for item in second.items]) == ([], ["a/1.md"])
    assert rest == ["b/2.md", "c\\\\d/3.md"]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("paused", [True, False])
def test_what_was_fetched_of_another_place_is_fetched_again(kb, place, enabled, paused):
    """Also where the source is read when asked for only, and its run is under way in a worker that knows the old place."""
    place.files = {"0.md": text(0), "1.md": text(1)}
    source = create(kb, enabled=enabled)
    source_request(source)

    def moves():
        place.faults.clear()
        if paused:
            source_pause(source)
        source_update(source, settings={"root": "another"})

    place.faults["1.md"] = moves
    while run_source(source.pk):
        pass
    place.files = {"0.md": text(10), "1.md": text(11)}
    source_resume(source)
    while run_source(source.pk):
        pass
    source.refresh_from_db()
    assert source.status == "done"
    assert place.fetched[-2:] == ["0.md", "1.md"]
    digests = {hashlib.sha256(data).hexdigest() for data in place.files.values()}
    assert set(Document.objects.values_list("sha256", flat=True)) == digests


def test_nothing_that_was_listed_is_kept_of_a_run_that_has_ended(kb, place):
    """Of a source that is not read again, or of another kind then, it would stay for ever."""
    place.files = {f"{number}.md": text(number) for number in range(3)}
    source = create(kb)
    assert run_source(source.pk, slice_s=0.0)
    assert ListedItem.objects.exists()
    source_cancel(source)
    assert not ListedItem.objects.exists()
    place.faults["2.md"] = FetchError("unreachable", host="a.example")
    assert run(source).status == "failed"
    assert not ListedItem.objects.exists()
