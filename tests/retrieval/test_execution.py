import threading
import time

import pytest

from retrieval.errors import CircuitOpen, ModelTimeout, ModelUnavailable
from retrieval.execution import FAILURES_TO_OPEN, SECONDS_OPEN, CircuitBreaker, ModelGuard, Share, Threads

PATIENCE = 20.0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return CircuitBreaker(clock=clock)


@pytest.fixture
def hang():
    released = threading.Event()
    yield released
    released.set()


def soon():
    return time.monotonic() + PATIENCE


def late():
    return time.monotonic() + 0.02


def fail(error):
    raise error


def opened(breaker):
    for _ in range(FAILURES_TO_OPEN):
        breaker.failed()
    return breaker


def test_a_breaker_lets_one_call_try_again_after_the_pause(breaker, clock):
    opened(breaker)
    clock.now = SECONDS_OPEN
    assert [breaker.allows(), breaker.allows()] == [True, False]


def test_a_trial_that_says_nothing_lets_another_one_try(breaker, clock):
    opened(breaker)
    clock.now = SECONDS_OPEN
    breaker.allows()
    breaker.undecided()
    assert [breaker.allows(), breaker.allows()] == [True, False]


def test_a_call_from_before_the_pause_does_not_end_it(breaker):
    opened(breaker).undecided()
    assert not breaker.allows()


def test_impatient_callers_do_not_open_the_breaker(hang):
    guard = ModelGuard("model", slots=2, patience_s=PATIENCE)
    for _ in range(FAILURES_TO_OPEN + 1):
        with pytest.raises(ModelTimeout):
            guard.call(hang.wait, late())
    hang.set()
    assert guard.call(lambda: 1, soon()) == 1


def test_a_timeout_that_the_function_notices_itself_is_judged_likewise():
    guard = ModelGuard("model", slots=2, patience_s=PATIENCE)
    for _ in range(FAILURES_TO_OPEN + 1):
        with pytest.raises(ModelTimeout):
            guard.call(lambda: fail(ModelTimeout("late")), soon())
    assert guard.call(lambda: 1, soon()) == 1


def test_a_call_that_has_hung_for_long_counts_for_whoever_waits_for_its_slot(hang, monkeypatch):
    guard = ModelGuard("model", slots=1, patience_s=PATIENCE)
    with pytest.raises(ModelTimeout):
        guard.call(hang.wait, late())
    monkeypatch.setattr("retrieval.execution.time.monotonic", lambda at=time.monotonic: at() + PATIENCE)
    for _ in range(FAILURES_TO_OPEN):
        with pytest.raises(ModelTimeout):
            guard.call(hang.wait, late())
    with pytest.raises(CircuitOpen):
        guard.call(hang.wait, soon())


def test_other_faults_open_the_breaker_however_patient_the_guard():
    guard = ModelGuard("model", slots=1, patience_s=PATIENCE)
    for _ in range(FAILURES_TO_OPEN):
        with pytest.raises(ModelUnavailable):
            guard.call(lambda: fail(ModelUnavailable("away")), soon())
    with pytest.raises(CircuitOpen):
        guard.call(lambda: 1, soon())


@pytest.fixture
def no_threads(monkeypatch):
    """The system has no more threads, until it is released."""
    start = threading.Thread.start

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return lambda: monkeypatch.setattr(threading.Thread, "start", start)


def test_a_model_keeps_its_slots_where_no_thread_can_start(no_threads, breaker):
    guard = ModelGuard("m", slots=1, breaker=breaker, patience_s=0.0)
    for _ in range(FAILURES_TO_OPEN + 1):
        with pytest.raises(ModelTimeout):
            guard.call(lambda: 1, time.monotonic() + PATIENCE)
    no_threads()
    assert guard.call(lambda: 1, time.monotonic() + PATIENCE) == 1


def test_a_thread_each_keeps_its_room_where_none_can_start(no_threads):
    executor = Share(Threads("work"), 1)
    with pytest.raises(RuntimeError):
        executor.submit(int)
    no_threads()
    assert executor.submit(int).result(60) == 0
