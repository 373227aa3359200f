import logging
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Lock, Timer, active_count, get_ident

import numpy as np
import pytest

from retrieval.cache import ByteCache
from retrieval.embedders.hashing import HashingEmbedder
from retrieval.errors import ChannelUnavailable, DegradationCode, ModelUnavailable
from retrieval.execution import FAILURES_TO_OPEN, ModelGuard
from retrieval.query_vectors import MOST_FLIGHTS, WARM_UP, QueryEmbedder, ScopedQueryEmbedder
from tests.retrieval.byte_tiers import Clock, DictTier

PATIENCE = 30
ASKERS = 12
VECTOR = np.array([0.6, 0.8, 0.0], dtype=np.float32)


class Model:
    """Answers each query with what `answer` returns; `runs` are the texts it was run on."""

    model_id = "model"
    dimension = 3
    is_loaded = True

    def __init__(self, answer=lambda text: VECTOR):
        self.answer, self.runs, self._lock = answer, [], Lock()

    def embed_query(self, text):
        with self._lock:
            self.runs.append(text)
        return self.answer(text)


def raises(error):
    def answer(text):
        raise error

    return answer


def soon():
    return time.monotonic() + PATIENCE


@pytest.fixture
def shared():
    return DictTier()


@pytest.fixture
def new_process(shared):
    def make(model, *, slots=2, **options):
        guard = ModelGuard(model.model_id, slots=slots)
        return QueryEmbedder(model, guard, ByteCache(100_000, shared, 60), **options)

    return make


@pytest.fixture
def process(new_process):
    return new_process(Model())


@pytest.fixture
def hang():
    release = Event()
    yield release
    release.set()


def code_of(embedder, text="q", deadline=None):
    with pytest.raises(ChannelUnavailable) as caught:
        embedder.embed(text, soon() if deadline is None else deadline)
    return caught.value.code


# -- Where a vector comes from ---------------------------------------------------------------------------------------
def test_the_model_runs_once_for_a_query(process):
    sources = [process.embed("q", soon())[1] for _ in range(3)]
    assert sources == ["model", "memory", "memory"]
    assert process.embedder.runs == ["q"]


def test_other_queries_and_models_have_vectors_of_their_own(new_process):
    one, other = new_process(Model(lambda text: VECTOR * len(text))), new_process(Model(lambda text: -VECTOR))
    other.embedder.model_id = "other"
    found = [one.embed("q", soon()), one.embed("qq", soon()), other.embed("q", soon())]
    assert [vector.tolist() for vector, _ in found] == [VECTOR.tolist(), (VECTOR * 2).tolist(), (-VECTOR).tolist()]


def test_another_process_finds_the_vector(new_process, process, shared):
    vector, _ = process.embed("q", soon())
    assert shared.stored.wait(PATIENCE)
    other = new_process(Model())
    found, source = other.embed("q", soon())
    assert (found.tolist(), source) == (vector.tolist(), "shared")
    assert not other.embedder.runs


@pytest.mark.parametrize("where", ["model", "memory"])
def test_a_vector_is_of_float32_and_as_long_as_the_model_says(process, where):
    if where == "memory":
        process.embed("q", soon())
    vector, source = process.embed("q", soon())
    assert (vector.dtype, vector.shape, source) == (np.float32, (3,), where)
    np.testing.assert_array_equal(vector, VECTOR)


@pytest.mark.parametrize("where", ["model", "memory"])
def test_a_vector_that_all_share_cannot_be_written_to(process, where):
    if where == "memory":
        process.embed("q", soon())
    with pytest.raises(ValueError, match="read-only"):
        process.embed("q", soon())[0][0] = 1.0


def test_a_vector_of_another_dimension_left_by_a_model_of_the_same_name_is_not_used(new_process, process, shared):
    process.embed("q", soon())
    assert shared.stored.wait(PATIENCE)
    wider = Model(lambda text: np.zeros(4))
    wider.dimension = 4
    other = new_process(wider)
    other.embed("first", soon())
    vector, source = other.embed("q", soon())
    assert (vector.shape, source) == ((4,), "model")


