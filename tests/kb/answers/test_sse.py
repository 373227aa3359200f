import json

import pytest
from django.db import IntegrityError, InterfaceError, OperationalError

from kb.answers.services.answers import AnswerEvent
from kb.answers.sse import event_stream
from kb.base import draining
from kb.base.streams import Share, Shares, Started


def events(response):
    blocks = b"".join(response).decode().removesuffix("\n\n").split("\n\n")
    pairs = [block.split("\n") for block in blocks]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in pairs]


def steps(*, closed=None, error=None):
    try:
        yield AnswerEvent("delta", {"text": "第一行\n第二行\r\u2028"})
        if error:
            raise error
        yield AnswerEvent("done", {"answer": ""})
    finally:
        if closed is not None:
            closed.append(True)


def test_an_event_is_a_name_and_one_line_of_json():
    assert events(event_stream(steps())) == [
        ("delta", {"text": "第一行\n第二行\r\u2028"}),
        ("done", {"answer": ""}),
    ]


@pytest.mark.django_db
def test_a_response_that_is_closed_closes_the_events():
    closed = []
    response = event_stream(steps(closed=closed))
    next(iter(response))
    response.close()
    assert closed == [True]


@pytest.mark.django_db
def test_a_response_that_is_closed_before_anything_is_sent_closes_them_too():
    closed = []
    unread = Started(steps(closed=closed))
    event_stream(unread).close()
    assert closed == [True]


@pytest.mark.parametrize("error", [OperationalError, InterfaceError, IntegrityError])
def test_a_database_that_fails_in_the_middle_is_told_in_the_stream(error):
    (first, _), (name, data) = events(event_stream(steps(error=error())))
    assert (first, name, data["code"]) == ("delta", "error", "unavailable")


def test_a_server_that_is_about_to_end_says_so_and_lets_go_of_the_model(settings):
    settings.WEB_END_SECONDS = 0
    closed = []
    draining.begin()
    try:
        (first, _), (name, data) = events(event_stream(steps(closed=closed)))
    finally:
        draining.forget()
    assert (first, name, data["code"]) == ("delta", "error", "unavailable")
    assert closed == [True]


def test_a_server_that_has_time_left_finishes(settings):
    settings.WEB_END_SECONDS = 60
    draining.begin()
    try:
        assert [name for name, _ in events(event_stream(steps()))] == ["delta", "done"]
    finally:
        draining.forget()


def test_a_page_may_be_sent_something_else():
    assert events(event_stream(steps(), lambda event: {"length": len(event.data)})) == [
        ("delta", {"length": 1}),
        ("done", {"length": 1}),
    ]


@pytest.mark.django_db
@pytest.mark.parametrize(("goes_on", "written"), [(True, 5), (False, 1)])
def test_a_stream_whose_place_another_has_says_so_and_its_answer_goes_on_if_it_is_to(goes_on, written):
    share, given = Share(), []

    def steps():
        for number in range(5):
            given.append(number)
            yield AnswerEvent("delta", {"text": str(number), "message_id": 1})

    response = event_stream(steps(), goes_on=goes_on, share=share)
    sent = iter(response)
    next(sent)
    share.is_displaced = True
    assert [(name, data["code"]) for name, data in events(sent)] == [("error", "too_many_streams")]
    assert len(given) == written


@pytest.mark.django_db
def test_who_leaves_gives_up_the_place_before_the_answer_is_written_to_its_end(monkeypatch):
    shares = Shares()
    monkeypatch.setattr("kb.base.streams.SHARES", shares)
    share, places = shares.take({"ann": 1}), []

    def steps():
        yield AnswerEvent("sources", {"message_id": 1})
        yield AnswerEvent("delta", {"text": "1"})
        places.append(shares.take({"ann": 1}))
        yield AnswerEvent("done", {})

    response = event_stream(steps(), share=share)
    next(iter(response))
    response.close()
    assert places[0] is not None
