"""Runs of sources of files: what is fetched, moved, changed and deleted, whatever the place does."""

import hashlib
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from kb.base.net.addresses import FetchError
from kb.ingest.services.indexing import index_document
from kb.models import Chunk, Document, Source, SourceItem, SourceRun
from kb.sources.connectors import registry
from kb.sources.services.runs import Run
from kb.sources.services.sources import source_accept, source_pause, source_resume, sweep_sources
from kb.sources.services.working import run_source
from tests.kb.sources.services.places import create, lose_the_worker, run, text

pytestmark = pytest.mark.django_db


@pytest.fixture
def source(kb, place):
    """Of four files that have been read."""
    place.files = {f"{number}.md": text(number) for number in range(4)}
    source = run(create(kb), slice_s=60)
    assert source.counts == {"added": 4}
    place.fetched.clear()
    return source


def paths():
    return sorted(Document.objects.values_list("metadata__path", flat=True))


class TestChanges:
    def test_what_is_as_it_was_is_not_fetched(self, source, place):
        assert run(source).counts == {"unchanged": 4}
        assert place.fetched == []

    def test_only_what_has_changed_is_fetched(self, source, place):
        place.files["1.md"] = text(11)
        assert run(source).counts == {"unchanged": 3, "changed": 1}
        assert place.fetched == ["1.md"]

    def test_a_new_version_of_the_same_bytes_makes_no_new_document(self, source, place):
        before = set(Document.objects.values_list("pk", "updated_at"))
        place.versions = dict.fromkeys(place.files, "touched")
        assert run(source).counts == {"unchanged": 4}
        assert set(Document.objects.values_list("pk", "updated_at")) == before
        place.fetched.clear()
        assert run(source).counts == {"unchanged": 4}
        assert place.fetched == []

    def test_a_digest_spares_the_fetch_of_what_was_touched(self, source, place):
        place.gives_digest, place.versions = True, dict.fromkeys(place.files, "touched")
        assert run(source).counts == {"unchanged": 4}
        assert place.fetched == []

    def test_a_digest_that_no_document_has_is_fetched(self, source, place):
        place.gives_digest = True
        place.files |= {"1.md": text(11), "4.md": text(4)}
        assert run(source).counts == {"unchanged": 3, "changed": 1, "added": 1}
        assert place.fetched == ["1.md", "4.md"]

    def test_a_file_that_cannot_be_read_is_fetched_once(self, kb, place):
        place.files = {"a.md": text(1), "b.exe": b"MZ\x00\x01"}
        source = run(create(kb))
        assert source.counts == {"added": 1, "failed": 1}
        place.fetched.clear()
        assert run(source).counts == {"unchanged": 1, "failed": 1}
        assert place.fetched == []

    def test_a_document_that_a_curator_has_deleted_comes_again(self, source):
        Document.objects.get(metadata__path="2.md").delete()
        assert run(source).counts == {"unchanged": 3, "added": 1}

    def test_an_archive_is_refused_with_a_sentence(self, kb, place):
        place.files = {"all.zip": b"PK\x03\x04"}
        source = run(create(kb))
        assert "put its files themselves" in source.items.get().error


