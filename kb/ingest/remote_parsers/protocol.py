"""What a parser that runs elsewhere offers, so that a knowledge base can have its documents read by it."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from retrieval.errors import Message, gettext_noop


class RemoteFailure(Exception):
    """Why a parser elsewhere did not read a file, as the end of a sentence.

    An outage says something of the server, and makes it rest after repeated ones; anything else is about the file.
    """

    def __init__(self, reason: Message, *, is_outage: bool = False) -> None:
        self.reason, self.is_outage = reason, is_outage
        super().__init__(str(reason))


class RemoteParser(Protocol):
    """A server that converts files, at an address that only the operator sets.

    Attributes:
        address: of the server, which tells one from another.
        label: its name, for people; no language translates it.
        formats: what it is asked to read, as keys of `READERS` in `kb.ingest.parser.parse`; the rest is read here.
        job: of `JOBS` in `kb.ingest.parser.sandbox`, which makes a document of its answer, without trust.
    """

    label: str
    address: str
    formats: frozenset[str]
    job: str

    def ping(self) -> str:
        """Returns what answers; raises RemoteFailure."""

    def convert(self, path: Path, kind: str, answer: Path, *, on_wait: Callable[[], None]) -> None:
        """Writes what the server makes of a file of `formats` into `answer`; raises RemoteFailure.

        `on_wait` is called again and again meanwhile, and its exceptions end the waiting.
        """


UNREACHABLE: Final = Message(gettext_noop("it does not answer"))
BUSY: Final = Message(gettext_noop("it asks for fewer requests"))
MALFORMED: Final = Message(gettext_noop("its answer is not what it should be"))
GONE: Final = Message(gettext_noop("it has lost the file before it was read"))
REFUSED: Final = Message(gettext_noop("it could not convert the file"))
EMPTY: Final = Message(gettext_noop("it found no text"))
RESTING: Final = Message(gettext_noop("it failed repeatedly and is left alone for a while"))
NOT_SET_UP: Final = Message(gettext_noop("this installation has no address for it"))


def bad_status(status: int) -> Message:
    return Message(gettext_noop("it answered with HTTP {status}"), status=status)


def too_slow(seconds: float) -> Message:
    return Message(gettext_noop("it took longer than {seconds} seconds"), seconds=max(1, round(seconds)))


def too_large(max_bytes: int) -> Message:
    return Message(gettext_noop("its answer is larger than {megabytes} MB"), megabytes=max(1, max_bytes // 1024**2))
