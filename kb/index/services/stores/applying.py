"""Bringing the copies in other stores up to date with PostgreSQL, one knowledge base and store at a time."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count

import numpy as np
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q, Subquery
from django.utils import timezone

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import Purpose, try_lock
from kb.content.models import Chunk
from kb.index.mirrors.registry import (
    DRIVERS,
    Mirror,
    StoredVector,
    StoreError,
    TextCollection,
    VectorCollection,
    has_taken_in,
    mirror,
    vectors_prefix,
)
from kb.index.models import ChunkEmbedding, KnowledgeBaseVersion, StoreChange, StoreState
from kb.index.services.writing import searchable_text_of
from kb.jobs.moves import RETIRED_FOR, AlreadyRunning
from retrieval.errors import message_of

logger = logging.getLogger(__name__)

CHANGES_A_BATCH = 1_000
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=5), timedelta(minutes=5)
# After so many failures in a row, which take eight hours, a move is given up; a copy in use is never.
MAX_FAILURES = 100

REFILL = """
INSERT INTO kb_storechange (knowledge_base_id, store, chunk_id)
SELECT %s, %s, NULL UNION ALL (SELECT %s, %s, id FROM kb_chunk WHERE knowledge_base_id = %s ORDER BY id)
"""


class _CopyLost(Exception):
    """A collection that has taken something in is not there."""


# The id of a row of the log, the chunk (None: all that the store holds), and the model.
_Change = tuple[int, int | None, str]


@contextmanager
def alone(kb_id: int, store: str) -> Iterator[None]:
    """Keeps every other process from applying changes meanwhile; raises AlreadyRunning where one is at it."""
    with try_lock(Purpose.STORE, kb_id * len(DRIVERS) + list(DRIVERS).index(store)) as taken:
        if not taken:
            raise AlreadyRunning("already_running", "Another process is bringing this store up to date.")
        yield


def changes_apply(kb_id: int, store: str, *, batches: Iterator[int] | None = None) -> bool:
    """Has a store take in the changes of a knowledge base, also a deleted one; returns whether none is left for now.

    With `batches` it stops after as many as that has elements, so that a worker can take turns. AlreadyRunning where
    another process is at it; StoreError, noted and tried again after a pause, where the store cannot be reached or
    refuses.
    """
    with alone(kb_id, store):
        try:
            for _batch in count() if batches is None else batches:
                if not _apply_batch(kb_id, store):
                    _note_success(kb_id, store)
                    return True
        except StoreError as error:
            note_failure(kb_id, store, message_of(error))
            raise
    return False


def queue_all_chunks(kb_id: int, store: str) -> int:
    """Notes, in a transaction that holds the knowledge base, that a store is to hold every chunk again; how many changes."""
    StoreChange.objects.filter(knowledge_base=kb_id, store=store).delete()
    with connection.cursor() as cursor:
        cursor.execute(REFILL, [kb_id, store, kb_id, store, kb_id])
        return int(cursor.rowcount)


def refill(kb_id: int, store: str) -> int:
    """As `queue_all_chunks`, of a copy that is in use or on its way already, and with the next try at once."""
    total = queue_all_chunks(kb_id, store)
    StoreState.objects.filter(knowledge_base=kb_id, store=store).update(
        total=total, error="", failures=0, retry_at=None
    )
    return total


def waiting() -> list[tuple[int, str]]:
    """The knowledge bases and stores with changes to apply, less those that have failed for good or a moment ago."""
    now = timezone.now()
    rows = StoreChange.objects.filter(
        Q(chunk_id__isnull=False)
        | Q(created_at__lt=now - RETIRED_FOR)
        | Q(knowledge_base__in=KnowledgeBase.objects.exclude(target_store="").values("pk"))
    )
    left_alone = StoreState.objects.filter(Q(retry_at__gt=now) | Q(status=StoreState.Status.FAILED))
    paused = set(left_alone.values_list("knowledge_base_id", "store"))
    found = rows.order_by("knowledge_base_id", "store").values_list("knowledge_base_id", "store").distinct()
    return [each for each in found if each not in paused and each[1] in DRIVERS]


def _apply_batch(kb_id: int, store: str) -> bool:
    changes = _oldest(kb_id, store)
    if not changes:
        return False
    kb = KnowledgeBase.objects.filter(pk=kb_id).first()
    target = mirror(store)
    if kb is None or store not in (kb.store, kb.target_store):
        target.drop(kb_id)
    else:
        if any(chunk_id is None for _, chunk_id, _ in changes):
            target.drop(kb_id)
        try:
            _write(target, kb, changes)
        except _CopyLost:
            # What has changed alone would make a copy that looks complete until it is counted
            logger.warning("%s has lost its copy of knowledge base %s: filling it again", store, kb.pk)
            with transaction.atomic():
                locked = KnowledgeBase.objects.select_for_update(no_key=True).filter(pk=kb.pk).first()
                if locked is not None and store in (locked.store, locked.target_store):
                    refill(kb.pk, store)
            return True
    _settle(kb_id, store, changes)
    return True


def _oldest(kb_id: int, store: str) -> list[_Change]:
    log = StoreChange.objects.filter(knowledge_base=kb_id, store=store).order_by("pk")
    stores = KnowledgeBase.objects.filter(pk=kb_id).values_list("store", "target_store").first()
    if stores is not None and store not in stores:
        log = log.filter(created_at__lt=timezone.now() - RETIRED_FOR)
    return list(log.values_list("pk", "chunk_id", "model")[:CHANGES_A_BATCH])


def _write(target: Mirror, kb: KnowledgeBase, changes: Sequence[_Change]) -> None:
    """Brings what the store holds of changed chunks up to date; of some only the vectors of a model have changed."""
    whole = sorted({chunk_id for _, chunk_id, model in changes if chunk_id is not None and not model})
    there = target.collections(kb.pk)
    if whole:
        texts = TextCollection(kb.pk, kb.language)
        _write_vectors(target, kb, whole, there - {texts.name}, None)
        if target.has_keywords:
            _require_collection(target.store, texts, there)
            rows = Chunk.objects.filter(pk__in=whole, enabled=True).select_related("document")
            target.write_texts(texts, whole, {chunk.pk: searchable_text_of(chunk) for chunk in rows})
    for model_id in {model for _, _, model in changes if model}:
        changed = {chunk_id for _, chunk_id, model in changes if model == model_id and chunk_id is not None}
        if others := sorted(changed.difference(whole)):
            of_model = {name for name in there if name.startswith(vectors_prefix(kb.pk, model_id))}
            _write_vectors(target, kb, others, of_model, model_id)


def _write_vectors(
    target: Mirror, kb: KnowledgeBase, chunk_ids: Sequence[int], there: set[str], model_id: str | None
) -> None:
    """Makes each collection hold what PostgreSQL holds of the chunks: of one model, or of all."""
    rows = ChunkEmbedding.objects.filter(knowledge_base=kb, chunk__in=chunk_ids, enabled=True).order_by("pk")
    if model_id is not None:
        rows = rows.filter(model=model_id)
    found: dict[VectorCollection, list[StoredVector]] = defaultdict(list)
    for chunk_id, model, kind, ordinal, vector in rows.values_list("chunk_id", "model", "kind", "ordinal", "vector"):
        values = np.asarray(vector, dtype=np.float32)
        found[VectorCollection(kb.pk, model, kind, values.size)].append(StoredVector(chunk_id, ordinal, values))
    for collection, vectors in found.items():
        _require_collection(target.store, collection, there)
        target.write_vectors(collection, chunk_ids, vectors)
    for name in sorted(there - {collection.name for collection in found}):
        target.delete_chunks(name, chunk_ids)


def _require_collection(store: str, collection: TextCollection | VectorCollection, there: set[str]) -> None:
    if collection.name not in there and has_taken_in(store, collection):
        raise _CopyLost


def _settle(kb_id: int, store: str, changes: Sequence[_Change]) -> None:
    """Deletes the rows that were applied.

    Where some were deleted already, another process was at it too, since the lock went with the connection that held it. Either
    may have written what it read first over what the other read later, so the chunks are noted again.
    """
    with transaction.atomic():
        deleted, _by_model = StoreChange.objects.filter(pk__in=[pk for pk, _, _ in changes]).delete()
        if deleted < len(changes):
            StoreChange.objects.bulk_create(
                StoreChange(knowledge_base_id=kb_id, store=store, chunk_id=chunk_id, model="")
                for chunk_id in sorted({chunk_id for _, chunk_id, _ in changes if chunk_id is not None})
            )


def _note_success(kb_id: int, store: str) -> None:
    now = timezone.now()
    state = StoreState.objects.filter(knowledge_base=kb_id, store=store)
    state.update(failures=0, retry_at=None, told_at=now)
    state.exclude(status=StoreState.Status.FAILED).update(error="")
    # In one statement: the version is one whose changes were all applied.
    left = StoreChange.objects.filter(knowledge_base=OuterRef("pk"), store=store)
    current = KnowledgeBaseVersion.objects.filter(~Exists(left), pk=kb_id)
    state.filter(Exists(current)).update(applied_version=Subquery(current.values("version")[:1]), applied_at=now)


def note_failure(kb_id: int, store: str, reason: str) -> None:
    """Notes why a copy could not be brought on, and that it is tried again after a pause; after RETIRED_FOR what only goes."""
    logger.warning("the copy of knowledge base %s was not brought up to date: %s", kb_id, reason)
    now = timezone.now()
    state = StoreState.objects.filter(knowledge_base=kb_id, store=store).first()
    if state is None:
        # It was deleted or has moved, and what it had there is to be dropped: due again as if that were now.
        StoreChange.objects.filter(knowledge_base=kb_id, store=store).update(created_at=now)
        return
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(state.failures, 10))
    failures, status = state.failures + 1, state.status
    if failures >= MAX_FAILURES and status != StoreState.Status.IN_USE:
        status = StoreState.Status.FAILED
    StoreState.objects.filter(pk=state.pk).update(error=reason, failures=failures, status=status, retry_at=now + pause)
