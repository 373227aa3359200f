"""A statement that hangs costs a slot of the channels, and never the process."""

import pytest
from django.db import connection

from kb.conf import CHANNEL_THREADS
from tests.kb.faults.searches import WARRANTY, ask, channels, notes, texts
from tests.kb.stores.searching import settle, until

KEYWORDS_ONLY = {"vector_timeout_ms": 200, "lexical_fallback": False}
LATE = [("vector", "channel_timeout")]


@pytest.fixture
def locked(kb):
    """The vectors, as a long migration would lock them; called, it lets them go."""
    ask(kb)  # caches the query's vector
    settle()
    other = connection.copy()
    other.set_autocommit(False)
    with other.cursor() as cursor:
        cursor.execute("LOCK TABLE kb_chunkembedding IN ACCESS EXCLUSIVE MODE")
    yield other.rollback
    other.rollback()
    until(lambda: waiting() == 0)
    other.close()


def waiting():
    """How many statements wait for the lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE relation = 'kb_chunkembedding'::regclass AND NOT granted")
        return cursor.fetchone()[0]


def connections_in_use():
    stats = connection.pool.get_stats()
    return stats["pool_size"] - stats["pool_available"]


def test_vectors_that_cannot_be_read_leave_the_keywords(kb, locked):
    result = ask(kb, overrides=KEYWORDS_ONLY)

    assert notes(result) == LATE
    assert texts(result)[0] == WARRANTY
    assert channels(result) == {"bm25"}


def test_more_hangs_than_there_are_slots_leave_the_keywords(kb, locked):
    for _ in range(CHANNEL_THREADS + 2):
        assert notes(ask(kb, overrides=KEYWORDS_ONLY)) == LATE

    assert waiting() == CHANNEL_THREADS
    assert texts(ask(kb, overrides=KEYWORDS_ONLY))[0] == WARRANTY


def test_a_hang_that_ends_gives_its_thread_and_its_connection_back(kb, locked):
    for _ in range(CHANNEL_THREADS + 2):
        ask(kb, overrides=KEYWORDS_ONLY)

    locked()

    until(lambda: connections_in_use() == 2)  # this thread's, and that which held the lock
    result = ask(kb)
    assert notes(result) == []
    assert channels(result) == {"vector", "bm25"}