def test_a_shared_value_that_is_no_vector_is_not_used():
    class Garbage(DictTier):
        def get(self, key):
            return b"\xff" * 15

    embedder = QueryEmbedder(Model(), ModelGuard("model", slots=2), ByteCache(100_000, Garbage(), 60, clock=Clock(0.0)))
    assert embedder.embed("q", soon())[1] == "model"


def test_arithmetic_runs_in_the_callers_thread_and_its_vectors_stay_in_this_process(shared):
    threads = []

    class Watched(HashingEmbedder):
        def embed_query(self, text):
            threads.append(get_ident())
            return super().embed_query(text)

    embedder = QueryEmbedder(Watched(), None, ByteCache(10_000, shared, 60))
    found = [embedder.embed("q", soon()) for _ in range(2)]
    assert [source for _, source in found] == ["model", "memory"]
    assert [vector.tolist() for vector, _ in found] == [HashingEmbedder().embed_query("q").tolist()] * 2
    assert threads == [get_ident()]
    assert (shared.asked, shared.entries) == ([], {})


def await_landing(embedder):
    """Who waits for a flight may give up before it has ended, and have it counted."""
    deadline = soon()
    while embedder._flights._flights:
        assert time.monotonic() < deadline
        time.sleep(0.005)


# -- Together --------------------------------------------------------------------------------------------------------
def ask_together(embedder, texts):
    start = Barrier(len(texts))

    def ask(text):
        start.wait(PATIENCE)
        return embedder.embed(text, soon())

    with ThreadPoolExecutor(len(texts)) as threads:
        return [call.result(PATIENCE) for call in [threads.submit(ask, text) for text in texts]]


def test_threads_that_ask_together_run_the_model_once(new_process):
    others_wait = Event()
    embedder = new_process(Model(lambda text: others_wait.wait(PATIENCE) and VECTOR))
    joined, join = Barrier(ASKERS, action=others_wait.set), embedder._flights.join

    def join_and_tell(*arguments):
        flight = join(*arguments)
        joined.wait(PATIENCE)
        return flight

    embedder._flights.join = join_and_tell
    found = ask_together(embedder, ["q"] * ASKERS)

    assert embedder.embedder.runs == ["q"]
    assert {source for _, source in found} == {"model"}
    assert all(np.array_equal(vector, VECTOR) for vector, _ in found)


def test_no_more_queries_run_at_once_than_the_model_has_slots(new_process):
    lock, running, most = Lock(), [0], [0]

    def answer(text):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        np.linalg.svd(np.ones((60, 60)))
        with lock:
            running[0] -= 1
        return VECTOR

    embedder = new_process(Model(answer), slots=2)
    ask_together(embedder, [str(number) for number in range(ASKERS)])
    assert len(embedder.embedder.runs) == ASKERS
    assert most[0] <= 2


@pytest.mark.parametrize("patience_s", [0, PATIENCE], ids=["another call", "the same call"])
def test_who_has_more_time_than_the_first_to_ask_gets_the_vector(new_process, hang, patience_s):
    embedder = new_process(Model(lambda text: hang.wait(PATIENCE) and VECTOR), patience_s=patience_s)
    first_has_asked, second_has_asked = asked = Event(), Event()
    unset, join = iter(asked), embedder._flights.join

    def join_and_tell(*arguments):
        flight = join(*arguments)
        for event in unset:
            event.set()
            break
        return flight

    embedder._flights.join = join_and_tell
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(code_of, embedder, "q", time.monotonic() + 0.2)
        assert first_has_asked.wait(PATIENCE)
        second = threads.submit(embedder.embed, "q", soon())
        assert second_has_asked.wait(PATIENCE)
        assert first.result(PATIENCE) is DegradationCode.EMBEDDER_TIMEOUT
        hang.set()
        assert np.array_equal(second.result(PATIENCE)[0], VECTOR)


