"""Cuts off clients that send too slowly, of which uvicorn holds any number for any time."""

import time
from typing import Any

import anyio
from starlette.types import Message, Receive
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from kb.base.net.client_pace import CLIENT_MIN_RATE, CLIENT_SECONDS


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
