from contextlib import ExitStack

import pytest

from kb.base import waits
from kb.base.waits import TooManyWaits, waiting_outside


@pytest.fixture
def most(monkeypatch):
    return lambda most: monkeypatch.setattr(waits, "MOST", most)


def test_so_many_requests_wait_at_once(most):
    most(2)
    with ExitStack() as under_way:
        for user in (1, None):
            under_way.enter_context(waiting_outside(user))
        with pytest.raises(TooManyWaits), waiting_outside(2):
            pass
    with waiting_outside(2):
        pass


def test_one_of_a_user_waits_and_any_number_of_nobody_who_is_known(most):
    most(4)
    with waiting_outside(1), waiting_outside(), waiting_outside():
        with pytest.raises(TooManyWaits), waiting_outside(1):
            pass
        with waiting_outside(2):
            pass


def test_a_wait_that_fails_makes_room(most):
    most(1)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"), waiting_outside(1):
            raise OSError("gone")
