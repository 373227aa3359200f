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
    found = [
        _component("process", is_ready=draining.since() is None, detail="draining"),
        _models(),
        _component("broker", is_ready=redis_broker().state is State.OK),
        _component("cache", is_ready=redis_cache().state is State.OK, otherwise=Readiness.DEGRADED),
    ]
    try:
        applied = set(MigrationRecorder(connection).applied_migrations())
    except DatabaseError:
        return [*found, Component("database", Readiness.NOT_READY)]
    pending = len(_known_migrations() - applied)
    return [
        *found,
        Component("database", Readiness.OK),
        _component("migrations", is_ready=not pending, detail=f"{pending} not applied"),
        _component("page_cache", is_ready=not is_reading(), detail="being read in", otherwise=Readiness.DEGRADED),
    ]


def overall(found: list[Component]) -> Readiness:
    """The worst of them."""
    return max((each.state for each in found), key=list(Readiness).index)


def _component(name: str, *, is_ready: bool, detail: str = "", otherwise: Readiness = Readiness.NOT_READY) -> Component:
    return Component(name, Readiness.OK) if is_ready else Component(name, otherwise, detail)


def _models() -> Component:
    warmth = embedding_models.warmth
    if warmth.stage is embedding_models.Stage.LOADING:
        return Component("models", Readiness.NOT_READY, "loading")
    # A model may be named by its path, which is nobody's business.
    names = ", ".join(PurePath(name).name if name.startswith(("/", ".")) else name for name in warmth.failed)
    return _component("models", is_ready=not names, detail=f"not loaded: {names}", otherwise=Readiness.DEGRADED)


@lru_cache(maxsize=1)
def _known_migrations() -> frozenset[tuple[str, str]]:
    """Of this version of the code; those that a newer one has applied do not keep it from serving."""
    loader = MigrationLoader(None)
    return frozenset(key for key, each in loader.disk_migrations.items() if not each.replaces)
