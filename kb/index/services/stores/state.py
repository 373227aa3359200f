"""Which store a knowledge base uses, which one it is on its way to, and how far the copies are."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Min
from django.utils import timezone

from kb.access.models import KnowledgeBase
from kb.base.messages import shown
from kb.index.mirrors.registry import configured_stores
from kb.index.models import StoreChange, StoreState

Store = KnowledgeBase.Store


@dataclass(frozen=True, slots=True)
class CopyState:
    """A copy in another store than PostgreSQL, or a move back to PostgreSQL.

    Attributes:
        status: as in `StoreState.Status`.
        left: changes that are not applied.
        total: how many there were when the copy was begun.
        oldest: when the oldest of those that are left was made.
        checked: what was measured before searches changed over.
        error: why the last try has failed; blank: it has not.
    """

    store: str
    status: str
    left: int
    total: int
    oldest: datetime | None
    checked: dict[str, float]
    error: str
    applied_at: datetime | None
    retry_at: datetime | None

    @property
    def label(self) -> str:
        return str(Store(self.store).label)

    @property
    def done(self) -> int:
        return max(0, self.total - self.left)

    @property
    def percent(self) -> int:
        return 100 * self.done // self.total if self.total else 0

    @property
    def has_failed(self) -> bool:
        return self.status == StoreState.Status.FAILED

    @property
    def lag_seconds(self) -> int:
        return 0 if self.oldest is None else max(0, round((timezone.now() - self.oldest).total_seconds()))


@dataclass(frozen=True, slots=True)
class StoresState:
    """The store that searches use, and the one on its way.

    Attributes:
        store: that searches use.
        active: its copy; None where it is PostgreSQL.
        target: on its way; None: none.
        choices: the stores that it may be moved to, as (name, label).
        index: what was measured of PostgreSQL's own index when searches changed over to it; empty: nothing.
        is_configured: whether this installation can reach the store that searches use.
    """

    store: str
    active: CopyState | None
    target: CopyState | None
    choices: tuple[tuple[str, str], ...]
    index: dict[str, float]
    is_configured: bool

    @property
    def label(self) -> str:
        return str(Store(self.store).label)


def stores_state(kb: KnowledgeBase) -> StoresState:
    """As stored now, so that every process shows the same."""
    states = {state.store: state for state in StoreState.objects.filter(knowledge_base=kb)}
    rows = StoreChange.objects.filter(knowledge_base=kb).order_by().values_list("store")
    left = {store: (count, oldest) for store, count, oldest in rows.annotate(Count("pk"), Min("created_at"))}

    def copy(store: str) -> CopyState | None:
        state, (count, oldest) = states.get(store), left.get(store, (0, None))
        if state is None:
            return None
        return CopyState(
            store=store,
            status=state.status,
            left=count,
            total=state.total,
            oldest=oldest,
            checked=state.checked,
            error=shown(state.error),
            applied_at=state.applied_at,
            retry_at=state.retry_at,
        )

    names = configured_stores()
    return StoresState(
        store=kb.store,
        active=None if kb.store == Store.POSTGRES else copy(kb.store),
        target=copy(kb.target_store) if kb.target_store else None,
        choices=tuple((name, Store(name).label) for name in names if name != kb.store),
        index=states[kb.store].checked if kb.store == Store.POSTGRES and kb.store in states else {},
        is_configured=kb.store in names,
    )
