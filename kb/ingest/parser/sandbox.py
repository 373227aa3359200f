"""Runs parsers in a child process with limits, because a file from outside may be made to harm them."""

import json
import logging
import math
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

from kb.base.cancellation import interruptible
from kb.ingest.parser.confinement import confine
from kb.ingest.parser.office import OfficeLimits, converted, convertible
from kb.ingest.parser.parse import parse
from kb.ingest.parser.parsed import DEFAULT_READING, OFFICE_FORMATS, ParsedDocument, ParseError, Reading
from kb.ingest.parser.processes import kill, start

logger = logging.getLogger(__name__)

_Read = TypeVar("_Read")

_MIB: Final = 1024**2
_BOOTSTRAP: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from kb.ingest.parser import sandbox; sandbox.{child}()"
)
_STDERR_TAIL = 4096
_READ_SIZE = 65536
_OPEN_FILES = 64
_LARGEST: Final = 2**31 - 1  # Page, or second
# What allocators, the loader and Python write when the address space ends.
_MEMORY_SIGNS = (b"MemoryError", b"Cannot allocate memory", b"failed to map segment", b"out of memory", b"bad_alloc")


# What a child can do: functions of an open file and arguments, that return what JSON can hold.
JOBS: Final = {
    "parse": "kb.ingest.parser.sandbox:parse_job",
    "kind": "kb.ingest.parser.parse:kind_job",
    "structure": "kb.ingest.formats.structure:structure_job",
    "page_sizes": "kb.ingest.formats.pdf.pages:sizes_job",
    "page_image": "kb.ingest.formats.pdf.pages:render_job",
    "icon": "kb.ingest.formats.pictures:icon_job",
    "docling": "kb.ingest.remote_parsers.docling.document:convert_job",
    "unpack": "kb.ingest.parser.archives:unpack_job",
    "detach": "kb.ingest.parser.archives:detach_job",
    "page": "kb.sources.connectors.markup:page_job",
    "links": "kb.sources.connectors.markup:links_job",
    "feed": "kb.sources.connectors.markup:feed_job",
    "probe": "kb.ingest.parser.confinement:probe_job",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one file may cost: memory is the child's address space, output a parsed document as UTF-8 JSON.

    The child may write files of at most `file_bytes`; 0: none.
    """

    memory_bytes: int = 1024 * _MIB
    seconds: float = 120.0
    output_bytes: int = 64 * _MIB
    input_bytes: int = 100 * _MIB
    file_bytes: int = 0


DEFAULT_LIMITS: Final = Limits()


def parse_file(
    path: Path, filename: str, *, limits: Limits = DEFAULT_LIMITS, reading: Reading = DEFAULT_READING
) -> ParsedDocument:
    """Parses a stored file under limits, which LibreOffice shares where it must convert the file; raises as `run_job`."""
    deadline = time.monotonic() + limits.seconds
    arguments: dict[str, Any] = {"filename": filename, "reading": asdict(reading)}
    try:
        return decode_document(run_job("parse", path, limits=limits, **arguments))
    except ParseError as error:
        if (kind := convertible(error)) is None:
            raise
    try:
        with converted(path, kind, OfficeLimits(limits.memory_bytes, deadline - time.monotonic())) as made:
            rest = replace(limits, seconds=max(0.0, deadline - time.monotonic()))
            document = decode_document(run_job("parse", made, limits=rest, **arguments))
    except ParseError as error:
        if error.code == "timeout":
            raise ParseError("timeout", seconds=_seconds(limits)) from error
        raise
    return replace(document, mime=OFFICE_FORMATS[kind].mime)


def run_job(job: str, path: Path, *, limits: Limits, writable: Path | None = None, **arguments: Any) -> Any:
    """Runs one of JOBS on a stored file, with arguments that JSON can hold; it may create files in `writable` only.

    Returns what the child answered, decoded from JSON, whose shape the caller checks. Raises ParseError where the job
    did, or broke a limit; OSError where there is no such file, or it may not be opened.
    """
    if path.stat().st_size > limits.input_bytes:
        raise ParseError("too_large", megabytes=_megabytes(limits.input_bytes))
    order = {
        "job": job,
        "limits": asdict(limits),
        "writable": None if writable is None else str(writable.resolve(strict=True)),
        "arguments": arguments,
    }
    with _child_process(path, order) as process:
        output, errors, status = _communicate(process, limits)
    if status != 0:
        logger.warning("job %s of %r ended with status %d: %s", job, arguments, status, errors.decode(errors="replace"))
        raise _failure(status, errors, limits)
    return decode_answer(output)


def confinement() -> tuple[bool, bool]:
    """Whether a child here is refused the calls that it must not make, and the files; ParseError: none can run."""
    told = run_job("probe", Path(os.devnull), limits=DEFAULT_LIMITS)
    return told["calls"] is True, told["files"] is True


@contextmanager
def _child_process(path: Path, order: Mapping[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    with path.open("rb") as file, _start("child", order, stdin=file, stderr=subprocess.PIPE) as process:
        try:
            with interruptible(partial(kill, process)):
                yield process
        finally:
            kill(process)


def _start(child: str, order: Mapping[str, Any], **pipes: Any) -> subprocess.Popen[bytes]:
    """Starts `child`, a function of this module."""
    return start(_BOOTSTRAP.format(child=child), order, stdout=subprocess.PIPE, **pipes)


def _communicate(process: subprocess.Popen[bytes], limits: Limits) -> tuple[bytes, bytes, int]:
    """Reads both pipes to their end and awaits the exit, within the time and the size allowed."""
    deadline = time.monotonic() + limits.seconds
    output, errors = bytearray(), b""
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise ParseError("timeout", seconds=_seconds(limits))
            for key, _ in ready:
                data = os.read(key.fd, _READ_SIZE)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fileobj is process.stdout:
                    output += data
                else:
                    errors = (errors + data)[-_STDERR_TAIL:]
            if len(output) > limits.output_bytes:
                raise ParseError("too_much_text", megabytes=_megabytes(limits.output_bytes))
    try:
        return bytes(output), errors, process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise ParseError("timeout", seconds=_seconds(limits)) from error


def _failure(status: int, errors: bytes, limits: Limits) -> ParseError:
    if status == -signal.SIGXCPU:
        return ParseError("timeout", seconds=_seconds(limits))
    # The system's out-of-memory killer sends SIGKILL; nobody else does once the pipes have been read.
    if status == -signal.SIGKILL or any(sign in errors for sign in _MEMORY_SIGNS):
        return ParseError("out_of_memory", megabytes=_megabytes(limits.memory_bytes))
    return ParseError("parser_crashed")


def decode_answer(output: bytes) -> Any:
    """What a job has returned, whose word is not trusted: a file may have taken its child over; raises ParseError."""
    try:
        answer = json.loads(output)
        if "error" in answer:
            raise ParseError(str(answer["error"]), **answer["params"])
        return answer["done"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ParseError("parser_crashed") from error


def decode_document(answer: Any) -> ParsedDocument:
    """What `parse_job` has answered; raises ParseError for another shape, and for numbers that no database holds."""
    try:
        document = msgspec.convert(answer, ParsedDocument)
    except msgspec.ValidationError as error:
        raise ParseError("parser_crashed") from error
    places = [(each.page, each.box) for each in document.pictures]
    for section in document.sections:
        places.append((section.page, None))
        places += ((each.page, each.box) for each in section.regions)
        if not all(0 <= (each.seconds or 0) <= _LARGEST for each in section.regions):
            raise ParseError("parser_crashed")
    if not all(0 <= (page or 0) <= _LARGEST and all(map(math.isfinite, box or ())) for page, box in places):
        raise ParseError("parser_crashed")
    return document


def _megabytes(size: int) -> int:
    return max(1, size // _MIB)


def _seconds(limits: Limits) -> int:
    return max(1, round(limits.seconds))


def child() -> None:
    """The child's whole life: limits, the file from stdin, the result or the error as JSON to stdout."""
    order = json.loads(sys.argv[2])
    answer_pipe = bind(Limits(**order["limits"]), writable=order["writable"] and Path(order["writable"]))
    with answer_pipe:
        answer_pipe.write(answer(order["job"], sys.stdin.buffer, order["arguments"]))


def bind(limits: Limits, *, writable: Path | None = None) -> BinaryIO:
    """Limits and confines this process for good; returns the pipe for the answer, out of reach of print()."""
    answer_pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for kind, value in (
        (resource.RLIMIT_CPU, math.ceil(limits.seconds) + 1),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_AS, limits.memory_bytes),
    ):
        if kind == resource.RLIMIT_AS and sys.platform == "darwin":
            continue  # macOS refuses it; the time limit still holds there
        hard = resource.getrlimit(kind)[1]
        lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (lowered, lowered))
    confine(writable)
    return answer_pipe


