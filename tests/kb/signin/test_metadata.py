"""What is remembered of a provider, and for how long, on a clock of the test's."""

import pytest

from kb.signin.http import Unreachable
from kb.signin.metadata import DOWN_SECONDS, KEPT_SECONDS, REFRESH_SECONDS, Metadata


class Provider:
    """Counts how often it is asked; `now` is the time."""

    def __init__(self):
        self.now, self.asked, self.error = 1_000.0, 0, None
        self.metadata = Metadata(lambda: self.now)

    def read(self, **how):
        return self.metadata.read("url", self._answer, **how)

    def _answer(self):
        self.asked += 1
        if self.error:
            raise self.error
        return {"answer": self.asked}


def test_it_is_asked_once_in_a_while():
    provider = Provider()
    assert [provider.read() for _ in range(3)] == [{"answer": 1}] * 3
    provider.now += KEPT_SECONDS
    assert provider.read() == {"answer": 2}


def test_an_answer_that_lacks_something_is_asked_for_again_once_in_a_while():
    provider = Provider()
    provider.read()
    assert provider.read(refresh=True) == {"answer": 1}
    provider.now += REFRESH_SECONDS
    assert [provider.read(refresh=True) for _ in range(3)] == [{"answer": 2}] * 3


def test_one_that_is_down_is_not_asked_for_a_while_and_the_reason_is_the_same():
    provider, cause = Provider(), OSError("silent")
    provider.error = Unreachable("no answer")
    provider.error.__cause__ = cause
    for _ in range(3):
        with pytest.raises(Unreachable, match="no answer") as raised:
            provider.read()
        assert raised.value.__cause__ is cause
    assert provider.asked == 1
    provider.now += DOWN_SECONDS
    provider.error = None
    assert provider.read() == {"answer": 2}


def test_a_fault_that_says_nothing_of_it_does_not_close_the_way():
    provider = Provider()
    for error in (Unreachable(), ValueError()):
        provider.error = error
        with pytest.raises(type(error)):
            provider.read()
        provider.now += DOWN_SECONDS
    provider.error = None
    assert provider.read() == {"answer": 3}
