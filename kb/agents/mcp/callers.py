"""On whose behalf a tool is called: an API key, looked up anew for each call, so that one that was revoked opens nothing."""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import anyio
from django.conf import settings
from django.db import connections
from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation.trans_real import parse_accept_lang_header
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from starlette.types import Message, Receive
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from kb.access.models import ApiKey, Principal
from kb.access.services.api_keys import api_key_use
from kb.access.services.rate_limits import GENERAL, request_spend
from kb.base.errors import DATABASE_OUT_OF_REACH, ServiceError
from kb.base.loopback import CLIENT_MIN_RATE, CLIENT_SECONDS
from kb.base.telemetry import logs as log_context
from kb.base.telemetry.requests import note
from kb.search.wiring import warm_up
from retrieval.errors import NoChannelAvailable, RetrievalError

KEY_VARIABLE = "ZHIKU_API_KEY"
SCHEME = "bearer"


class Refusal(ToolError):
    """What the caller is told instead of a result, with the HTTP status that it counts as."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def calling(context: Context[Any, Any], tool: str, *, kind: str = GENERAL) -> Iterator[Principal]:
    """The caller of a tool; while it lasts, sentences are in the caller's language.

    Args:
        context: of the call.
        tool: the name under which the call is counted.
        kind: of its rate limit: that of asking a language model, or of all else.

    Raises:
        Refusal: the key opens nothing, or a service could not do what was asked; it says what the caller can do.
    """
    with _noted(tool, context.headers) as caller, translation.override(_language(context.headers)):
        try:
            yield _admitted(context.headers, kind, caller).principal()
        except NoChannelAvailable as error:
            message = _("No search channel could answer, try again in a moment: %(reasons)s")
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, message % {"reasons": error}) from error
        except (ServiceError, RetrievalError) as error:
            raise Refusal(HTTPStatus.BAD_REQUEST, str(error)) from error
        except DATABASE_OUT_OF_REACH as error:
            message = _("The database is out of reach or overloaded: try again later.")
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, message) from error
        finally:
            connections.close_all()  # the thread that ran the call may never run another


@contextmanager
def _noted(tool: str, headers: Mapping[str, str] | None) -> Iterator[dict[str, Any]]:
    """Counts the call and writes its line, as of a request whose route is the tool; takes who called."""
    started, status, caller = time.perf_counter(), HTTPStatus.INTERNAL_SERVER_ERROR, dict[str, Any]()
    with log_context.bound(request_id=log_context.request_id_of(headers or {})):
        try:
            yield caller
            status = HTTPStatus.OK
        except Refusal as refusal:
            status = refusal.status
            raise
        finally:
            note(f"mcp:{tool}", "POST", status, started, **caller)


def key_in(headers: Mapping[str, str] | None) -> str:
    """The key that a request carries, or without a request, the one in the environment; blank: none."""
    if headers is None:
        return os.environ.get(KEY_VARIABLE, "").strip()
    scheme, _separator, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == SCHEME else ""


def _admitted(headers: Mapping[str, str] | None, kind: str, caller: dict[str, Any]) -> ApiKey:
    """The key of a call that is within its limit; `caller` takes whose it is."""
    key = api_key_use(key_in(headers))
    if key is None:
        raise Refusal(HTTPStatus.UNAUTHORIZED, _("This API key is unknown, revoked or expired: ask for a new one."))
    caller.update(user=key.user_id, key=key.prefix)
    spent = request_spend(key.user, key, kind=kind)
    if spent is not None and not spent.allowed:
        message = _("Too many requests with this API key: wait %(seconds)s seconds, then go on.")
        raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, message % {"seconds": spent.resets_in_s})
    return key


def _language(headers: Mapping[str, str] | None) -> str:
    """That of the request's Accept-Language as far as the sentences are translated, else the site's."""
    for wanted, _quality in parse_accept_lang_header((headers or {}).get("accept-language", "").lower()):
        try:
            return str(translation.get_supported_language_variant(wanted))
        except LookupError:
            continue
    return str(settings.LANGUAGE_CODE)


class PacedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Closes a connection over which for CLIENT_SECONDS no request has come and none is answered."""

    _seen: Any = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(CLIENT_SECONDS, self._look)

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self.cycle is self._seen:
            self.transport.abort()
            return
        self._seen = self.cycle
        self.loop.call_later(CLIENT_SECONDS, self._look)


def paced(receive: Receive) -> Receive:
    """As a client that goes away is one whose body comes too slowly."""
    started, received, is_whole = time.monotonic(), 0, False

    async def received_in_time() -> Message:
        nonlocal received, is_whole
        if is_whole:
            return await receive()
        allowed = CLIENT_SECONDS + received / CLIENT_MIN_RATE
        message: Message = {"type": "http.disconnect"}
        with anyio.move_on_after(started + allowed - time.monotonic()):
            message = await receive()
        received += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        return message

    return received_in_time


def warm_up_beside() -> None:
    """Loads tokenizers and models beside the first requests, once a process."""
    threading.Thread(target=warm_up, name="warm-up", daemon=True).start()
