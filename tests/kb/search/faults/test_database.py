"""A statement that hangs costs a slot of the channels, and never the process."""

from contextlib import contextmanager

import pytest
from django.db import connection

from kb.models import GraphFact
from kb.search.wiring import CHANNEL_THREADS
from retrieval.execution import Budget
from tests.interleaving import until
from tests.kb.index.searching import settle
from tests.kb.search.faults.searches import WARRANTY, ask, channels, notes, texts

KEYWORDS_ONLY = {"vector_timeout_ms": 200, "lexical_fallback": False}
LATE = [("vector", "channel_timeout")]


@contextmanager
def locked(table):
    """A table as a long migration would lock it; what is yielded lets it go."""
    settle()
    other = connection.copy()
    other.set_autocommit(False)
    try:
        with other.cursor() as cursor:
            cursor.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield other.rollback
    finally:
        other.rollback()
        until(lambda: waiting() == 0)
        other.close()


@pytest.fixture
def locked_vectors(kb):
    ask(kb)  # caches the query's vector
    with locked("kb_chunkembedding") as unlock:
        yield unlock


WAITING = """
SELECT count(*) FROM pg_locks
WHERE relation IS NOT NULL AND NOT granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def waiting():
    """How many statements wait for a lock in this process's database: other processes of the tests have their own."""
    with connection.cursor() as cursor:
        cursor.execute(WAITING)
        return cursor.fetchone()[0]


def connections_in_use():
    stats = connection.pool.get_stats()
    return stats["pool_size"] - stats["pool_available"]


def test_vectors_that_cannot_be_read_leave_the_keywords(kb, locked_vectors):
    result = ask(kb, overrides=KEYWORDS_ONLY)

    assert notes(result) == LATE
    assert texts(result)[0] == WARRANTY
    assert channels(result) == {"bm25"}


def test_more_hangs_than_there_are_slots_leave_the_keywords(kb, locked_vectors):
    for _ in range(CHANNEL_THREADS + 2):
        assert notes(ask(kb, overrides=KEYWORDS_ONLY)) == LATE

    until(lambda: waiting() == CHANNEL_THREADS)  # a thread may come to its statement only after its search has given up
    assert texts(ask(kb, overrides=KEYWORDS_ONLY))[0] == WARRANTY


def test_a_hang_that_ends_gives_its_thread_and_its_connection_back(kb, locked_vectors):
    for _ in range(CHANNEL_THREADS + 2):
        ask(kb, overrides=KEYWORDS_ONLY)

    locked_vectors()

    until(lambda: connections_in_use() == 2)  # this thread's, and that which held the lock
    result = ask(kb)
    assert notes(result) == []
    assert channels(result) == {"vector", "bm25"}


def test_facts_that_cannot_be_read_leave_the_results(kb, monkeypatch):
    GraphFact.objects.create(knowledge_base=kb, subject="智能温控器", predicate="保修期", object="两年")
    assert [fact.object for fact in ask(kb).facts] == ["两年"]

    # Facts are waited for last, until the end of the budget: of that the channels are to have had enough.
    monkeypatch.setattr(Budget, "remaining", lambda _budget: 0.1)
    with locked("kb_graphfact"):
        result = ask(kb)

    assert notes(result) == [("facts", "facts_failed")]
    assert result.facts == ()
    assert texts(result)[0] == WARRANTY
