"""How far an answer under way is, in Redis, for a reader who has lost its stream; and readers' wish to stop it."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from django.conf import settings
from redis import Redis

from kb.base import cache as query_caches
from kb.base.models import installation_id

NOTE_SECONDS: Final = 1.0
# A model may say nothing for so long, after which whoever asked it would have given up.
SILENCE_SECONDS: Final = 30


class Stopped(Exception):
    """The reader wants no more of an answer."""


@dataclass(slots=True)
class Progress:
    """An answer as it is written: `text` so far. Noted once a second at most; without Redis it goes on unnoted."""

    message_id: int | None
    text: str = ""
    _noted: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._note()

    def grow(self, text: str) -> None:
        """Raises Stopped where the reader has asked for that."""
        self.text = text
        if time.monotonic() >= self._noted + NOTE_SECONDS and self._note():
            raise Stopped

    def end(self) -> None:
        """Once the answer is stored."""
        if self.message_id is not None:
            key, stop = _keys(self.message_id)
            _ask(lambda redis: redis.delete(key, stop))

    def _note(self) -> bool:
        if self.message_id is None:
            return False
        self._noted = time.monotonic()
        key, stop = _keys(self.message_id)

        def note(redis: Redis) -> bool:
            both = redis.pipeline(transaction=False)
            both.set(key, json.dumps([self.text, time.time()]), ex=round(2 * longest_silence()))
            both.exists(stop)
            return bool(both.execute()[1])

        return bool(_ask(note))


class Noted(NamedTuple):
    """The text so far of an answer, and when it was noted, in seconds since 1970."""

    text: str
    at: float


def noted(message_id: int) -> Noted | None:
    """How far an answer was when it was last noted; None: Redis does not know."""
    key, _stop = _keys(message_id)
    found = _ask(lambda redis: redis.get(key))
    return None if found is None else Noted(*json.loads(found))


def longest_silence() -> float:
    """For so many seconds nothing may be heard of an answer that somebody is writing."""
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
