"""What models are asked is counted by day, model and knowledge base, and written in sums."""

import os
import threading

import pytest
from django.db import connection
from django.db.utils import OperationalError
from django.test.utils import CaptureQueriesContext
from hypothesis import given, strategies as st

from kb.providers.usage import counting
from kb.providers.usage.counting import counted_for, flush, pieces_counted_for, shares
from kb.providers.usage.figures import days, tokens_by_day, used_since
from kb.providers.usage.models import ModelUse
from retrieval.usage import Use, report
from tests.factories import make_kb

pytestmark = pytest.mark.django_db


def rows():
    return list(
        ModelUse.objects.order_by("model", "knowledge_base_id").values_list(
            "role", "model", "knowledge_base_id", "requests", "input_tokens", "output_tokens", "estimated_tokens"
        )
    )


def test_requests_add_up_until_they_are_written_in_one_statement():
    with CaptureQueriesContext(connection) as queries:
        for _ in range(100):
            report(Use("chat", "m", 10, 2))
        report(Use("embedding", "e", 7, is_estimated=True))
    assert len(queries) == 0

    with CaptureQueriesContext(connection) as queries:
        flush()

    assert len(queries) == 1
    assert rows() == [("embedding", "e", 0, 1, 7, 0, 7), ("chat", "m", 0, 100, 1_000, 200, 0)]


def test_sums_are_added_to_what_others_have_written():
    report(Use("chat", "m", 10, 2))
    flush()
    report(Use("chat", "m", 1, 1, is_estimated=True))
    flush()
    flush()

    assert rows() == [("chat", "m", 0, 2, 11, 3, 2)]


def test_what_a_search_of_several_knowledge_bases_takes_is_theirs_in_equal_parts():
    with counted_for(4, 5, 6):
        report(Use("rerank", "r", 11))
    report(Use("rerank", "r", 1))
    flush()

    assert rows() == [
        ("rerank", "r", 0, 1, 1, 0, 0),
        ("rerank", "r", 4, 1, 5, 0, 0),
        ("rerank", "r", 5, 0, 3, 0, 0),
        ("rerank", "r", 6, 0, 3, 0, 0),
    ]


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.lists(st.integers(1, 9), max_size=7, unique=True))
def test_nothing_is_lost_in_parts(read, wrote, kb_ids):
    parts = [each for _, each in shares(Use("chat", "m", read, wrote, is_estimated=True), tuple(kb_ids))]

    assert [sum(column) for column in zip(*parts, strict=True)] == [1, read, wrote, read + wrote]


def test_an_answer_in_pieces_counts_for_its_knowledge_base_and_closes_with_its_reader():
    ended = []

    def pieces():
        try:
            yield "a"
            yield "b"
        finally:
            ended.append(True)
            report(Use("chat", "m", 1, 1))

    answer = pieces_counted_for([8], pieces())
    assert next(answer) == "a"
    report(Use("chat", "other", 1, 1))  # of whoever reads
    answer.close()
    flush()

    assert ended == [True]
    assert [row[1:3] for row in rows()] == [("m", 8), ("other", 0)]


def test_without_the_database_the_sums_wait(caplog):
    report(Use("chat", "m", 10, 2))

    def out_of_reach(*_):
        raise OperationalError("the server closed the connection")

    with connection.execute_wrapper(out_of_reach):
        flush()
        report(Use("chat", "m", 1, 1))
        flush()
    assert len([each for each in caplog.records if "could not be written" in each.message]) == 1

    flush()

    assert rows() == [("chat", "m", 0, 2, 11, 3, 0)]


def test_a_fork_leaves_to_its_parent_what_that_has_counted():
    report(Use("chat", "m", 10, 2))
    read, write = os.pipe()
    child = os.fork()
    if not child:  # which must not touch the connection of its parent
        os.write(write, str(len(counting._counter._sums)).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(read, 10) == b"0"
    flush()
    assert rows() == [("chat", "m", 0, 1, 10, 2, 0)]


@pytest.mark.django_db(transaction=True)
def test_a_thread_writes_by_itself(monkeypatch):
    monkeypatch.setattr(counting, "FLUSH_SECONDS", 0.01)
    report(Use("chat", "m", 10, 2))
    thread = next(each for each in threading.enumerate() if each.name == "model-use")
    while not ModelUse.objects.exists():
        thread.join(0.01)
    monkeypatch.setattr(counting, "FLUSH_SECONDS", 3_600)

    assert rows() == [("chat", "m", 0, 1, 10, 2, 0)]


def test_figures_name_the_knowledge_bases_that_are_left():
    kb = make_kb(name="handbook")
    with counted_for(kb.pk):
        report(Use("chat", "m", 10, 2))
    with counted_for(kb.pk + 1):
        report(Use("chat", "m", 1, 0, is_estimated=True))
    flush()

    first, second = used_since(days()[0])

    assert (first.knowledge_base, first.tokens, first.estimated_tokens) == ("handbook", 12, 0)
    assert (second.knowledge_base, second.tokens, second.estimated_tokens) == ("", 1, 1)
    assert tokens_by_day(days()[0]) == {(days()[-1], "m"): 13}


def test_a_fault_of_a_moment_does_not_end_the_writing(monkeypatch):
    monkeypatch.setattr(counting, "FLUSH_SECONDS", 0.0)
    made, calls, again = counting.Counter(), [], threading.Event()

    def flush():
        calls.append(None)
        if len(calls) == 1:
            raise KeyError("model")
        monkeypatch.setattr(counting, "FLUSH_SECONDS", 3_600)
        again.set()

    monkeypatch.setattr(made, "flush", flush)
    made.add(Use("chat", "m", 10, 2))
    assert again.wait(60)
