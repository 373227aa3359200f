"""Moving a knowledge base to another store: a copy beside the one in use, a check, and a swap at one moment."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from django.db.models import Count, Exists, Min, OuterRef, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _, gettext_lazy, gettext_noop

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import Purpose, fetch_all
from kb.base.errors import Rejected
from kb.content.models import Chunk
from kb.index.mirrors.registry import DRIVERS, StoreError, TextCollection, VectorCollection, configured_stores, mirror
from kb.index.models import ChunkEmbedding, StoreChange, StoreState, VectorIndex
from kb.index.pgvector import MAX_EXACT, PgVectorStore, measure_due
from kb.index.services.stores.applying import alone, changes_apply, note_failure, queue_all_chunks, refill
from kb.index.vector_index import maintain_vector_indexes, spaces_without_index, vector_spaces
from kb.jobs.moves import AlreadyRunning, Move
from retrieval.errors import Message, message_of

Status = StoreState.Status
Store = KnowledgeBase.Store

SAMPLE = 20
DEPTH = 25
LEAST_RECALL = 0.95
SPACES = """
SELECT model, kind, vector_dims(vector), count(*) FROM kb_chunkembedding
WHERE knowledge_base_id = %s AND enabled GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


# -- How far a copy is ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class CopyCheck:
    """What was counted and measured of a copy.

    Vectors and texts are counted by the name of their collection: those `expected` are in PostgreSQL, those `found` in
    the store. The `recall`, from 0 to 1, is of the first results of so many sampled searches against exact ones; None
    where there is nothing to search.
    """

    expected: dict[str, int]
    found: dict[str, int]
    recall: float | None = None
    sampled: int = 0

    @property
    def is_complete(self) -> bool:
        return Counter(self.expected) == Counter(self.found)

    @property
    def is_good(self) -> bool:
        return self.is_complete and (self.recall is None or self.recall >= LEAST_RECALL)

    def as_json(self) -> dict[str, object]:
        return {
            "expected": sum(self.expected.values()),
            "found": sum(self.found.values()),
            "recall": self.recall,
            "sampled": self.sampled,
        }


def copy_check(kb: KnowledgeBase, store: str) -> CopyCheck:
    """Counts what another store than PostgreSQL holds, else StoreError; compares some of its searches with exact ones.

    Changes that are under way make counts differ: have them applied first.
    """
    return measured(copy_count(kb, store), kb, store)


def settled_count(kb: KnowledgeBase, store: str) -> CopyCheck | None:
    """Counts a copy that has taken everything in; None where something was written each time: counts say nothing then.

    Nobody else applies changes while it counts, so that what is written meanwhile is still noted afterwards. Raises
    AlreadyRunning where another process applies changes, and StoreError where the store cannot be reached.
    """
    for _attempt in range(5):
        with alone(kb.pk, store):
            check = copy_count(kb, store)
            if check.is_complete or not StoreChange.objects.filter(knowledge_base=kb, store=store).exists():
                return check
        changes_apply(kb.pk, store)
    return None


def copy_count(kb: KnowledgeBase, store: str) -> CopyCheck:
    expected = {space.name: count for space, count in _spaces(kb.pk).items()}
    target = mirror(store)
    if target.has_keywords:
        texts = TextCollection(kb.pk, kb.language).name
        expected[texts] = Chunk.objects.filter(knowledge_base=kb, enabled=True).count()
    return CopyCheck(expected, target.counts(kb.pk))


def measured(check: CopyCheck, kb: KnowledgeBase, store: str) -> CopyCheck:
    recalls = [
        recall
        for space in _spaces(kb.pk)
        if (space.model_id, space.kind) == (kb.embedding_model, "content")
        for vector in _sample(space)
        if (recall := _recall(store, space, vector)) is not None
    ]
    return replace(check, recall=float(np.mean(recalls)) if recalls else None, sampled=len(recalls))


def _spaces(kb_id: int) -> dict[VectorCollection, int]:
    return {VectorCollection(kb_id, *space): count for *space, count in fetch_all(SPACES, [kb_id])}


def _sample(space: VectorCollection) -> list[list[float]]:
    rows = _vectors(space).filter(enabled=True)
    ids = list(rows.order_by("?").values_list("pk", flat=True)[:SAMPLE])
    return list(rows.filter(pk__in=ids).values_list("vector", flat=True))


def _vectors(space: VectorCollection) -> QuerySet[ChunkEmbedding]:
    return ChunkEmbedding.objects.filter(knowledge_base=space.kb_id, model=space.model_id, kind=space.kind)


