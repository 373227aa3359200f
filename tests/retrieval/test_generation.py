import gc
import itertools
import json
import threading
import time
import traceback

import openai.resources.chat.completions  # noqa: F401 - slow to import: no time limit here shall hold for that
import pytest

from retrieval.errors import DegradationCode, GenerationFailed
from retrieval.execution import FAILURES_TO_OPEN, CircuitBreaker
from retrieval.generation import OpenAIGenerator
from retrieval.types import Turn
from tests.servers import ModelServer, Reply

CONVERSATION = [Turn("system", "Answer from the fragments."), Turn("user", "How many days?")]
PATIENT = 20.0
SHORT = 0.4  # for what never answers
LIMIT = 3.0  # for what answers at once and then takes too long


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def server():
    with ModelServer() as running:
        yield running


@pytest.fixture
def waits():
    return []


@pytest.fixture
def generator(server, waits):
    return OpenAIGenerator(server.base_url, "key-1", "m", sleep=waits.append)


@pytest.fixture
def warm(generator):
    """It has its connection, so that a time limit is the server's alone."""
    complete(generator)
    return generator


def complete(generator, timeout_s=PATIENT):
    return generator.complete(CONVERSATION, timeout_s=timeout_s)


def stream(generator, timeout_s=PATIENT):
    return list(generator.stream(CONVERSATION, timeout_s=timeout_s))


def failure(ask, generator, timeout_s=PATIENT):
    with pytest.raises(GenerationFailed) as failed:
        ask(generator, timeout_s)
    return failed.value


both = pytest.mark.parametrize("ask", [complete, stream])


def test_the_whole_answer_is_returned(server, generator):
    server.always("chat", Reply("年假十五天。"))

    assert complete(generator) == "年假十五天。"


def test_the_conversation_and_the_model_are_sent(server, generator):
    complete(generator)

    assert server.requests[0].body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Answer from the fragments."},
            {"role": "user", "content": "How many days?"},
        ],
        "temperature": 0.0,
    }


def test_json_is_asked_for(server, generator):
    generator.complete(CONVERSATION, timeout_s=PATIENT, as_json=True)

    assert server.requests[0].body["response_format"] == {"type": "json_object"}


def test_the_key_is_sent_as_a_bearer_token(server, generator):
    complete(generator)

    assert server.requests[0].headers["authorization"] == "Bearer key-1"


def test_a_stream_comes_in_pieces(server, generator):
    server.always("chat", Reply(["年假", "十五", "天。"]))

    assert stream(generator) == ["年假", "十五", "天。"]
    assert server.requests[0].body["stream"] is True


def test_the_first_piece_does_not_wait_for_the_last(server, generator):
    server.always("chat", Reply(["first ", "second"], hang_after=1))

    pieces = generator.stream(CONVERSATION, timeout_s=PATIENT)

    assert next(pieces) == "first "
    assert not server.released.is_set()
    server.release()
    assert list(pieces) == ["second"]


def test_a_line_separator_in_a_piece_ends_no_event(server, generator):
    event = {"choices": [{"delta": {"content": "one\u2028two"}, "finish_reason": "stop"}]}
    server.always("chat", Reply(raw=f"data: {json.dumps(event, ensure_ascii=False)}\r\n\r\n".encode()))

    assert stream(generator) == ["one\u2028two"]


def test_thoughts_and_statistics_are_no_pieces(server, generator):
    events = [
        {"choices": [{"delta": {"role": "assistant", "content": None, "reasoning_content": "hm"}}]},
        {"choices": [], "usage": {"total_tokens": 3}},
        {"choices": [{"delta": {"content": "yes"}}]},
    ]
    lines = [": a comment", *(f"data: {json.dumps(event)}" for event in events), "data: [DONE]"]
    server.always("chat", Reply(raw="\n\n".join(lines).encode()))

    assert stream(generator) == ["yes"]


def test_a_consumer_that_stops_early_closes_the_connection(server, generator):
    server.always("chat", Reply(lambda _: itertools.repeat("and so on ")))
    pieces = generator.stream(CONVERSATION, timeout_s=PATIENT)
    next(pieces)

    pieces.close()

    assert server.disconnected.wait(PATIENT)


