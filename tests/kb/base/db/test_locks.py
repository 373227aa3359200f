import pytest
from django.db import connections

from kb.base.db.transactions import Purpose, try_lock
from tests.kb.index.searching import at_once

pytestmark = pytest.mark.django_db(transaction=True)


def can_take(purpose, kb_id):
    with try_lock(purpose, kb_id) as taken:
        return taken


def elsewhere(purpose, kb_id):
    return at_once(1, lambda: can_take(purpose, kb_id))[0]


def test_one_holder_at_a_time():
    with try_lock(Purpose.BUILD_INDEX, 7) as taken:
        assert taken
        assert not elsewhere(Purpose.BUILD_INDEX, 7)
    assert elsewhere(Purpose.BUILD_INDEX, 7)


def test_who_does_not_get_the_lock_does_not_release_it():
    with try_lock(Purpose.BUILD_INDEX, 7):
        elsewhere(Purpose.BUILD_INDEX, 7)
        assert not elsewhere(Purpose.BUILD_INDEX, 7)


def test_purposes_and_bases_are_apart():
    with try_lock(Purpose.BUILD_INDEX, 7):
        assert elsewhere(Purpose.BUILD_INDEX, 8)
        assert elsewhere(Purpose.TOKENIZE, 7)


def test_work_that_gives_its_connection_back_keeps_the_lock_and_releases_it_in_the_end():
    with try_lock(Purpose.BUILD_INDEX, 7):
        connections.close_all()
        assert not elsewhere(Purpose.BUILD_INDEX, 7)
    assert elsewhere(Purpose.BUILD_INDEX, 7)


def test_work_that_fails_releases_the_lock():
    with pytest.raises(ZeroDivisionError), try_lock(Purpose.BUILD_INDEX, 7):
        raise ZeroDivisionError
    assert elsewhere(Purpose.BUILD_INDEX, 7)
