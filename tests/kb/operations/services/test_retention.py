from datetime import timedelta

import pytest
from django.utils import timezone

from kb import tasks
from kb.base.findings import State
from kb.models import AuditEntry, FailedQuery, SearchLog
from kb.operations.services.health.health import clock
from kb.operations.services.retention import doubted_clock, purge_search_log
from kb.quality.failed_queries.services import note_failures
from tests.factories import make_kb

pytestmark = pytest.mark.django_db


def logged(kb, days, query="a"):
    row = SearchLog(
        knowledge_base_ids=[kb.pk],
        query=query,
        profile="default",
        profile_version=1,
        configuration={},
        trace={},
        outcome="nothing",
        result_count=0,
        duration_ms=1,
        created_at=timezone.now() - timedelta(days=days),
    )
    row.save(force_insert=True)
    note_failures([row])
    return row


@pytest.fixture
def kb(settings):
    settings.SEARCH_LOG_RETENTION_DAYS = 30
    return make_kb()


def test_searches_past_their_time_are_deleted(kb):
    kept = logged(kb, 29)
    logged(kb, 31)

    assert purge_search_log() == 1
    assert list(SearchLog.objects.all()) == [kept]


def test_it_goes_on_until_all_batches_are_gone(kb, monkeypatch):
    monkeypatch.setattr("kb.base.db.transactions.BATCH", 2)
    for _ in range(5):
        logged(kb, 31)

    assert purge_search_log() == 5
    assert not SearchLog.objects.exists()


def test_a_failed_query_goes_with_its_last_search(kb):
    logged(kb, 31, "old")
    logged(kb, 31, "seen again")
    newest = logged(kb, 1, "seen again")
    FailedQuery.objects.update(state="ignored")

    purge_search_log()

    failed = FailedQuery.objects.get()
    assert (failed.query, failed.last_search) == ("seen again", newest)


def test_a_failed_query_outlives_the_entry_of_its_last_search(kb):
    """A search that somebody disliked later counts from then on."""
    logged(kb, 31)
    FailedQuery.objects.update(last_seen=timezone.now())

    purge_search_log()

    assert FailedQuery.objects.get().last_search is None


def test_no_days_keep_searches_for_ever(kb, settings):
    settings.SEARCH_LOG_RETENTION_DAYS = 0
    logged(kb, 4_000)

    assert purge_search_log() == 0
    assert SearchLog.objects.exists()


def test_a_clock_that_has_jumped_ahead_deletes_nothing(kb, monkeypatch, caplog):
    logged(kb, 0)
    now = timezone.now() + timedelta(days=200)
    monkeypatch.setattr(timezone, "now", lambda: now)
    logged(kb, 0, "searched since the jump")

    tasks.purge_search_log()

    assert SearchLog.objects.count() == 2
    assert "the clock may be wrong" in caplog.text


@pytest.mark.parametrize(
    ("days", "is_doubted"),
    [([], False), ([0], False), ([2, 400], False), ([29], False), ([32], True), ([0.5, 32], True), ([2, 32], False)],
)
def test_the_clock_is_doubted_where_nothing_was_done_for_long(kb, days, is_doubted):
    AuditEntry.objects.all().delete()
    rows = [logged(kb, each) for each in days]
    last = rows[-1].created_at if is_doubted else None
    assert doubted_clock(timezone.now()) == last
    assert (clock().state is State.DEGRADED) is is_doubted


def test_a_change_is_a_use_too(kb):
    logged(kb, 32)
    AuditEntry.objects.update(at=timezone.now() - timedelta(days=2))
    assert AuditEntry.objects.exists()
    assert doubted_clock(timezone.now()) is None


def test_the_task_purges_and_is_due_every_hour(kb, settings):
    logged(kb, 31)
    kept = logged(kb, 2)

    tasks.purge_search_log()

    assert list(SearchLog.objects.all()) == [kept]
    due = settings.CELERY_BEAT_SCHEDULE["purge-search-log"]
    assert (due["task"], due["schedule"]) == (tasks.purge_search_log.name, 3_600)