def test_a_consumer_that_stops_early_is_no_fault_of_the_server(server):
    generator = OpenAIGenerator(server.base_url, "", "m", breaker=CircuitBreaker(failures_to_open=1))
    pieces = generator.stream(CONVERSATION, timeout_s=PATIENT)
    next(pieces)
    pieces.close()

    assert complete(generator)


@both
@pytest.mark.parametrize(("base_url", "model"), [("", "m"), (" ", "m"), ("http://127.0.0.1/v1", "")])
def test_without_an_address_or_a_model_it_is_not_configured(ask, base_url, model):
    error = failure(ask, OpenAIGenerator(base_url, "key", model))

    assert error.code is DegradationCode.LLM_NOT_CONFIGURED
    assert "set LLM_BASE_URL (for example https://api.deepseek.com/v1) and LLM_MODEL" in str(error)


@pytest.mark.parametrize(
    "base_url",
    ["api.deepseek.com/v1", "ftp://host", "http://", "http://[broken", "http://a b/v1", "http://a:0", "http://a..b"],
)
def test_a_malformed_address_is_not_configured(base_url):
    error = failure(complete, OpenAIGenerator(base_url, "key", "m"))

    assert error.code is DegradationCode.LLM_NOT_CONFIGURED
    assert "LLM_BASE_URL is not a web address" in str(error)


def test_a_server_elsewhere_needs_a_key():
    error = failure(complete, OpenAIGenerator("https://user:word@api.example.org/v1", "", "m"))

    assert error.code is DegradationCode.LLM_NOT_CONFIGURED
    assert "no key for the chat model at api.example.org: set LLM_API_KEY" in str(error)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_a_server_on_the_loopback_needs_no_key(host, waits):
    generator = OpenAIGenerator(f"http://{host}:1/v1", "", "m", sleep=waits.append)

    assert failure(complete, generator).code is DegradationCode.LLM_UNAVAILABLE


@pytest.mark.parametrize("key", ["钥匙", "one\ntwo"])
def test_a_key_that_no_header_can_hold_is_not_configured(server, key):
    error = failure(complete, OpenAIGenerator(server.base_url, key, "m"))

    assert error.code is DegradationCode.LLM_NOT_CONFIGURED
    assert key not in str(error)


@both
def test_a_server_that_is_down_is_unavailable(server, generator, ask, waits):
    server.stop()

    error = failure(ask, generator)

    assert error.code is DegradationCode.LLM_UNAVAILABLE
    assert "ConnectError" in str(error)
    assert "check LLM_BASE_URL, LLM_API_KEY and LLM_MODEL, and that the server runs" in str(error)
    assert len(waits) == 1


@both
@pytest.mark.parametrize(("status", "calls"), [(400, 1), (401, 1), (404, 1), (429, 2), (500, 2), (503, 2)])
def test_a_refusal_is_unavailable_and_retried_only_if_it_may_pass(server, generator, ask, status, calls):
    server.always("chat", Reply(status=status))

    error = failure(ask, generator)

    assert error.code is DegradationCode.LLM_UNAVAILABLE
    assert f"(HTTP {status}: scripted {status}): check LLM_BASE_URL, LLM_API_KEY and LLM_MODEL" in str(error)
    assert server.calls["chat"] == calls


@both
def test_a_passing_fault_is_overcome(server, generator, ask, waits):
    server.once("chat", Reply(status=503))

    assert "".join(ask(generator)) == "An answer from the model."
    assert len(waits) == 1


def test_a_retry_waits_as_long_as_the_server_asks(server, generator, waits):
    server.once("chat", Reply(status=429, headers={"Retry-After": "7"}))

    complete(generator)

    assert waits == [7.0]


@both
def test_there_is_no_retry_without_time_for_it(server, generator, ask, waits):
    server.once("chat", Reply(status=429, headers={"Retry-After": "30"}))

    assert failure(ask, generator).code is DegradationCode.LLM_UNAVAILABLE
    assert waits == []


@both
def test_the_key_is_in_no_message(server, generator, ask):
    server.always("chat", Reply(status=401, raw=b'{"error": {"message": "wrong key: key-1"}}'))

    error = failure(ask, generator)

    assert "wrong key: ***" in str(error)
    assert "key-1" not in "".join(traceback.format_exception(error)) + repr(generator)


