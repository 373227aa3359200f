"""Whether this process should get requests: a few queries, asked every few seconds by whoever balances the load."""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import PurePath

from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from kb.base import draining
from kb.base.findings import State
from kb.index.page_cache import is_reading
from kb.operations.services.health.health import redis_broker, redis_cache
from kb.providers import embedding_models


class Readiness(StrEnum):
    """`DEGRADED`: requests are answered, and less well than they could be."""

    OK = "ok"
    DEGRADED = "degraded"
    NOT_READY = "not_ready"


@dataclass(frozen=True, slots=True)
class Component:
    """One thing that requests need; `detail` holds no address and no reason, since anybody may ask."""

    name: str
    state: Readiness
    detail: str = ""


def components() -> list[Component]:
    """The process itself, its models, its servers; without the database its tables cannot be looked at."""
    found = [_process(), _models(), _of("broker", redis_broker().state), _cache()]
    return [*found, *_database()]


def overall(found: list[Component]) -> Readiness:
    """The worst of them."""
    for state in (Readiness.NOT_READY, Readiness.DEGRADED):
        if any(each.state is state for each in found):
            return state
    return Readiness.OK


def _process() -> Component:
    if draining.since() is None:
        return Component("process", Readiness.OK)
    return Component("process", Readiness.NOT_READY, "draining")


def _models() -> Component:
    warmth = embedding_models.warmth()
    if warmth.stage is embedding_models.Stage.LOADING:
        return Component("models", Readiness.NOT_READY, "loading")
    if warmth.failed:
        # A model may be named by its path, which is nobody's business.
        names = ", ".join(PurePath(name).name if name.startswith(("/", ".")) else name for name in warmth.failed)
        return Component("models", Readiness.DEGRADED, f"not loaded: {names}")
    return Component("models", Readiness.OK)


def _cache() -> Component:
    return Component("cache", Readiness.OK if redis_cache().state is State.OK else Readiness.DEGRADED)


def _database() -> list[Component]:
    try:
        applied = set(MigrationRecorder(connection).applied_migrations())
    except DatabaseError:
        return [_of("database", State.BROKEN)]
    pending = len(_known_migrations() - applied)
    state = Readiness.NOT_READY if pending else Readiness.OK
    return [
        _of("database", State.OK),
        Component("migrations", state, f"{pending} not applied" if pending else ""),
        Component("page_cache", Readiness.DEGRADED, "being read in")
        if is_reading()
        else Component("page_cache", Readiness.OK),
    ]


@lru_cache(maxsize=1)
def _known_migrations() -> frozenset[tuple[str, str]]:
    """Of this version of the code; those that a newer one has applied do not keep it from serving."""
    loader = MigrationLoader(None)
    return frozenset(key for key, each in loader.disk_migrations.items() if not each.replaces)


def _of(name: str, state: State) -> Component:
    return Component(name, Readiness.OK if state is State.OK else Readiness.NOT_READY)
