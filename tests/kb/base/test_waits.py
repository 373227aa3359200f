from contextlib import ExitStack

import pytest

from kb.base.waits import OutsideWaits, TooManyWaits


def test_so_many_requests_wait_at_once():
    waits = OutsideWaits(2)
    with ExitStack() as under_way:
        for user in (1, None):
            under_way.enter_context(waits.one(user))
        with pytest.raises(TooManyWaits), waits.one(2):
            pass
    with waits.one(2):
        pass


def test_one_of_a_user_waits_and_any_number_of_nobody_who_is_known():
    waits = OutsideWaits(4)
    with waits.one(1), waits.one(), waits.one():
        with pytest.raises(TooManyWaits), waits.one(1):
            pass
        with waits.one(2):
            pass


def test_a_wait_that_fails_makes_room():
    waits = OutsideWaits(1)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"), waits.one(1):
            raise OSError("gone")