def _recall(store: str, space: VectorCollection, row: list[float]) -> float | None:
    """Of the nearest to a stored vector; None where it has no direction, so that nothing is near it."""
    vector = np.asarray(row, dtype=np.float32)
    chunk_ids = _vectors(space).order_by("chunk_id").values_list("chunk_id", flat=True)
    everything = np.array(chunk_ids, dtype=np.int64)
    exact: dict[int, float] = {}
    for start in range(0, everything.size, MAX_EXACT):  # so many at a time are compared without an index
        only = everything[start : start + MAX_EXACT]
        found = PgVectorStore().search(space.kb_id, space.model_id, vector, DEPTH, kind=space.kind, only=only)
        exact |= dict(zip(found[0].tolist(), found[1].tolist(), strict=True))
    best = sorted(exact, key=lambda chunk_id: (-exact[chunk_id], chunk_id))[:DEPTH]
    if not best:
        return None
    # Read before the store is asked: a search compares in PostgreSQL what the store has not yet taken in.
    waiting = StoreChange.objects.filter(knowledge_base=space.kb_id, store=store, chunk_id__in=best)
    named = set(waiting.values_list("chunk_id", flat=True))
    nearest = mirror(store).nearest(space, vector, 2 * DEPTH)
    named.update([] if nearest is None else nearest.tolist())
    return len(named.intersection(best)) / len(best)


def stores_state(kb: KnowledgeBase) -> dict[str, Any]:
    """The store that searches use and the one on its way, as stored now, so that every process shows the same.

    `active` is the copy that searches use (None where they use PostgreSQL), `target` that on its way (None: none),
    `choices` are the stores that it may be moved to as (name, label), `index` is what was measured of PostgreSQL's own
    index when searches changed over to it, and `is_configured` says whether this installation can reach the store in
    use.
    """
    left = StoreChange.objects.filter(knowledge_base=kb).order_by().values_list("store")
    counts = {store: (count, oldest) for store, count, oldest in left.annotate(Count("pk"), Min("created_at"))}
    states = {state.store: state for state in StoreState.objects.filter(knowledge_base=kb)}
    for state in states.values():
        state.left, state.oldest = counts.get(state.store, (0, None))
    names, active = configured_stores(), states.get(kb.store)
    is_postgres = kb.store == Store.POSTGRES
    return {
        "active": None if is_postgres else active,
        "target": states.get(kb.target_store),
        "choices": [(name, Store(name).label) for name in names if name != kb.store],
        "index": active.checked if is_postgres and active else {},
        "is_configured": kb.store in names,
    }


# -- What an operator asks for ---------------------------------------------------------------------------------------------
def migration_start(kb: KnowledgeBase, store: str) -> None:
    """Sets the target; a worker fills it, and searches use the present store until it is complete and was checked.

    A move to the same target that was interrupted or has failed goes on where it stood. One that is in use already or
    not set up here is Rejected, and so is one beside another; StoreError where the server cannot be reached.
    """
    if store not in configured_stores():
        raise Rejected("store_not_configured", _not_configured(store))
    if store != Store.POSTGRES:
        mirror(store).ping()
    with STORE_MOVE.changing(kb) as locked:
        if store == locked.store:
            raise Rejected("store_in_use", _("Searches use %(store)s already."), store=Store(store).label)
        if locked.target_store not in ("", store):
            message = _("The knowledge base is on its way to %(store)s: wait for it, or cancel that move first.")
            raise Rejected("already_changing", message, store=Store(locked.target_store).label)
        state, _is_new = StoreState.objects.get_or_create(knowledge_base=locked, store=store)
        if not locked.target_store or state.status == Status.FAILED:
            locked.target_store = store
            locked.save(update_fields=["target_store"])  # from now on the triggers note changes for it too
            state.total = 0 if store == Store.POSTGRES else queue_all_chunks(locked.pk, store)
            state.checked, state.applied_version, state.applied_at = {}, None, None
        state.status, state.error, state.failures, state.retry_at = Status.FILLING, "", 0, None
        state.told_at = timezone.now()
        state.save()


def migration_cancel(kb: KnowledgeBase) -> None:
    with STORE_MOVE.changing(kb) as locked:
        target, locked.target_store = locked.target_store, ""
        if target:
            locked.save(update_fields=["target_store"])
            _retire(locked, target)


def store_rebuild(kb: KnowledgeBase) -> int:
    """Fills the store in use again, while PostgreSQL answers; how many changes that makes. PostgreSQL itself is Rejected."""
    with STORE_MOVE.changing(kb) as locked:
        if locked.store == Store.POSTGRES:
            raise Rejected("nothing_to_rebuild", _("PostgreSQL holds everything itself: there is no copy to rebuild."))
        return refill(locked.pk, locked.store)


