"""How far the copies of knowledge bases in other stores are, and whether they find what an exact search finds."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from django.db.models import Count, Min

from kb.access.models import KnowledgeBase
from kb.base.db.connections import fetch_all
from kb.content.models import Chunk
from kb.index.mirrors.protocol import TextCollection, VectorCollection
from kb.index.mirrors.registry import configured_stores, mirror
from kb.index.models import ChunkEmbedding, StoreChange, StoreState
from kb.index.pgvector import MAX_EXACT, PgVectorStore
from kb.index.services.stores.applying import alone, changes_apply

CHECKS = 5
SAMPLE = 20
DEPTH = 25
LEAST_RECALL = 0.95
Store = KnowledgeBase.Store
SPACES = """
SELECT model, kind, vector_dims(vector), count(*) FROM kb_chunkembedding
WHERE knowledge_base_id = %s AND enabled GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


@dataclass(frozen=True, slots=True)
class CopyCheck:
    """What was counted and measured of a copy.

    Attributes:
        expected: vectors and texts in PostgreSQL, by the name of the collection that is to hold them.
        found: those in the store.
        recall: of the first results of sampled searches against exact ones, from 0 to 1; None where there is nothing to search.
        sampled: how many searches that is.
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
    """Counts what a store holds of a knowledge base, and compares some of its searches with exact ones.

    Changes that are under way make counts differ: have them applied first.

    Args:
        kb: the knowledge base.
        store: another one than PostgreSQL.

    Raises:
        StoreError: the store cannot be reached.
    """
    return measured(copy_count(kb, store), kb, store)


def settled_count(kb: KnowledgeBase, store: str) -> CopyCheck | None:
    """Counts a copy that has taken everything in.

    Nobody else applies changes while it counts, so that what is written meanwhile is still noted afterwards.

    Returns:
        What was counted; None where something was written every time, so that counts which differ say nothing.

    Raises:
        AlreadyRunning: another process is applying changes.
        StoreError: the store cannot be reached.
    """
    for _attempt in range(CHECKS):
        with alone(kb.pk, store):
            check = copy_count(kb, store)
            if check.is_complete or not StoreChange.objects.filter(knowledge_base=kb, store=store).exists():
                return check
        changes_apply(kb.pk, store)
    return None


def copy_count(kb: KnowledgeBase, store: str) -> CopyCheck:
    """As `copy_check`, without a search."""
    expected = {space.name: count for space, count in _spaces(kb.pk).items()}
    target = mirror(store)
    if target.has_keywords:
        texts = Chunk.objects.filter(knowledge_base=kb, enabled=True)
        expected[TextCollection(kb.pk, kb.language).name] = texts.count()
    return CopyCheck(expected, target.counts(kb.pk))


def measured(check: CopyCheck, kb: KnowledgeBase, store: str) -> CopyCheck:
    """The counts, and how much of what exact searches find the copy's searches do."""
    recalls = [
        recall
        for space in _spaces(kb.pk)
        if (space.model_id, space.kind) == (kb.embedding_model, "content")
        for vector in _sample(space)
        if (recall := _recall(store, space, vector)) is not None
    ]
    return replace(check, recall=float(np.mean(recalls)) if recalls else None, sampled=len(recalls))


def _spaces(kb_id: int) -> dict[VectorCollection, int]:
    """The vectors of a knowledge base, and how many they are."""
    return {VectorCollection(kb_id, *space): count for *space, count in fetch_all(SPACES, [kb_id])}


def _sample(space: VectorCollection) -> list[list[float]]:
    rows = ChunkEmbedding.objects.filter(
        knowledge_base=space.kb_id, model=space.model_id, kind=space.kind, enabled=True
    )
    ids = list(rows.order_by("?").values_list("pk", flat=True)[:SAMPLE])
    return list(rows.filter(pk__in=ids).values_list("vector", flat=True))


def _recall(store: str, space: VectorCollection, row: list[float]) -> float | None:
    """Of the nearest to a stored vector; None where it has no direction, so that nothing is near it."""
    vector = np.asarray(row, dtype=np.float32)
    everything = np.array(
        ChunkEmbedding.objects.filter(knowledge_base=space.kb_id, model=space.model_id, kind=space.kind)
        .order_by("chunk_id")
        .values_list("chunk_id", flat=True),
        dtype=np.int64,
    )
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


@dataclass(frozen=True, slots=True)
class StoresState:
    """The store that searches use, and the one on its way.

    Attributes:
        active: the copy that searches use; None where they use PostgreSQL.
        target: on its way; None: none.
        choices: the stores that it may be moved to, as (name, label).
        index: what was measured of PostgreSQL's own index when searches changed over to it; empty: nothing.
        is_configured: whether this installation can reach the store that searches use.
    """

    active: StoreState | None
    target: StoreState | None
    choices: tuple[tuple[str, str], ...]
    index: dict[str, float]
    is_configured: bool


def stores_state(kb: KnowledgeBase) -> StoresState:
    """As stored now, so that every process shows the same."""
    left = StoreChange.objects.filter(knowledge_base=kb).order_by().values_list("store")
    counts = {store: (count, oldest) for store, count, oldest in left.annotate(Count("pk"), Min("created_at"))}
    states = {state.store: state for state in StoreState.objects.filter(knowledge_base=kb)}
    for state in states.values():
        state.left, state.oldest = counts.get(state.store, (0, None))
    names, active = configured_stores(), states.get(kb.store)
    is_postgres = kb.store == Store.POSTGRES
    return StoresState(
        active=None if is_postgres else active,
        target=states.get(kb.target_store),
        choices=tuple((name, Store(name).label) for name in names if name != kb.store),
        index=active.checked if is_postgres and active else {},
        is_configured=kb.store in names,
    )
