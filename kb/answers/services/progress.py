"""How far an answer under way is, in Redis, for a reader who has lost its stream; and readers' wish to stop it."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

from django.conf import settings
from redis import Redis

from kb.base import cache as query_caches
from kb.base.models import installation_id

logger = logging.getLogger(__name__)

NOTE_SECONDS: Final = 1.0
# Nobody writes an answer of which nothing was noted for so long; Redis may be away for a moment, and is then left alone for five seconds.
LOST_SECONDS: Final = 15.0
# What a killed process has written is found for so long.
KEPT_SECONDS: Final = 3 * 60 * 60
# A model may say nothing for so long, after which whoever asked it would have given up.
SILENCE_SECONDS: Final = 30


class Stopped(Exception):
    """The reader wants no more of an answer."""


class Progress:
    """An answer as it is written: `text` so far. Noted while the block runs; without Redis it goes on unnoted."""

    def __init__(self, message_id: int | None) -> None:
        self.text = ""
        self.message_id = message_id
        self.keys: tuple[str, ...] = () if message_id is None else _keys(message_id)
        self.is_stopped = False

    def __enter__(self) -> Self:
        if self.keys:
            note([self])
            _NOTES.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        """The answer is stored."""
        if self.message_id is not None:
            _NOTES.remove(self)
            forget(self.message_id)

    def grow(self, text: str) -> None:
        """Raises Stopped where the reader has asked for that."""
        self.text = text
        if self.is_stopped:
            raise Stopped


def note(under_way: Sequence[Progress]) -> None:
    """Tells Redis how far answers are, and asks it which of them are to stop."""

    def both(redis: Redis) -> list[Any]:
        pipeline = redis.pipeline(transaction=False)
        for each in under_way:
            key, stop = each.keys
            pipeline.set(key, each.text, ex=KEPT_SECONDS)
            pipeline.exists(stop)
        return pipeline.execute()[1::2]

    for each, wish in zip(under_way, _ask(both) or (), strict=False):
        each.is_stopped = each.is_stopped or bool(wish)


class Notes:
    """Notes the answers of this process, also while their models say nothing, in a thread that runs while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[Progress] = set()
        self._runs = False

    def add(self, progress: Progress) -> None:
        with self._lock:
            if not self._runs:
                with suppress(RuntimeError):  # the system has no more threads: the next answer tries again
                    threading.Thread(target=self._run, name="answers", daemon=True).start()
                    self._runs = True
            self._under_way.add(progress)

    def remove(self, progress: Progress) -> None:
        with self._lock:
            self._under_way.discard(progress)

    def _run(self) -> None:
        while True:
            time.sleep(NOTE_SECONDS)
            with self._lock:
                under_way = list(self._under_way)
                self._runs = bool(under_way)
            if not under_way:
                return
            try:
                note(under_way)
                with self._lock:
                    ended = [key for each in under_way if each not in self._under_way for key in each.keys]
                if ended:  # while they were noted once more
                    _forget(ended)
            except Exception:
                logger.exception("answers that are being written could not be noted")


_NOTES: Final = Notes()


class Noted(NamedTuple):
    """The text so far of an answer, and for how many seconds nothing was heard of it."""

    text: str
    silent_s: float


def noted(message_id: int) -> Noted | None:
    """How far an answer was when it was last noted; None: Redis does not know."""
    key, _stop = _keys(message_id)

    def read(redis: Redis) -> list[Any]:
        both = redis.pipeline()
        both.get(key)
        both.pttl(key)
        return both.execute()

    text, left_ms = _ask(read) or (None, 0)
    return None if text is None else Noted(text.decode(), KEPT_SECONDS - left_ms / 1_000)


def forget(message_id: int) -> None:
    """Once an answer is stored, or nobody writes it."""
    _forget(_keys(message_id))


def _forget(keys: Sequence[str]) -> None:
    _ask(lambda redis: redis.delete(*keys))


def longest_silence() -> float:
    """For so many seconds an answer may be written of which Redis knows nothing."""
    return 2.0 * float(settings.LLM_SECONDS) + SILENCE_SECONDS


def stop(message_id: int) -> None:
    """Has an answer end where it is, within about a second; what is written of it stays."""
    _key, wish = _keys(message_id)
    _ask(lambda redis: redis.set(wish, "1", ex=round(longest_silence())))


def _keys(message_id: int) -> tuple[str, str]:
    key = f"{query_caches.KEY_SPACE}:answer:{installation_id()}:{message_id}"
    return key, f"{key}:stop"


def _ask(call: Callable[[Redis], Any]) -> Any:
    return query_caches.shared_redis().ask(call)
