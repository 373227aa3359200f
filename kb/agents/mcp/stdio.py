"""The MCP server over standard input and output, as a child of the program that uses it."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable

import anyio

from kb.agents.mcp.callers import warm_up_beside
from kb.agents.mcp.server import build_server

BLOCK = 65_536


def serve_stdio() -> None:
    """Serves until standard input ends, or SIGTERM or SIGINT ends it."""
    warm_up_beside()
    anyio.run(_serve, _closable_input())


async def _serve(close_input: Callable[[], None]) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_close_on_signal, close_input)
        await build_server().run_stdio_async()
        tasks.cancel_scope.cancel()


async def _close_on_signal(close_input: Callable[[], None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _number in signals:
            close_input()


def _closable_input() -> Callable[[], None]:
    """Puts a socket in the place of standard input, and a thread that fills it; returns what ends it.

    The server waits for standard input in a thread that nothing can wake but its end.
    """
    original = os.dup(0)
    ours, servers = socket.socketpair()
    os.dup2(servers.fileno(), 0)
    servers.close()

    def close() -> None:
        with contextlib.suppress(OSError):  # it has ended already
            ours.shutdown(socket.SHUT_WR)

    def fill() -> None:
        with contextlib.suppress(OSError):  # it was ended meanwhile
            while block := os.read(original, BLOCK):
                ours.sendall(block)
        close()

    threading.Thread(target=fill, name="standard-input", daemon=True).start()
    return close