class TestMoves:
    @pytest.mark.parametrize("gives_digest", [True, False])
    def test_a_file_that_moved_keeps_its_document_and_the_edits_of_its_chunks(self, source, place, gives_digest):
        document = Document.objects.get(metadata__path="3.md")
        index_document(document.pk)
        Chunk.objects.filter(document=document).update(text="edited", own_keywords=True)
        place.gives_digest = gives_digest
        place.files["folder/renamed.md"] = place.files.pop("3.md")

        assert run(source).counts == {"unchanged": 3, "moved": 1}

        moved = Document.objects.get(metadata__path="folder/renamed.md")
        assert (moved.pk, moved.source, moved.status) == (document.pk, "renamed.md", "ready")
        assert Chunk.objects.get(document=document).text == "edited"
        assert place.fetched == ([] if gives_digest else ["folder/renamed.md"])
        assert source.items.count() == 4

    def test_where_a_version_stands_for_the_content_a_moved_file_is_not_fetched(self, kb, place, monkeypatch):
        monkeypatch.setitem(registry.KINDS, "git", registry.Kind(Source.Kind.GIT, place, trusts_versions=True))
        place.files = {f"{number}.md": text(number) for number in range(4)}
        source = run(create(kb))
        before = dict(Document.objects.values_list("sha256", "pk"))
        place.fetched.clear()
        place.files = {f"new/{key}": data for key, data in place.files.items()} | {"5.md": text(5)}
        assert run(source).counts == {"added": 1, "moved": 4}
        assert place.fetched == ["5.md"]
        assert before.items() <= dict(Document.objects.values_list("sha256", "pk")).items()

    def test_a_file_that_comes_back_after_its_content_went_elsewhere_is_read(self, source, place):
        back = place.files["1.md"]
        place.files["0.md"] = place.files.pop("1.md")
        run(source)
        del place.files["0.md"]
        place.files["1.md"] = back
        run(source)
        held = source.items.select_related("document").get(key="1.md")
        assert held.document.sha256 == hashlib.sha256(back).hexdigest()

    def test_two_files_that_change_places_keep_their_documents(self, source, place):
        before = dict(Document.objects.values_list("sha256", "pk"))
        place.files["0.md"], place.files["1.md"] = place.files["1.md"], place.files["0.md"]
        run(source)
        assert dict(Document.objects.values_list("sha256", "pk")) == before
        assert paths() == ["0.md", "1.md", "2.md", "3.md"]

    def test_a_file_that_is_put_in_the_place_of_another_keeps_its_document(self, source, place):
        kept = Document.objects.get(metadata__path="1.md")
        place.files["0.md"] = place.files.pop("1.md")
        run(source)
        assert Document.objects.get(metadata__path="0.md").pk == kept.pk
        run(source)
        assert sorted(Document.objects.values_list("metadata__path", flat=True)) == ["0.md", "2.md", "3.md"]

    def test_all_of_them_may_move_at_once(self, source, place):
        before = set(Document.objects.values_list("pk", flat=True))
        place.files = {f"new/{key}": data for key, data in place.files.items()}
        assert run(source).counts == {"moved": 4}
        assert set(Document.objects.values_list("pk", flat=True)) == before
        assert paths() == [f"new/{number}.md" for number in range(4)]


class TestDuplicates:
    def test_the_same_content_twice_is_one_document_that_the_other_takes_over(self, source, place):
        document = Document.objects.get(metadata__path="0.md")
        place.files["copy.md"] = place.files["0.md"]
        assert run(source).counts == {"unchanged": 4, "duplicate": 1}
        assert run(source).counts == {"unchanged": 4, "duplicate": 1}
        del place.files["0.md"]
        assert run(source).counts == {"unchanged": 3, "moved": 1}
        assert Document.objects.get(metadata__path="copy.md").pk == document.pk

    def test_one_whose_twin_has_changed_gets_a_document_of_its_own(self, source, place):
        place.files["copy.md"] = place.files["0.md"]
        run(source)
        place.files["0.md"] = text(100)
        assert run(source).counts["added"] == 1
        assert paths() == ["0.md", "1.md", "2.md", "3.md", "copy.md"]

    def test_one_of_a_document_that_was_uploaded_is_not_added(self, source, place, kb):
        from tests.factories import make_document

        place.files["5.md"] = text(5)
        Document.objects.filter(pk=make_document(kb).pk).update(sha256=place.item("5.md", text(5)).digest or "")
        assert run(source).counts["added"] == 1


class TestDeletions:
    def test_a_document_goes_at_the_second_run_that_misses_it(self, source, place):
        del place.files["0.md"]
        assert run(source).counts == {"unchanged": 3, "gone": 1}
        assert Document.objects.count() == 4
        assert run(source).counts == {"unchanged": 3, "deleted": 1}
        assert (Document.objects.count(), source.items.count()) == (3, 3)

    def test_a_file_that_is_back_in_time_keeps_its_document(self, source, place):
        data = place.files.pop("0.md")
        run(source)
        place.files["0.md"] = data
        assert run(source).counts == {"unchanged": 4}
        assert not source.items.exclude(gone_at=None).exists()

    @pytest.mark.parametrize("left", [0, 2])
    def test_a_large_share_stays_until_somebody_accepts(self, source, place, left):
        place.files = dict(list(place.files.items())[:left])
        run(source)
        run(source)
        assert (source.status, source.error_code, Document.objects.count()) == ("failed", "many_missing", 4)
        source_accept(source)
        while run_source(source.pk):
            pass
        source.refresh_from_db()
        assert (source.status, Document.objects.count()) == ("done", left)

    def test_the_share_is_the_source_s(self, source, place):
        Source.objects.update(max_share=100)
        del place.files["0.md"], place.files["1.md"]
        run(source)
        assert run(source).counts == {"unchanged": 2, "deleted": 2}

    def test_a_place_that_has_nothing_at_all_takes_nothing_away_unasked(self, kb, place):
        place.files = {"only.md": text(1)}
        source = run(create(kb))
        place.files = {}
        run(source)
        run(source)
        assert (source.error_code, Document.objects.count()) == ("many_missing", 1)

    def test_a_listing_that_breaks_off_takes_nothing_away(self, source, place):
        place.files = {"0.md": text(0)}
        place.listing_fault = FetchError("broken_response", host="place")
        for _ in range(3):
            run(source)
        assert (source.status, Document.objects.count()) == ("failed", 4)
        assert not source.items.filter(state="gone").exists()

    def test_one_that_goes_between_listing_and_fetch_is_missed_first_and_deleted_later(self, source, place):
        place.files["1.md"] = text(11)
        place.faults["1.md"] = FetchError("gone", status=404)
        assert run(source).counts == {"unchanged": 3, "vanished": 1, "gone": 1}
        assert Document.objects.count() == 4


