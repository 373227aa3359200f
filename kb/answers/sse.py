"""Answers as server-sent events. The generators are synchronous: under WSGI an asynchronous one would be buffered whole."""

import json
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from django.conf import settings
from django.db import Error as DatabaseFailure
from django.http import StreamingHttpResponse
from django.utils.translation import gettext as _

from kb.answers.services.answers import AnswerEvent
from kb.base import draining
from kb.base.streams import Share

logger = logging.getLogger(__name__)

# So long before the time that a process has to end is over, its streams say that they break off.
LAST_SECONDS = 2.0


class ServerEnds(Exception):
    """The process is about to be killed."""


class Displaced(Exception):
    """Another stream of the same answer has the place of this one."""


def fault_of(error: Exception) -> Mapping[str, Any]:
    """What the event `error` says of a failure, without its insides."""
    if isinstance(error, DatabaseFailure):  # also a user who was deleted while the answer was written
        return {"code": "unavailable", "detail": _("The database is out of reach or overloaded: try again later.")}
    if isinstance(error, ServerEnds):
        return {"code": "unavailable", "detail": _("The server is being restarted: ask again.")}
    if isinstance(error, Displaced):
        return {
            "code": "too_many_streams",
            "detail": _("This answer is read elsewhere meanwhile: load the page again."),
        }
    return {"code": "internal_error", "detail": _("The answer broke off because of a fault of the server: try again.")}


def event_text(name: str, data: Mapping[str, Any]) -> str:
    """An event as the protocol of server-sent events writes it."""
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def event_stream(
    events: Generator[AnswerEvent, None, None],
    shown: Callable[[AnswerEvent], Mapping[str, Any]] | None = None,
    fault: Callable[[Exception], Mapping[str, Any]] = fault_of,
    encoded: Callable[[str, Mapping[str, Any]], str] = event_text,
    *,
    goes_on: bool = True,
    share: Share | None = None,
) -> StreamingHttpResponse:
    """The response that sends the events of `stream_answer` as they come.

    When its reader leaves, an answer that a conversation keeps is written to its end if it `goes_on`; any other ends there,
    as it does when another stream has the place of its `share`, which is closed once nobody reads it.
    What fails after the first event can no longer become a status: it is the event `error`, of which `fault` is sent;
    of the others `shown`, or their data. `encoded` writes an event of a name and its data.
    """

    def pieces() -> Iterator[str]:
        is_kept, place = False, share or Share()
        with closing(events), closing(place):
            try:
                yield ""
                for event in events:
                    is_kept = is_kept or event.data.get("message_id") is not None
                    yield encoded(event.name, shown(event) if shown else event.data)
                    if event.name == "delta" and _process_ends():
                        yield encoded("error", fault(ServerEnds()))
                        return
                    if place.is_displaced:
                        yield encoded("error", fault(Displaced()))
                        break
                if is_kept and goes_on:
                    _write_to_the_end(events)  # of which nothing is left, but where it was displaced
            except GeneratorExit:
                place.close()
                if is_kept and goes_on:
                    _write_to_the_end(events)
                raise
            except Exception as error:  # the boundary of the stream, which would just break off
                logger.exception("an answer broke off while it was sent")
                yield encoded("error", fault(error))

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    sent = pieces()
    next(sent)  # so that closing it closes the events also where nothing was sent
    return StreamingHttpResponse(sent, content_type="text/event-stream", headers=headers)


def _process_ends() -> bool:
    return bool(draining.seconds() > settings.WEB_END_SECONDS - LAST_SECONDS)


def _write_to_the_end(events: Iterator[AnswerEvent]) -> None:
    try:
        for _left in events:
            if _process_ends():
                return
    except Exception:  # nobody reads of it
        logger.exception("an answer broke off that its reader had left")
