"""Docling Serve over HTTP: a file is handed in, asked after until it is converted, and its result fetched.

Source: the API of docling-serve, version 1 (`/v1/convert/file/async`, `/v1/status/poll/{task}`, `/v1/result/{task}`).
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from kb.base import cancellation
from kb.base.net.interruptible import made_interruptible
from kb.ingest.remote_parsers import protocol
from kb.ingest.remote_parsers.protocol import RemoteFailure

_OPTIONS: Final = {
    "to_formats": "json",
    "image_export_mode": "placeholder",
    "include_images": "false",
    "do_pdf_heading_hierarchy": "true",
    "target_type": "inbody",
}
_ATTEMPTS: Final = 4
_BACKOFF: Final = wait_exponential(multiplier=0.5, max=20.0) + wait_random(0.0, 0.5)
_LONGEST_PAUSE: Final = 60.0
_TRANSIENT: Final = frozenset({408, 425, 429})
_ONE_READ_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 5.0  # So long the server may hold a question after a task until there is news
_PAUSE_SECONDS: Final = 1.0
_STATUS_BYTES: Final = 1024**2
_TASK_ID: Final = re.compile(r"[\w-]{1,100}")


class _Transient(Exception):
    """A failure that a later attempt may not meet."""

    def __init__(self, failure: RemoteFailure, retry_after_s: float | None = None) -> None:
        self.failure, self.retry_after_s = failure, retry_after_s
        super().__init__(str(failure))


class _Task(msgspec.Struct):
    task_id: str
    task_status: str


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self._seconds, self._end = seconds, time.monotonic() + seconds

    def left(self) -> float:
        """Seconds; raises RemoteFailure where there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise RemoteFailure(protocol.too_slow(self._seconds), is_outage=True)
        return left


class DoclingServe:
    """A server at an address, which may take `seconds` for a file; its answer has at most `max_bytes`."""

    label = "Docling Serve"
    # Tables of records and plain text are read here: a row becomes a record, which Docling has not.
    formats = frozenset({"pdf", "docx", "pptx", "html"})
    job = "docling"

    def __init__(
        self,
        url: str,
        api_key: str,
        seconds: float,
        *,
        max_bytes: int,
        sleep: Callable[[float], None] = cancellation.sleep,
    ) -> None:
        self.address, self._seconds, self._max_bytes, self._sleep = url.rstrip("/"), seconds, max_bytes, sleep
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if api_key:
            self._headers["X-Api-Key"] = api_key

    def ping(self, seconds: float = 1.0) -> str:
        deadline = _Deadline(seconds)
        with self._connected() as client:
            try:
                self._answer(client, deadline, _STATUS_BYTES, "GET", "/health")
            except _Transient as error:
                raise error.failure from error
        return self.label

    def convert(self, path: Path, kind: str, answer: Path, *, on_wait: Callable[[], None]) -> None:
        deadline = _Deadline(self._seconds)
        with self._connected() as client:

            def ask(most: int, method: str, target: str, **request: Any) -> bytes:
                on_wait()
                return self._retried(deadline, lambda: self._answer(client, deadline, most, method, target, **request))

            with path.open("rb") as file:
                # The name tells the format and nothing of the document.
                form = {"files": {"files": (f"document.{kind}", file)}, "data": _OPTIONS}
                task = _task(ask(_STATUS_BYTES, "POST", "/v1/convert/file/async", rewind=file, **form))
            while task.task_status not in ("success", "failure"):
                if task.task_status not in ("pending", "started"):
                    raise RemoteFailure(protocol.MALFORMED, is_outage=True)
                self._sleep(min(_PAUSE_SECONDS, deadline.left()))
                target = f"/v1/status/poll/{task.task_id}"
                task = _task(ask(_STATUS_BYTES, "GET", target, params={"wait": _POLL_SECONDS}))
            if task.task_status == "failure":
                raise RemoteFailure(protocol.REFUSED)
            answer.write_bytes(ask(self._max_bytes, "GET", f"/v1/result/{task.task_id}"))

    @contextmanager
    def _connected(self) -> Iterator[httpx.Client]:
        try:
            client = httpx.Client(base_url=self.address, headers=self._headers, follow_redirects=False)
            with made_interruptible(client):
                yield client
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise RemoteFailure(protocol.UNREACHABLE, is_outage=True) from error

    def _retried(self, deadline: _Deadline, ask: Callable[[], bytes]) -> bytes:
        retrying = Retrying(
            retry=retry_if_exception_type(_Transient),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=_pause,
            sleep=lambda seconds: self._sleep(min(seconds, deadline.left())),
            reraise=True,
        )
        try:
            return retrying(ask)
        except _Transient as error:
            raise error.failure from error

    def _answer(
        self, client: httpx.Client, deadline: _Deadline, most: int, method: str, target: str, **request: Any
    ) -> bytes:
        """The body of an answer with HTTP 200; raises RemoteFailure, and _Transient where another attempt is worth it."""
        if file := request.pop("rewind", None):
            file.seek(0)
        timeout = httpx.Timeout(min(_ONE_READ_SECONDS, deadline.left()))
        received = bytearray()
        try:
            with client.stream(method, target, timeout=timeout, **request) as response:
                _check_status(response)
                for piece in response.iter_raw():
                    received += piece
                    if len(received) > most:
                        raise RemoteFailure(protocol.too_large(most), is_outage=True)
                    deadline.left()
        except httpx.UnsupportedProtocol:
            raise
        except httpx.HTTPError as error:
            deadline.left()
            raise _Transient(RemoteFailure(protocol.UNREACHABLE, is_outage=True)) from error
        return bytes(received)


def _task(body: bytes) -> _Task:
    try:
        task = msgspec.json.decode(body, type=_Task)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise RemoteFailure(protocol.MALFORMED, is_outage=True) from error
    if not _TASK_ID.fullmatch(task.task_id):
        raise RemoteFailure(protocol.MALFORMED, is_outage=True)
    return task


def _check_status(response: httpx.Response) -> None:
    status = response.status_code
    if status == httpx.codes.OK:
        return
    if status == httpx.codes.NOT_FOUND and "/v1/convert" not in response.request.url.path:
        raise RemoteFailure(protocol.GONE, is_outage=True)
    if status in _TRANSIENT or status >= 500:
        reason = protocol.BUSY if status == httpx.codes.TOO_MANY_REQUESTS else protocol.bad_status(status)
        raise _Transient(RemoteFailure(reason, is_outage=True), _retry_after(response.headers))
    # Too large, or not a file that it takes; others are about the address or the key
    is_about_file = status in (httpx.codes.REQUEST_ENTITY_TOO_LARGE, httpx.codes.UNPROCESSABLE_ENTITY)
    raise RemoteFailure(protocol.bad_status(status), is_outage=not is_about_file)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    value = headers.get("retry-after", "")
    if value.isdecimal():
        return float(value[:6])
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, TypeError):
        return None
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_s if isinstance(error, _Transient) else None
    return min(_LONGEST_PAUSE, max(asked or 0.0, _BACKOFF(state)))