class TestPlacesThatLie:
    def test_other_bytes_of_another_size_are_noticed(self, source, place):
        place.versions = {"0.md": SourceItem.objects.get(key="0.md").version}
        place.files["0.md"] = text(0) + b" And more."
        assert run(source).counts == {"unchanged": 3, "changed": 1, "misversioned": 1}
        assert source.items.get(key="0.md").error_code == "same_version"

    def test_other_bytes_of_the_same_size_are_noticed_at_a_full_check(self, source, place, settings):
        settings.SOURCE_FULL_CHECK_RUNS = 3
        place.versions = {"0.md": SourceItem.objects.get(key="0.md").version}
        place.files["0.md"] = text(0).replace(b"lamp", b"bulb")
        assert run(source).counts == {"unchanged": 4}
        assert run(source).counts == {"unchanged": 3, "changed": 1, "misversioned": 1}

    def test_a_file_that_changes_while_it_is_read_is_kept_as_it_was_read(self, source, place):
        def change():
            place.files["4.md"] = text(44)

        place.files["4.md"] = text(4)
        place.faults["4.md"] = change
        assert run(source).counts == {"unchanged": 4, "added": 1, "moving": 1}
        item = source.items.get(key="4.md")
        assert (item.version, item.error_code) == (place.item("4.md", text(44)).version, "changed_while_read")
        place.faults.clear()
        assert run(source).counts == {"unchanged": 5}
        assert source.items.get(key="4.md").error == ""

    def test_an_item_that_fails_is_asked_again_and_the_others_are_read(self, source, place):
        place.files |= {"0.md": text(10), "1.md": text(11)}
        place.faults["0.md"] = FetchError("forbidden", status=403)
        assert run(source).counts == {"unchanged": 2, "changed": 1, "failed": 1}
        assert Document.objects.count() == 4
        place.faults.clear()
        assert run(source).counts == {"unchanged": 3, "changed": 1}


class TestPlacesOutOfReach:
    @pytest.fixture
    def throttled(self, source, place):
        place.files["4.md"] = text(4)
        place.faults["4.md"] = FetchError("too_many_requests", host="place", status=429, retry_after=7_200)
        return run(source)

    def test_one_that_throttles_is_left_alone_as_long_as_it_asks(self, throttled):
        assert (throttled.status, throttled.error_code, throttled.failures) == ("failed", "too_many_requests", 1)
        assert timedelta(seconds=7_100) < throttled.next_run_at - timezone.now() < timedelta(seconds=7_201)

    def test_it_is_tried_again_later_and_later_and_not_for_ever(self, source, place):
        place.listing_fault = FetchError("unreachable", host="place")
        waits = []
        for _ in range(6):
            run(source)
            waits.append(source.next_run_at and (source.next_run_at - timezone.now()).total_seconds())
        assert waits[5] is None
        assert all(60 * 2**n * 0.7 < wait < 60 * 2**n * 1.3 for n, wait in enumerate(waits[:5]))
        place.listing_fault = None
        assert (run(source).status, source.failures) == ("done", 0)

    def test_a_retry_is_due(self, throttled, place):
        Source.objects.update(next_run_at=timezone.now())
        place.faults.clear()
        assert sweep_sources() == [throttled.pk]
        run_source(throttled.pk)
        throttled.refresh_from_db()
        assert throttled.counts == {"unchanged": 4, "added": 1}


class Killed(BaseException):
    """The process is gone: nothing that it would have done happens."""


