"""Answers as server-sent events. The generators are synchronous: under WSGI an asynchronous one would be buffered whole."""

import json
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from django.db import Error as DatabaseFailure
from django.http import StreamingHttpResponse
from django.utils.translation import gettext as _

from kb.services.answers import AnswerEvent

logger = logging.getLogger(__name__)


def event_stream(
    events: Generator[AnswerEvent, None, None], shown: Callable[[AnswerEvent], Mapping[str, Any]] | None = None
) -> StreamingHttpResponse:
    """The response that sends the events as they come; when it is closed, so are they.

    What fails after the first event can no longer become a status: it is the event `error`.

    Args:
        events: from `stream_answer`.
        shown: what is sent of an event; None: its data.
    """
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingHttpResponse(_encoded(events, shown), content_type="text/event-stream", headers=headers)


def _encoded(
    events: Generator[AnswerEvent, None, None], shown: Callable[[AnswerEvent], Mapping[str, Any]] | None
) -> Iterator[str]:
    with closing(events):
        try:
            for event in events:
                yield _event(event.name, shown(event) if shown else event.data)
        except DatabaseFailure:  # also a user who was deleted while the answer was written
            logger.exception("the database failed while an answer was sent")
            detail = _("The database is out of reach or overloaded: try again later.")
            yield _event("error", {"code": "unavailable", "detail": detail})


def _event(name: str, data: Mapping[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
