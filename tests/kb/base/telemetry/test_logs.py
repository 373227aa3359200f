import io
import json
import logging
import logging.config

import pytest
from celery import current_app
from django.db import connection
from prometheus_client import REGISTRY

from kb.base.db.transactions import ConnectionReturningExecutor
from kb.base.telemetry import logs as context, requests as tasks
from kb.base.telemetry.logs import ContextFilter, Json, Line, chosen_form, logging_config

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def written(formatter, call):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    handler.addFilter(ContextFilter())
    logger = logging.getLogger("of.a.test")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        call(logger)
    finally:
        logger.removeHandler(handler)
    return stream.getvalue()


def test_a_line_is_one_json_object_with_what_is_bound():
    with context.bound(request_id="abc", document_id=7):
        line = written(Json(), lambda log: log.info("文档 %s\nready", 7, extra={"zhiku": {"status": 200}}))
    assert line.count("\n") == 1
    told = json.loads(line)
    assert {"level": "INFO", "logger": "of.a.test", "message": "文档 7\nready"}.items() <= told.items()
    assert (told["request_id"], told["document_id"], told["status"]) == ("abc", 7, 200)


def test_a_traceback_stays_within_its_line():
    def fail(log):
        try:
            int("broken")
        except ValueError:
            log.exception("it failed")

    line = written(Json(), fail)
    assert line.count("\n") == 1
    assert "ValueError: invalid literal" in json.loads(line)["exc_info"]


def test_a_line_for_people_ends_with_what_is_bound():
    with context.bound(request_id="abc"):
        line = written(Line("{message}", style="{"), lambda log: log.info("ready"))
    assert line == "ready [request_id=abc]\n"


def test_what_is_bound_ends_with_its_block_and_goes_along_into_threads():
    with ConnectionReturningExecutor(max_workers=1) as threads:
        with context.bound(request_id="abc"):
            assert threads.submit(context.fields).result() == {"request_id": "abc"}
        assert threads.submit(context.fields).result() == {}
    assert context.fields() == {}


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"X-Request-ID": "of-the-caller-1"}, "of-the-caller-1"),
        ({"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, TRACE),
        ({"X-Request-ID": "bad id\n", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, TRACE),
    ],
)
def test_the_id_that_a_caller_gives_is_kept(headers, wanted):
    assert context.request_id_of(headers) == wanted


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Request-ID": "short"},
        {"X-Request-ID": "x" * 65},
        {"X-Request-ID": 'a","level":"ERROR'},
        {"traceparent": f"ff-{TRACE}-00f067aa0ba902b7-01"},
        {"traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-01"},
        {"traceparent": "nonsense"},
    ],
)
def test_what_is_no_id_gets_into_no_log(headers):
    made = context.request_id_of(headers)
    assert len(made) == 32
    assert made not in headers.values()
    assert made != context.request_id_of(headers)


def test_a_task_carries_the_request_and_nothing_else_of_its_sender():
    headers = {}
    with context.bound(request_id="abc", user=3):
        tasks.send_along(headers=headers)
    assert headers == {tasks.HEADER: {"request_id": "abc"}}

    @current_app.task(name="of.a.test", bind=True)
    def show(self):
        return dict(context.fields())

    found = show.apply(headers=headers).get()
    assert (found["request_id"], found["task"]) == ("abc", "of.a.test")
    assert context.fields() == {}


def test_the_response_names_the_request_and_the_access_line_names_no_query(db, client, caplog):
    with caplog.at_level(logging.INFO, "zhiku.access"):
        answer = client.get("/api/v1/documents/?q=secret-words", headers={"X-Request-ID": "of-the-caller-1"})
    assert answer.headers["X-Request-ID"] == "of-the-caller-1"
    line = next(record for record in caplog.records if record.name == "zhiku.access")
    assert (line.zhiku["request_id"], line.zhiku["status"]) == ("of-the-caller-1", answer.status_code)
    assert "secret-words" not in str(line.__dict__)


def test_the_form_is_json_where_debug_is_off(monkeypatch):
    monkeypatch.delenv("LOG_FORMAT", raising=False)
    assert [chosen_form(local=local) for local in (True, False)] == ["line", "json"]
    monkeypatch.setenv("LOG_FORMAT", "line")
    assert chosen_form(local=False) == "line"


def test_a_form_that_is_none_does_not_keep_a_process_from_logging():
    assert logging_config(form="yaml", level="INFO")["handlers"]["console"]["formatter"] == "json"


def test_what_is_added_ends_with_the_block_that_is_open_and_is_nothing_outside_of_one():
    context.add(search="t1")
    assert context.fields() == {}
    with context.bound(request_id="abc"):
        context.add(search="t1")
        assert context.fields() == {"request_id": "abc", "search": "t1"}
    assert context.fields() == {}


def test_a_task_that_was_not_begun_here_ends_without_a_line(caplog):
    with context.bound(request_id="mine"):
        tasks.end("another process's", None)
        assert context.fields() == {"request_id": "mine"}
    assert not caplog.records


def test_a_request_is_counted_where_connections_are_in_no_pool(db, monkeypatch):
    monkeypatch.setattr(connection, "_connection_pools", {}, raising=False)
    labels = {"route": "api:of no pool", "method": "other", "status": "2xx"}
    tasks.note("api:of no pool", "BREW", 200, 0.0)
    assert REGISTRY.get_sample_value("zhiku_http_requests_total", labels) == 1
