import json

import pytest

from tests.load import __main__ as load
from tests.load.client import Answer, NotLoopback, Target, require_loopback, under_load
from tests.load.faults import errors, unnoted, unwell, wrong
from tests.load.report import Figures

RIGHT = {"年假": [1, 2]}


def answer(*chunks, status=200, degraded=(), seconds=0.01, sent=0.0, headers=None):
    body = {
        "results": [{"chunk_id": chunk} for chunk in chunks],
        "degraded": [{"code": code} for code in ("hashing_embedder", *degraded)],
    }
    return Answer(sent, seconds, status, headers or {}, body if status == 200 else None, "年假")


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "0.0.0.0", "no-such-host.invalid", ""])
def test_load_goes_to_no_other_machine(host):
    with pytest.raises(NotLoopback, match="not this machine"):
        require_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_load_goes_to_the_loopback(host):
    require_loopback(host)


def test_a_target_elsewhere_is_refused_before_anything_is_sent(tmp_path, capsys):
    questions = tmp_path / "questions.txt"
    questions.write_text("年假\n", encoding="utf-8")

    code = load.main(["--url", "http://192.0.2.1:8000", "--key", "k", "--kb", "1", "--questions", str(questions)])

    assert code == 2
    assert "not this machine" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--clients", "65"], ["--seconds", "601"], ["--clients", "0"]])
def test_a_load_without_bounds_is_refused(option, tmp_path):
    with pytest.raises(SystemExit):
        load.main(["--key", "k", "--kb", "1", "--questions", str(tmp_path / "q.txt"), *option])


def test_the_body_names_the_knowledge_bases_and_what_else_is_asked():
    target = Target("http://127.0.0.1:8000", "key", [3], {"top_k": 4})
    assert json.loads(target.body("年假")) == {"query": "年假", "knowledge_base_ids": [3], "top_k": 4}


def test_the_figures_of_a_load():
    answers = [answer(1, sent=number, seconds=0.5 if number else 1.0) for number in range(10)]
    figures = Figures.of([*answers, answer(status=503, sent=9.5, seconds=0.5)])

    assert figures.rate == pytest.approx(11 / 10)
    assert figures.p50_ms == pytest.approx(500)
    assert figures.statuses == {200: 10, 503: 1}
    assert figures.degraded == {"hashing_embedder": 10}
    assert "10 × 200, 1 × 503" in str(figures)


def test_an_answer_that_says_nothing_of_a_loss_must_hold_what_it_held_before():
    assert not wrong([answer(1, 2)], RIGHT)
    assert wrong([answer(2, 1)], RIGHT)
    assert wrong([answer(1, 2, 3, degraded=["shared_cache_unavailable"])], RIGHT)
    assert not wrong([answer(9, degraded=["channel_failed"])], RIGHT)


def test_fewer_results_without_a_note_are_told():
    assert unnoted([answer(1)], RIGHT)
    assert not unnoted([answer(1, degraded=["channel_failed"])], RIGHT)


@pytest.mark.parametrize(
    ("status", "headers", "is_fault"),
    [
        (503, {"retry-after": "30"}, False),
        (503, {}, True),
        (500, {"retry-after": "30"}, True),
        (0, {}, True),
        (409, {"retry-after": "1"}, False),
    ],
)
def test_errors_are_503_with_a_time_to_come_back(status, headers, is_fault):
    assert bool(errors([answer(status=status, headers=headers)], [])) is is_fault
    assert bool(errors([], [(status, headers)])) is is_fault


def test_after_the_faults_all_is_as_before():
    assert not unwell([answer(1, 2)])
    assert unwell([answer(1, 2, degraded=["shared_cache_unavailable"])])
    assert unwell([answer(status=503)])


def test_a_client_that_fails_is_told_of_and_not_left_out_of_the_figures():
    made = []

    def client():
        made.append(1)
        if len(made) == 2:
            raise ConnectionError("refused")
        return lambda question: Answer(0.0, 0.01, 200, question=question)

    with pytest.raises(ConnectionError, match="refused"):
        under_load(client, ["年假"], clients=3, seconds=0.05)