def answer(job: str, file: BinaryIO, arguments: Mapping[str, Any]) -> bytes:
    try:
        told = {"done": resolve_name(JOBS[job])(file, **arguments)}
    except ParseError as error:
        told = {"error": error.code, "params": error.params}
    return json.dumps(told, ensure_ascii=False).encode(errors="replace")


def parse_job(file: BinaryIO, filename: str, reading: Any = None) -> Any:
    chosen = DEFAULT_READING if reading is None else msgspec.convert(reading, Reading)
    return msgspec.to_builtins(parse(file.read(), filename, chosen))


FILES_A_CHILD: Final = 500
PATIENCE_SECONDS: Final = 10.0  # So long the common child may take over a small file
_LENGTH_BYTES: Final = 8


class TooSlow(Exception):
    """A file takes longer than others should wait for: parse it by itself."""


class _Fault(Exception):
    """The child did not do what it was asked."""


class WarmParser:
    """Runs jobs on small files under the limits of the sandbox, in a child that lives on from file to file.

    A file that fails after others is read once more in a child of its own, so that what they have left behind is never
    blamed on it, and the common child is started again. A slow one is given up, since the others wait for it. As a file
    may take its child over, files that must not know of each other need parsers of their own.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._warm = replace(limits, seconds=min(limits.seconds, PATIENCE_SECONDS))
        self._child: subprocess.Popen[bytes] | None = None
        self._files = 0

    def parse(self, path: Path, filename: str, reading: Reading = DEFAULT_READING) -> ParsedDocument:
        """As `parse_file`; raises as `run`, and TooSlow where LibreOffice must convert the file."""
        try:
            return self.run("parse", path, decode_document, filename=filename, reading=asdict(reading))
        except ParseError as error:
            if convertible(error) is not None:
                raise TooSlow("LibreOffice converts it") from error
            raise

    def run(self, job: str, path: Path, decode: Callable[[Any], _Read], **arguments: Any) -> _Read:
        """As `run_job`, for a job that writes no files; TooSlow: it is allowed more time than the others should wait.

        `decode` makes what is wanted of the child's answer, and raises ParseError where that has another shape.
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
            if error.code == "timeout" and self._warm.seconds < self._limits.seconds:
                raise TooSlow(f"{self._warm.seconds} seconds were not enough") from error
            raise

    def close(self) -> None:
        child, self._child, self._files = self._child, None, 0
        if child is not None:
            with suppress(BrokenPipeError), child:
                kill(child)

    def _ask(self, job: str, path: Path, arguments: Mapping[str, Any]) -> bytes:
        if self._files >= FILES_A_CHILD:
            self.close()
        child = self._child
        if child is None:
            # Its errors are not read: a child of its own says what is wrong with a file
            pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            child = self._child = _start("warm_child", asdict(self._warm), **pipes)
            os.set_blocking(child.stdin.fileno(), False)  # type: ignore[union-attr]
        self._files += 1
        data = path.read_bytes()  # the child may open no file of ours
        order = json.dumps({"job": job, "arguments": arguments, "bytes": len(data)}) + "\n"
        deadline = time.monotonic() + self._warm.seconds
        with interruptible(partial(kill, child)):
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


def warm_child() -> None:
    """Sets limits, then takes orders on stdin, each a line and a file's bytes; answers with a length and the answer."""
    answers = bind(Limits(**json.loads(sys.argv[2])))
    for line in sys.stdin.buffer:
        order = json.loads(line)
        told = answer(order["job"], BytesIO(sys.stdin.buffer.read(order["bytes"])), order["arguments"])
        answers.write(len(told).to_bytes(_LENGTH_BYTES, "big") + told)
        answers.flush()