# -- Faults ----------------------------------------------------------------------------------------------------------
FAULTS = {
    "raises": (raises(RuntimeError("device lost")), DegradationCode.EMBEDDER_FAILED),
    "is not here": (raises(ModelUnavailable("fetch it")), DegradationCode.MODEL_UNAVAILABLE),
    "NaN": (lambda text: np.array([0.6, np.nan, 0.0]), DegradationCode.EMBEDDER_FAILED),
    "infinity": (lambda text: np.array([0.6, np.inf, 0.0]), DegradationCode.EMBEDDER_FAILED),
    "wrong dimension": (lambda text: np.zeros(4), DegradationCode.EMBEDDER_FAILED),
    "a matrix": (lambda text: np.zeros((1, 3)), DegradationCode.EMBEDDER_FAILED),
    "a scalar": (lambda text: 1.0, DegradationCode.EMBEDDER_FAILED),
    "no numbers": (lambda text: "vector", DegradationCode.EMBEDDER_FAILED),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_code_and_opens_the_breaker_when_it_repeats(new_process, fault):
    answer, code = FAULTS[fault]
    embedder = new_process(Model(answer))
    codes = [code_of(embedder) for _ in range(FAILURES_TO_OPEN + 1)]
    assert codes == [code] * FAILURES_TO_OPEN + [DegradationCode.MODEL_CIRCUIT_OPEN]
    assert len(embedder.embedder.runs) == FAILURES_TO_OPEN


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_leaves_nothing_in_the_caches(new_process, shared, fault):
    embedder = new_process(Model(FAULTS[fault][0]))
    code_of(embedder)
    embedder.embedder.answer = lambda text: VECTOR
    assert embedder.embed("q", soon())[1] == "model"


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_logged(new_process, caplog, fault):
    code_of(new_process(Model(FAULTS[fault][0])))
    assert [record.levelno >= logging.WARNING for record in caplog.records] == [True]


def test_what_a_model_raises_is_logged_whole_and_told_in_short(new_process, caplog):
    embedder = new_process(Model(raises(RuntimeError("device lost"))))
    with pytest.raises(ChannelUnavailable, match=r"'model' failed on this query \(RuntimeError\): see the log"):
        embedder.embed("q", soon())
    assert "RuntimeError: device lost" in caplog.text


def test_a_model_that_cannot_be_loaded_says_why(new_process):
    embedder = new_process(Model(raises(ModelUnavailable("run `manage.py download_model`"))))
    with pytest.raises(ChannelUnavailable, match="download_model"):
        embedder.embed("q", soon())


def test_a_cached_vector_serves_while_the_breaker_is_open(new_process):
    embedder = new_process(Model())
    embedder.embed("known", soon())
    embedder.embedder.answer = raises(RuntimeError)
    for _ in range(FAILURES_TO_OPEN):
        code_of(embedder)
    assert code_of(embedder) is DegradationCode.MODEL_CIRCUIT_OPEN
    assert embedder.embed("known", soon())[1] == "memory"


def test_a_model_that_hangs_is_a_timeout_and_then_not_asked(new_process, hang):
    embedder = new_process(Model(lambda text: hang.wait(PATIENCE) and VECTOR), patience_s=0)
    codes = []
    for _ in range(FAILURES_TO_OPEN):
        codes.append(code_of(embedder, "q", time.monotonic() + 0.05))
        await_landing(embedder)
    assert codes == [DegradationCode.EMBEDDER_TIMEOUT] * FAILURES_TO_OPEN
    assert code_of(embedder) is DegradationCode.MODEL_CIRCUIT_OPEN


def test_searches_with_little_time_do_not_open_the_breaker_of_a_model(new_process, hang):
    embedder = new_process(Model(lambda text: hang.wait(PATIENCE) and VECTOR))
    codes = [code_of(embedder, str(number), time.monotonic() + 0.02) for number in range(FAILURES_TO_OPEN + 1)]
    hang.set()
    assert set(codes) == {DegradationCode.EMBEDDER_TIMEOUT}
    assert embedder.embed("another", soon())[1] == "model"


def test_searches_that_give_up_leave_a_bounded_number_of_threads_behind(new_process, hang):
    embedder = new_process(Model(lambda text: hang.wait(PATIENCE) and VECTOR))
    before = active_count()
    codes = {code_of(embedder, str(number), time.monotonic()) for number in range(3 * MOST_FLIGHTS)}
    assert codes == {DegradationCode.EMBEDDER_TIMEOUT}
    assert active_count() - before <= MOST_FLIGHTS + 2  # and the two that the guard runs


def test_who_has_time_waits_until_a_thread_is_free(new_process, hang):
    embedder = new_process(Model(lambda text: hang.wait(PATIENCE) and VECTOR))
    for number in range(MOST_FLIGHTS):
        code_of(embedder, str(number), time.monotonic())
    Timer(0.05, hang.set).start()
    assert embedder.embed("another", soon())[1] == "model"


def test_a_deadline_that_has_passed_is_a_timeout(process):
    assert code_of(process, deadline=time.monotonic() - 1) is DegradationCode.EMBEDDER_TIMEOUT


def test_a_vector_that_comes_too_late_serves_the_next_who_asks(new_process, hang):
    returned = Event()

    class Watched(ByteCache):
        def keep(self, *arguments):
            super().keep(*arguments)
            returned.set()

    model = Model(lambda text: hang.wait(PATIENCE) and VECTOR)
    embedder = QueryEmbedder(model, ModelGuard("model", slots=2), Watched(100_000, DictTier(), 60))
    assert code_of(embedder, "q", time.monotonic() + 0.05) is DegradationCode.EMBEDDER_TIMEOUT
    hang.set()
    assert returned.wait(PATIENCE)
    assert embedder.embed("q", soon())[1] == "memory"


# -- Loading ---------------------------------------------------------------------------------------------------------
class Loading(Model):
    """Not loaded until its first run is over."""

    is_loaded = False

    def embed_query(self, text):
        vector = super().embed_query(text)
        self.is_loaded = True
        return vector


def test_loading_runs_a_model_whatever_is_cached(new_process, process, shared):
    process.embed(WARM_UP, soon())
    assert shared.stored.wait(PATIENCE)
    embedder = new_process(Loading())
    embedder.load(soon())
    assert embedder.embedder.runs == [WARM_UP]


def test_loading_leaves_a_loaded_model_alone(process):
    process.load(soon())
    assert not process.embedder.runs


def test_a_model_that_does_not_load_has_the_code_of_its_fault(new_process):
    embedder = new_process(Loading(raises(ModelUnavailable("fetch it"))))
    with pytest.raises(ChannelUnavailable) as caught:
        embedder.load(soon())
    assert caught.value.code is code_of(embedder) is DegradationCode.MODEL_UNAVAILABLE


def test_all_who_ask_while_a_model_loads_wait_for_one_call_and_do_not_take_it_for_hanging(new_process, hang):
    has_begun = Event()

    def answer(text):
        has_begun.set()
        return hang.wait(PATIENCE) and VECTOR

    embedder = new_process(Loading(answer), patience_s=0)
    codes = [code_of(embedder, str(number), time.monotonic() + 0.02) for number in range(FAILURES_TO_OPEN + 1)]
    assert set(codes) == {DegradationCode.EMBEDDER_TIMEOUT}
    assert has_begun.wait(PATIENCE)
    assert embedder.embedder.runs == [WARM_UP]
    hang.set()
    assert embedder.embed("q", soon())[1] == "model"


# -- Counts ----------------------------------------------------------------------------------------------------------
def test_look_ups_are_counted(new_process, shared):
    cache = ByteCache(100_000, shared, 60)
    embedder = QueryEmbedder(Model(), ModelGuard("model", slots=2), cache)
    for _ in range(2):
        embedder.embed("q", soon())
    assert (cache.stats()["memory"].hits, cache.stats()["memory"].misses) == (1, 1)


def test_the_searches_of_one_scope_learn_nothing_of_another(new_process):
    model = Model()
    mallory, alice = (ScopedQueryEmbedder(new_process(model), scope) for scope in ("1\0", "2\0"))
    assert alice.embed("lay off", soon())[1] == "model"

    assert mallory.embed("lay off", soon())[1] == "model"
    assert [each.embed("lay off", soon())[1] for each in (alice, mallory)] == ["memory", "memory"]
    assert model.runs == ["lay off", "lay off"]