def edited(source):
    """A state with something of everything for the next run, and what it is to come to."""
    document = Document.objects.get(metadata__path="3.md")
    index_document(document.pk)
    Chunk.objects.filter(document=document).update(text="edited")
    return document


@pytest.mark.parametrize("commits", range(9))
@pytest.mark.parametrize("before_commit", [True, False])
def test_a_run_that_is_killed_between_two_commits_loses_and_doubles_nothing(
    source, place, monkeypatch, commits, before_commit
):
    from contextlib import contextmanager

    kept = edited(source)
    place.files["copy.md"] = place.files["0.md"]
    run(source)
    del place.files["0.md"]  # the copy takes its document over
    place.files["1.md"] = text(11)
    place.files["moved.md"] = place.files.pop("3.md")
    place.files |= {"5.md": text(5), "6.md": text(6)}
    left, real = [commits], Run.holding

    @contextmanager
    def holding(run):
        with real(run):
            yield
            if before_commit and left[0] == 0:
                raise Killed
        if left[0] == 0:
            raise Killed
        left[0] -= 1

    with monkeypatch.context() as patched:
        patched.setattr(Run, "holding", holding)
        try:
            run(source)
        except Killed:
            lose_the_worker(source)
            assert sweep_sources() == [source.pk]
    while run_source(source.pk):
        pass

    source.refresh_from_db()
    assert (source.status, source.error) == ("done", "")
    assert paths() == ["1.md", "2.md", "5.md", "6.md", "copy.md", "moved.md"]
    assert Document.objects.values("sha256").distinct().count() == 6
    assert Chunk.objects.get(document=kept).text == "edited"
    assert source.items.filter(document__isnull=False).count() == source.items.count() == 6


def test_a_run_in_slices_comes_to_the_same_end(kb, place):
    place.files = {f"{number}.md": text(number) for number in range(5)}
    source = create(kb)
    slices = 1
    while run_source(source.pk, slice_s=0):
        slices += 1
    source.refresh_from_db()
    assert (source.status, source.counts, slices) == ("done", {"added": 5}, 5)


def test_ten_thousand_unchanged_files_take_a_query_a_thousand(kb, place):
    place.files = {f"{number}.md": b"%d" % number for number in range(3_000)}
    source = create(kb)
    document = Document(knowledge_base=kb, title="t", source="t", status="ready")
    documents = [Document(knowledge_base=kb, title=key, source=key, status="ready", sha256=key) for key in place.files]
    assert document.pk is None
    made = Document.objects.bulk_create(documents)
    from kb.sources.services.items import hash_of

    SourceItem.objects.bulk_create(
        SourceItem(
            source=source,
            document=row,
            key=key,
            key_hash=hash_of(key),
            version=place.item(key, data).version,
            size=len(data),
        )
        for row, (key, data) in zip(made, place.files.items(), strict=True)
    )
    with CaptureQueriesContext(
        connection,
    ) as queries:
        run_source(source.pk)
    source.refresh_from_db()
    assert (source.status, source.counts) == ("done", {"unchanged": 3_000})
    assert len(queries) < 80
    assert place.fetched == []


class TestPause:
    def test_a_paused_source_is_read_by_nobody_and_goes_on_where_it_was(self, kb, place):
        place.files = {f"{number}.md": text(number) for number in range(3)}
        source = create(kb)
        place.faults["1.md"] = lambda: source_pause(source)
        run_source(source.pk)
        source.refresh_from_db()
        assert (source.status, source.paused, Document.objects.count()) == ("waiting", True, 1)
        lose_the_worker(source)
        assert sweep_sources() == []
        assert not run_source(source.pk)

        place.faults.clear()
        source_resume(source)
        run_source(source.pk)
        source.refresh_from_db()
        assert (source.status, Document.objects.count()) == ("done", 3)

    def test_a_paused_source_is_not_due(self, source):
        source_pause(source)
        Source.objects.update(next_run_at=timezone.now())
        assert sweep_sources() == []


def test_the_log_holds_the_last_runs(source, place):
    place.files["0.md"] = text(10)
    run(source)
    first, second = SourceRun.objects.order_by("pk")
    assert (first.counts, second.counts) == ({"added": 4}, {"unchanged": 3, "changed": 1})
    assert first.started_at < first.ended_at < second.started_at


def test_the_log_forgets_the_oldest_runs(source):
    for _ in range(25):
        run(source)
    assert source.runs.count() == 20
