"""One parser's child for several small files or pages, one after the other: starting a child costs more than they do."""

import json
import logging
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final, TypeVar

from kb.ingest.parser.parsed import ErrorCode, ParsedDocument, ParseError
from kb.ingest.parser.sandbox import (
    DEFAULT_LIMITS,
    Limits,
    answer,
    bind,
    child_command,
    child_environment,
    decode_answer,
    decode_document,
    kill,
    run_job,
)

logger = logging.getLogger(__name__)

_Read = TypeVar("_Read")

FILES_A_CHILD: Final = 500
PATIENCE_SECONDS: Final = 10.0
"""So long the common child may take over a small file."""
_LENGTH_BYTES: Final = 8
_READ_SIZE: Final = 65_536


class TooSlow(Exception):
    """A file takes longer than others should wait for: parse it by itself."""


class _Fault(Exception):
    """The child did not do what it was asked."""


class WarmParser:
    """Runs jobs on small files under the limits of the sandbox, in a child that lives on from file to file.

    The child begins with the first file. A file that fails after others is read once more in a child of its own, so that
    what they have left behind is never blamed on it, and the common child is started again. A slow one is given up, since
    the others wait for it. As a file may take its child over, files that must not know of each other need parsers of their
    own.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._warm = replace(limits, seconds=min(limits.seconds, PATIENCE_SECONDS))
        self._child: subprocess.Popen[bytes] | None = None
        self._files = 0

    def parse(self, path: Path, filename: str) -> ParsedDocument:
        """As `parse_file` of the sandbox; raises as `run`."""
        return self.run("parse", path, decode_document, filename=filename)

    def run(self, job: str, path: Path, decode: Callable[[Any], _Read], **arguments: Any) -> _Read:
        """As `run_job` of the sandbox, for a job that writes no files.

        `decode` makes what is wanted of the child's answer, and raises ParseError where that has another shape.

        Raises:
            ParseError: the file cannot be read, or reading it broke a limit.
            TooSlow: the limits would allow it more time than the others should wait.
            OSError: there is no such file, or it may not be opened.
        """
        if path.stat().st_size <= self._limits.input_bytes:
            try:
                return decode(decode_answer(self._ask(job, path, arguments)))
            except (ParseError, _Fault, TooSlow) as error:
                was_alone = self._files == 1
                self.close()
                if isinstance(error, TooSlow) or (isinstance(error, ParseError) and was_alone):
                    raise
                logger.info("job %s of %r is run once more, by a child of its own: %s", job, arguments, error)
        return decode(self._by_itself(job, path, arguments))

    def _by_itself(self, job: str, path: Path, arguments: Mapping[str, Any]) -> Any:
        try:
            return run_job(job, path, limits=self._warm, **arguments)
        except ParseError as error:
            if error.code is ErrorCode.TIMEOUT and self._warm.seconds < self._limits.seconds:
                raise TooSlow(f"{self._warm.seconds} seconds were not enough") from error
            raise

    def close(self) -> None:
        child, self._child, self._files = self._child, None, 0
        if child is None:
            return
        kill(child)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        child.wait()

    def _ask(self, job: str, path: Path, arguments: Mapping[str, Any]) -> bytes:
        if self._files >= FILES_A_CHILD:
            self.close()
        child = self._child = self._child or _start(self._warm)
        self._files += 1
        data = path.read_bytes()  # the child may open no file of ours
        order = json.dumps({"job": job, "arguments": arguments, "bytes": len(data)}) + "\n"
        deadline = time.monotonic() + self._warm.seconds
        try:
            self._send(child, order.encode() + data, deadline)
        except BrokenPipeError as error:
            raise _Fault("it had ended") from error
        return self._receive(child, deadline)

    def _send(self, child: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
        """A child that does not read fills the pipe; nobody waits for it longer than for its answer."""
        rest = memoryview(data)
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdin, selectors.EVENT_WRITE)  # type: ignore[arg-type]
            while rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TooSlow(f"{self._warm.seconds} seconds were not enough")
                rest = rest[os.write(child.stdin.fileno(), rest) :]  # type: ignore[union-attr]

    def _receive(self, child: subprocess.Popen[bytes], deadline: float) -> bytes:
        received, whole = bytearray(), _LENGTH_BYTES
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
            while len(received) < whole:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TooSlow(f"{self._warm.seconds} seconds were not enough")
                data = os.read(child.stdout.fileno(), _READ_SIZE)  # type: ignore[union-attr]
                if not data:
                    raise _Fault("it ended")
                received += data
                if len(received) >= _LENGTH_BYTES:
                    whole = _LENGTH_BYTES + int.from_bytes(received[:_LENGTH_BYTES], "big")
                if whole > self._limits.output_bytes:
                    raise _Fault("it answered too much")
        if len(received) > whole:
            raise _Fault("it said more than it was asked")
        return bytes(received[_LENGTH_BYTES:])


def _start(limits: Limits) -> subprocess.Popen[bytes]:
    started = subprocess.Popen(  # noqa: S603 - no shell, and every word of the command is ours
        child_command("warm_parser", json.dumps(asdict(limits))),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a child of its own says what is wrong with a file
        env=child_environment(),
        start_new_session=True,
    )
    os.set_blocking(started.stdin.fileno(), False)  # type: ignore[union-attr]
    return started


def child() -> None:
    """The child's whole life: limits, then orders on stdin, each a line and a file's bytes.

    For each it answers with the answer's length and the answer.
    """
    answers = bind(Limits(**json.loads(sys.argv[2])))
    for line in sys.stdin.buffer:
        order = json.loads(line)
        told = answer(order["job"], BytesIO(sys.stdin.buffer.read(order["bytes"])), order["arguments"])
        answers.write(len(told).to_bytes(_LENGTH_BYTES, "big") + told)
        answers.flush()