@both
def test_without_time_left_the_server_is_neither_asked_nor_blamed(server, ask):
    generator = OpenAIGenerator(server.base_url, "", "m", breaker=CircuitBreaker(failures_to_open=1))

    assert failure(ask, generator, 0.0).code is DegradationCode.LLM_TIMEOUT
    assert server.calls["chat"] == 0
    assert ask(generator)


@both
def test_a_server_that_hangs_costs_the_time_limit(server, generator, ask):
    server.always("chat", Reply(hang=True))

    error = failure(ask, generator, SHORT)

    assert error.code is DegradationCode.LLM_TIMEOUT
    assert "allow more time" in str(error)
    assert not server.released.is_set()


def test_a_server_that_trickles_costs_the_time_limit(server, warm):
    server.always("chat", Reply("x" * 10_000, trickle_s=0.05))

    assert failure(complete, warm, LIMIT).code is DegradationCode.LLM_TIMEOUT
    assert server.disconnected.wait(PATIENT)


def test_a_stream_of_nothing_but_signs_of_life_costs_the_time_limit(server, warm):
    server.always("chat", Reply(raw=b": keep-alive\n\n" * 10_000, trickle_s=0.02))

    assert failure(stream, warm, LIMIT).code is DegradationCode.LLM_TIMEOUT
    assert server.disconnected.wait(PATIENT)


def test_a_stream_may_last_longer_than_the_limit_between_pieces(server, warm):
    server.always("chat", Reply(["piece"] * 8, pause_s=0.25))

    assert len(stream(warm, LIMIT)) == 8


def test_a_consumer_may_take_its_time_between_pieces(server, warm):
    server.always("chat", Reply(["one ", "two ", "three"], hang_after=1))
    pieces = warm.stream(CONVERSATION, timeout_s=LIMIT)
    next(pieces)

    time.sleep(1.2 * LIMIT)  # what is tested: the consumer's own time
    server.release()

    assert list(pieces) == ["two ", "three"]


def test_a_stream_that_hangs_in_the_middle_costs_the_time_limit(server, warm):
    server.always("chat", Reply(["one ", "two"], hang_after=1))
    pieces = warm.stream(CONVERSATION, timeout_s=LIMIT)
    next(pieces)

    with pytest.raises(GenerationFailed) as failed:
        next(pieces)

    assert failed.value.code is DegradationCode.LLM_TIMEOUT
    assert not server.released.is_set()


@pytest.mark.parametrize("reply", [Reply(["one ", "two"], break_after=1), Reply(["one "], finish=False)])
def test_a_stream_without_its_end_is_broken(server, generator, reply):
    server.always("chat", reply)
    pieces = generator.stream(CONVERSATION, timeout_s=PATIENT)

    assert next(pieces) == "one "
    with pytest.raises(GenerationFailed, match="before it was complete: ask again") as failed:
        next(pieces)
    assert failed.value.code is DegradationCode.LLM_STREAM_BROKEN


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        ('{"error": {"message": "out of memory"}}', "was cut short by the server (out of memory)"),
        ('{"choices": [', "went on with what is no piece"),
        ('{"choices": ["text"]}', "went on with what is no piece"),
        ("[]", "went on with what is no piece"),
    ],
)
def test_an_event_that_is_no_piece_breaks_the_stream(server, generator, event, fault):
    server.always("chat", Reply(raw=f"data: {event}\n\n".encode()))

    error = failure(stream, generator)

    assert error.code is DegradationCode.LLM_STREAM_BROKEN
    assert fault in str(error)


def test_a_connection_lost_before_the_answer_is_unavailable(server, generator):
    server.always("chat", Reply(break_after=0))

    assert failure(complete, generator).code is DegradationCode.LLM_UNAVAILABLE


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"<html>", "does not follow"),
        (b"[" * 100_000, "does not follow"),
        (b"[]", "does not follow"),
        (b'{"choices": []}', "does not follow"),
        (b'{"choices": [{"message": {}}]}', "does not follow"),
        (b'{"choices": [{"message": {"content": null}}]}', "is empty"),
        (b'{"choices": [{"message": {"content": " "}}]}', "is empty"),
    ],
    ids=["HTML", "endless", "list", "no choices", "no content", "null", "blank"],
)
def test_an_answer_without_text_is_unusable(server, generator, raw, fault):
    server.always("chat", Reply(raw=raw))
    gc.collect()  # or what other tests have left may be finalised where the endless answer has taken all frames

    error = failure(complete, generator)

    assert error.code is DegradationCode.LLM_UNUSABLE
    assert f"{fault}" in str(error)
    assert "see whether its server has it as a chat model" in str(error)


