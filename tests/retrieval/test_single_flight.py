from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Barrier, Event, get_ident

import pytest

from retrieval.execution import SingleFlight

PATIENCE = 30
ASKERS = 20


@pytest.fixture
def executor():
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def flights(executor):
    return SingleFlight(executor)


def lands(result):
    return lambda land: land(result)


def fails(error):
    def work(land):
        raise error

    return work


def ask_together(flights, work):
    """The futures that 20 threads get which start together; the work may go on once all have theirs."""
    start = Barrier(ASKERS)

    def ask():
        start.wait(PATIENCE)
        return flights.join("kb", work)

    with ThreadPoolExecutor(ASKERS) as threads:
        return [asked.result(PATIENCE) for asked in [threads.submit(ask) for _ in range(ASKERS)]]


def test_threads_that_ask_together_get_one_result_of_one_run(flights):
    all_have_asked, runs = Event(), []

    def work(land):
        runs.append("run")
        assert all_have_asked.wait(PATIENCE)
        land(object())

    answers = ask_together(flights, work)
    all_have_asked.set()

    assert len({id(answer.result(PATIENCE)) for answer in answers}) == 1
    assert runs == ["run"]


def test_the_work_runs_off_the_callers_thread(flights):
    assert flights.join("kb", lambda land: land(get_ident())).result(PATIENCE) != get_ident()


def test_one_key_does_not_wait_for_another(flights):
    other_has_landed = Event()

    def work(land):
        land(other_has_landed.wait(PATIENCE))

    first = flights.join("first", work)
    assert flights.join("second", lands("index")).result(PATIENCE) == "index"
    other_has_landed.set()

    assert first.result(PATIENCE) is True


def test_an_error_reaches_all_who_wait(flights):
    all_have_asked = Event()

    def work(land):
        assert all_have_asked.wait(PATIENCE)
        raise ZeroDivisionError

    answers = ask_together(flights, work)
    all_have_asked.set()

    assert {type(answer.exception(PATIENCE)) for answer in answers} == {ZeroDivisionError}


def test_after_an_error_the_next_to_ask_starts_again(flights):
    failed = flights.join("kb", fails(ZeroDivisionError()))
    assert isinstance(failed.exception(PATIENCE), ZeroDivisionError)

    assert flights.join("kb", lands("index")).result(PATIENCE) == "index"


def test_who_asks_after_the_landing_starts_again_though_the_work_goes_on(executor, flights):
    second_has_landed = Event()
    published_after_the_second = []

    def lands_then_publishes(land):
        land("first")
        published_after_the_second.append(second_has_landed.wait(PATIENCE))

    assert flights.join("kb", lands_then_publishes).result(PATIENCE) == "first"
    assert flights.join("kb", lands("second")).result(PATIENCE) == "second"
    second_has_landed.set()
    executor.shutdown(wait=True)

    assert published_after_the_second == [True]


@pytest.mark.parametrize("end", [lands("first"), fails(ZeroDivisionError())], ids=["result", "error"])
def test_whoever_is_woken_and_asks_again_starts_again(flights, end):
    is_awaited = Event()
    asked_again = SimpleQueue()

    def work(land):
        assert is_awaited.wait(PATIENCE)
        end(land)

    first = flights.join("kb", work)
    # Runs while the future is being set: the earliest moment at which anyone can be woken.
    first.add_done_callback(lambda _: asked_again.put(flights.join("kb", lands("second"))))
    is_awaited.set()

    assert asked_again.get(timeout=PATIENCE).result(PATIENCE) == "second"


def test_an_error_after_the_landing_is_logged_and_the_result_stands(executor, flights, caplog):
    def lands_then_fails(land):
        land("index")
        raise ZeroDivisionError("while publishing")

    flight = flights.join("kb", lands_then_fails)
    executor.shutdown(wait=True)

    assert flight.result() == "index"
    assert [record.getMessage() for record in caplog.records] == ["the work for kb failed after it had its result"]
    assert "ZeroDivisionError: while publishing" in caplog.text


def test_work_that_lands_nothing_is_an_error_and_not_waited_for_again(flights):
    empty = flights.join("kb", lambda land: None)
    assert str(empty.exception(PATIENCE)) == "the work for kb ended without a result"

    assert flights.join("kb", lands("index")).result(PATIENCE) == "index"


def test_an_executor_that_takes_no_more_work_is_an_error_to_everyone_who_asks(executor, flights):
    executor.shutdown()

    for _ in range(2):
        with pytest.raises(RuntimeError, match="shutdown"):
            flights.join("kb", lands("index"))
