"""A bounded load of HTTP requests against the loopback, and what came of each."""

import http.client
import ipaddress
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

MOST_CLIENTS = 64
MOST_SECONDS = 600.0
TIMEOUT_S = 30.0


class NotLoopback(ValueError):
    """Load is for servers of one's own."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request.

    Attributes:
        sent: when, in seconds of `time.monotonic`.
        seconds: until the whole answer was there.
        status: of HTTP; 0: none came.
        headers: those that a client acts on, in small letters.
        body: of JSON; None where it is none.
        question: what was asked.
    """

    sent: float
    seconds: float
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    question: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A server's search, as one caller may ask it."""

    url: str
    key: str
    kb_ids: Sequence[int]
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_loopback(urlsplit(self.url).hostname or "")

    def body(self, question: str) -> bytes:
        fields = {"query": question, "knowledge_base_ids": list(self.kb_ids), **self.fields}
        return json.dumps(fields, ensure_ascii=False).encode()


def require_loopback(host: str) -> None:
    """Refuses every other machine.

    Raises:
        NotLoopback: the name leads, or may lead, to another one.
    """
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        addresses = set()
    if not addresses or not all(ipaddress.ip_address(address).is_loopback for address in addresses):
        raise NotLoopback(f"{host!r} is not this machine: load is sent to the loopback only")


class Connection:
    """One client's connection, which is kept open and made again where it broke."""

    def __init__(self, target: Target) -> None:
        self._target = target
        place = urlsplit(target.url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=TIMEOUT_S)

    def search(self, question: str) -> Answer:
        """Asks once; a connection that the server has closed meanwhile is no fault of it, and is opened again."""
        headers = {"Authorization": f"Bearer {self._target.key}", "Content-Type": "application/json"}
        sent = time.monotonic()
        was_open = self._connection.sock is not None
        try:
            return self._ask(sent, question, headers)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self._connection.close()
            if not was_open:
                return Answer(sent, time.monotonic() - sent, 0, question=question)
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return Answer(sent, time.monotonic() - sent, 0, question=question)
        try:
            return self._ask(sent, question, headers)
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return Answer(sent, time.monotonic() - sent, 0, question=question)

    def _ask(self, sent: float, question: str, headers: Mapping[str, str]) -> Answer:
        self._connection.request("POST", "/api/v1/search/", self._target.body(question), dict(headers))
        response = self._connection.getresponse()
        data = response.read()
        seconds = time.monotonic() - sent
        told = {name.lower(): value for name, value in response.getheaders()}
        body = json.loads(data) if told.get("content-type", "").startswith("application/json") else None
        return Answer(sent, seconds, response.status, told, body, question)

    def close(self) -> None:
        self._connection.close()


def under_load(
    ask: Callable[[], Callable[[str], Answer]], questions: Sequence[str], *, clients: int, seconds: float
) -> list[Answer]:
    """The answers of several clients, each of which asks its next question when the last one is answered.

    Args:
        ask: makes a client; called in the thread that it runs in.
        questions: asked in turn by all clients together, over and over.
        clients: at most MOST_CLIENTS.
        seconds: after which no further question is asked; at most MOST_SECONDS.

    Raises:
        Exception: what a client raised; it would be missing in the figures.
    """
    turn = itertools.cycle(questions)
    lock = threading.Lock()
    end = time.monotonic() + min(seconds, MOST_SECONDS)

    def run() -> list[Answer]:
        client = ask()
        answers = []
        while time.monotonic() < end:
            with lock:
                question = next(turn)
            answers.append(client(question))
        return answers

    with ThreadPoolExecutor(min(clients, MOST_CLIENTS)) as threads:
        running = [threads.submit(run) for _ in range(min(clients, MOST_CLIENTS))]
    answers = itertools.chain.from_iterable(each.result() for each in running)
    return sorted(answers, key=lambda answer: answer.sent)


def searches(target: Target) -> Callable[[], Callable[[str], Answer]]:
    """Clients for `under_load` that search."""
    return lambda: Connection(target).search


def codes(answers: Sequence[Answer]) -> Iterator[str]:
    """The codes in the `degraded` lists of the answers, each as often as it was told."""
    for answer in answers:
        for entry in (answer.body or {}).get("degraded", ()):
            yield entry["code"]