@pytest.mark.parametrize(
    ("reply", "fault"), [(Reply([]), "is empty"), (Reply(raw=b"<html>"), "is no stream of events")]
)
def test_a_stream_without_text_is_unusable(server, generator, reply, fault):
    server.always("chat", reply)

    error = failure(stream, generator)

    assert error.code is DegradationCode.LLM_UNUSABLE
    assert fault in str(error)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def touchy(server, clock):
    """Two failures open its circuit, for ten seconds of the clock."""
    breaker = CircuitBreaker(failures_to_open=2, seconds_open=10.0, clock=clock)
    return OpenAIGenerator(server.base_url, "", "m", breaker=breaker, patience_s=0, sleep=lambda _: None)


@both
@pytest.mark.parametrize("reply", [Reply(status=401), Reply(status=503), Reply(hang=True)])
def test_a_server_that_keeps_failing_is_not_asked(server, touchy, ask, reply):
    server.always("chat", reply)
    failure(ask, touchy, SHORT)
    failure(ask, touchy, SHORT)
    asked = server.calls["chat"]

    error = failure(ask, touchy)

    assert error.code is DegradationCode.MODEL_CIRCUIT_OPEN
    assert "failed repeatedly" in str(error)
    assert "check LLM_BASE_URL, LLM_API_KEY and LLM_MODEL" in str(error)
    assert server.calls["chat"] == asked


@both
def test_who_has_little_time_does_not_take_a_slow_server_from_others(server, generator, ask):
    server.always("chat", Reply(hang=True))
    codes = {failure(ask, generator, SHORT).code for _ in range(FAILURES_TO_OPEN + 1)}
    server.always("chat", Reply())

    assert codes == {DegradationCode.LLM_TIMEOUT}
    assert ask(generator)


def test_streams_that_break_open_the_circuit(server, touchy):
    server.always("chat", Reply(["one ", "two"], break_after=1))
    failure(stream, touchy)
    failure(stream, touchy)

    assert failure(stream, touchy).code is DegradationCode.MODEL_CIRCUIT_OPEN


def test_streams_and_whole_answers_share_the_circuit(server, touchy):
    server.always("chat", Reply(status=500))
    failure(stream, touchy)
    failure(complete, touchy)

    assert failure(stream, touchy).code is DegradationCode.MODEL_CIRCUIT_OPEN


@both
def test_the_circuit_closes_when_the_server_answers_again(server, touchy, clock, ask):
    server.always("chat", Reply(status=500))
    failure(ask, touchy)
    failure(ask, touchy)
    server.always("chat", Reply())

    clock.now = 10.0

    assert ask(touchy)
    assert ask(touchy)


@both
def test_the_circuit_stays_open_when_the_trial_fails(server, touchy, clock, ask):
    server.always("chat", Reply(status=500))
    failure(ask, touchy)
    failure(ask, touchy)
    clock.now = 10.0
    failure(ask, touchy)

    assert failure(ask, touchy).code is DegradationCode.MODEL_CIRCUIT_OPEN


@both
@pytest.mark.parametrize("reply", [Reply(status=400), Reply([])])
def test_an_answer_that_is_of_no_use_opens_no_circuit(server, touchy, ask, reply):
    server.always("chat", reply)
    codes = {failure(ask, touchy).code for _ in range(3)}

    assert DegradationCode.MODEL_CIRCUIT_OPEN not in codes


@both
def test_a_request_that_is_refused_ends_the_trial(server, touchy, clock, ask):
    server.always("chat", Reply(status=500))
    failure(ask, touchy)
    failure(ask, touchy)
    server.once("chat", Reply(status=400))
    server.always("chat", Reply())
    clock.now = 10.0
    failure(ask, touchy)

    assert ask(touchy)


def test_threads_share_the_generator(server, generator):
    barrier = threading.Barrier(4)
    answers = []

    def ask():
        barrier.wait()
        answers.append(complete(generator))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == ["An answer from the model."] * 4


def test_a_dropped_generator_closes_its_connections(server):
    generator = OpenAIGenerator(server.base_url, "", "m")
    complete(generator)

    del generator
    gc.collect()  # an open socket would raise a ResourceWarning here