# -- What a worker or a command does -----------------------------------------------------------------------------------------
class StoreMove(Move):
    target = "target_store"
    fields = ("store", "target_store")
    purpose = Purpose.STORE_MOVE
    busy = gettext_lazy("Another process is moving this knowledge base to another store: wait until it is done.")
    failures = (StoreError, Rejected)  # each noted where the page and the doctor read it

    def build(self, kb: KnowledgeBase, left: Iterator[int]) -> bool:
        """Fills the target, checks it, and has searches use it.

        StoreError where the store cannot be reached or refuses; Rejected, and noted, where the copy is not good enough
        or could not be checked for all that is written, or PostgreSQL could not make its index.
        """
        target = kb.target_store
        if target == Store.POSTGRES:
            return self.swap(kb, target, _indexed(kb))
        _update_status(kb, target, Status.FILLING)
        if not changes_apply(kb.pk, target, batches=left):
            return False
        _update_status(kb, target, Status.CHECKING)
        check = settled_count(kb, target)
        if check is None:
            reason = _(
                "The copy could not be checked, since something was written all the time: it is tried again by itself."
            )
            note_failure(kb.pk, target, reason)
            raise Rejected("copy_not_settled", reason)
        if check.is_complete:
            check = measured(check, kb, target)
        if not check.is_good:
            raise _failed(kb, target, "copy_not_good", _bad(check), **check.as_json())
        return self.swap(kb, target, check.as_json())

    def swap(self, kb: KnowledgeBase, target: str, checked: dict[str, object]) -> bool:
        """Has searches use the target, all at one moment; what was written since is found from the log of changes."""
        with self.changing(kb) as locked:
            if locked.target_store != target:
                return True
            former, locked.store, locked.target_store = locked.store, target, ""
            locked.save(update_fields=["store", "target_store"])
            _update_status(locked, target, Status.IN_USE, error="", checked=checked)
            _retire(locked, former)
        return True

    def unfinished(self) -> QuerySet[KnowledgeBase]:
        """Without those that have failed, now or for good."""
        states = StoreState.objects.filter(
            knowledge_base=OuterRef("pk"), store=OuterRef("target_store"), status__in=(Status.FILLING, Status.CHECKING)
        ).exclude(retry_at__gt=timezone.now())
        return KnowledgeBase.objects.exclude(target_store="").filter(Exists(states))

    def sweep(self) -> list[int]:
        """All of them: a task too many finds the change being carried out."""
        return list(self.unfinished().values_list("pk", flat=True))

    def note_failure(self, kb_id: int, error: Exception) -> None:
        # Others have been noted by then.
        if isinstance(error, Rejected) and error.code in ("internal_error", "worker_lost"):
            kb = KnowledgeBase.objects.get(pk=kb_id)
            _failed(kb, kb.target_store, error.code, message_of(error))


STORE_MOVE = StoreMove()


def _indexed(kb: KnowledgeBase) -> dict[str, object]:
    """Makes PostgreSQL's own vector indexes, without which searches of many vectors would take long, and measures them."""
    _update_status(kb, Store.POSTGRES, Status.FILLING)
    if not maintain_vector_indexes(kb.pk):
        raise AlreadyRunning("already_running", "Another process is making vector indexes.")
    if lacking := spaces_without_index(kb.pk):
        message = gettext_noop(
            "The index of {vectors} vectors could not be made, and without it each search would compare them all: see the "
            "worker’s log for the reason (mostly memory or disk), then start the move again."
        )
        reason = Message(message, vectors=max(space.vectors for space in lacking))
        raise _failed(kb, Store.POSTGRES, "index_not_made", reason)
    _update_status(kb, Store.POSTGRES, Status.CHECKING)
    measure_due(kb.pk)
    row = VectorIndex.objects.filter(knowledge_base=kb, model=kb.embedding_model, kind="content").first()
    if row is None or not any(space.has_index for space in vector_spaces(kb.pk)):
        return {}
    return {"expected": row.vectors, "found": row.vectors, "recall": row.recall, "sampled": row.sampled}


def _failed(kb: KnowledgeBase, target: str, code: str, reason: str, **checked: object) -> Rejected:
    _update_status(kb, target, Status.FAILED, error=reason, checked=checked)
    return Rejected(code, reason)


def _retire(kb: KnowledgeBase, store: str) -> None:
    """What a store holds goes in a while: searches under way may still ask it."""
    StoreState.objects.filter(knowledge_base=kb, store=store).delete()
    if store != Store.POSTGRES:
        StoreChange.objects.filter(knowledge_base=kb, store=store).delete()
        StoreChange.objects.create(knowledge_base=kb, store=store, chunk_id=None, model="")


def _update_status(kb: KnowledgeBase, store: str, status: str, **fields: object) -> None:
    StoreState.objects.filter(knowledge_base=kb, store=store).update(status=status, told_at=timezone.now(), **fields)


def _bad(check: CopyCheck) -> str:
    if not check.is_complete:
        return _(
            "The copy holds %(found)d vectors and texts, and PostgreSQL %(expected)d: start the move again; if that does not "
            "help, look at the store’s log."
        ) % {"found": sum(check.found.values()), "expected": sum(check.expected.values())}
    return _(
        "The copy finds %(recall).3f of what an exact search finds, and %(least).2f is wanted: look at the store’s index "
        "settings, then start the move again."
    ) % {"recall": check.recall or 0.0, "least": LEAST_RECALL}


def _not_configured(store: str) -> str:
    if store not in DRIVERS:
        known = ", ".join(Store.values)
        return _("There is no store “%(store)s”: choose one of %(known)s.") % {"store": store[:40], "known": known}
    message = _("%(store)s is not set up here: set %(variable)s, restart the web and worker processes, and try again.")
    return message % {"store": Store(store).label, "variable": DRIVERS[store].address}
