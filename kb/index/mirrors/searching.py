"""Searches in a copy: the server names candidates, and PostgreSQL has the last word on them.

So deleted and disabled chunks never come back, scores and ties are PostgreSQL's own, and what the server has not yet taken
in is found all the same.
"""

from functools import partial
from typing import Final

import numpy as np
from django.utils.translation import gettext_noop
from numpy.typing import NDArray

from kb.access.models import KnowledgeBase
from kb.index.filters import enabled_among
from kb.index.mirrors.protocol import Found, Mirror, TextCollection, VectorCollection
from kb.index.mirrors.registry import asked, has_taken_in, pending_chunks
from kb.index.pgvector import MAX_EXACT, PgVectorStore
from retrieval.errors import ChannelUnavailable
from retrieval.messages import Message
from retrieval.trace import DegradationCode

WIDER = 4
"""A search that leaves too few candidates is asked for so many times as many."""
LEAST_ASKED = 64
BEHIND: Final = gettext_noop(
    "{store} has many changes of this knowledge base to take in, so PostgreSQL answered, which may take longer: wait, "
    "and see that a worker runs."
)
LOST: Final = gettext_noop(
    "{store} has lost its copy of this knowledge base, so PostgreSQL answered, which may take longer: a worker fills it "
    "anew within the hour, or `manage.py migrate_store --kb NAME --rebuild` does at once."
)
NOTHING: Found = np.empty(0, dtype=np.int64), np.empty(0)


class MirroredVectorStore:
    """Vectors that a server holds a copy of.

    Args:
        store: as in `KnowledgeBase.Store`.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._exact = PgVectorStore()

    def search(
        self,
        kb_id: int,
        model_id: str,
        vector: NDArray[np.float32],
        k: int,
        *,
        kind: str = "content",
        only: NDArray[np.int64] | None = None,
    ) -> Found:
        exact = partial(self._exact.search, kb_id, model_id, vector, k, kind=kind)
        if k < 1 or not np.any(vector) or (only is not None and only.size <= MAX_EXACT):
            return exact(only=only)
        pending = pending_chunks(kb_id, self._store, ("", model_id))
        if pending is None:
            raise outdated(self._store, BEHIND)
        collection = VectorCollection(kb_id, model_id, str(kind), vector.size)
        named = asked(self._store, lambda mirror: _named(mirror, collection, vector, k, pending, only))
        if named is None:
            return exact(only=only)
        if not named.size and has_taken_in(self._store, collection):
            raise outdated(self._store, LOST)
        found = exact(only=np.union1d(named, pending if only is None else np.intersect1d(pending, only)))
        return found if found[0].size >= k else exact(only=only)  # what the server named is not there any more

    def similarities(
        self,
        kb_id: int,
        model_id: str,
        vector: NDArray[np.float32],
        chunk_ids: NDArray[np.int64],
        *,
        kind: str = "content",
    ) -> NDArray[np.float64]:
        return self._exact.similarities(kb_id, model_id, vector, chunk_ids, kind=kind)


class MirroredKeywordStore:
    """Texts that a server holds a copy of and cuts into terms by itself.

    Args:
        store: as in `KnowledgeBase.Store`.
        language: of the knowledge base.
    """

    def __init__(self, store: str, language: str) -> None:
        self.name = store
        self._language = language

    def search(self, kb_id: int, text: str, k: int, *, only: NDArray[np.int64] | None = None) -> Found | None:
        if k < 1 or not text.strip() or (only is not None and not only.size):
            return NOTHING
        pending = pending_chunks(kb_id, self.name, ("",))
        if pending is None:
            raise outdated(self.name, BEHIND)
        if pending.size:
            return None
        chunk_ids, scores = self._asked(kb_id, text, k, only)
        there = enabled_among(kb_id, chunk_ids)
        return chunk_ids[there], scores[there]

    def scores(self, kb_id: int, text: str, chunk_ids: NDArray[np.int64]) -> NDArray[np.float64]:
        if not chunk_ids.size:
            return np.empty(0)
        found, scores = self._asked(kb_id, text, chunk_ids.size, chunk_ids)
        known = dict(zip(found.tolist(), scores.tolist(), strict=True))
        return np.array([known.get(chunk_id, 0.0) for chunk_id in chunk_ids.tolist()])

    def _asked(self, kb_id: int, text: str, k: int, only: NDArray[np.int64] | None) -> Found:
        collection = TextCollection(kb_id, self._language)
        ids = None if only is None else only.tolist()
        found = asked(self.name, lambda mirror: mirror.search_texts(collection, text, min(k, mirror.most), only=ids))
        if found is None and has_taken_in(self.name, collection):
            raise outdated(self.name, LOST)
        return found or NOTHING


def outdated(store: str, reason: str) -> ChannelUnavailable:
    """Says that a store's copy cannot be asked; `reason` is BEHIND or LOST."""
    return ChannelUnavailable(
        DegradationCode.STORE_BEHIND, Message(reason, store=str(KnowledgeBase.Store(store).label))
    )


def _named(
    mirror: Mirror,
    collection: VectorCollection,
    vector: NDArray[np.float32],
    k: int,
    pending: NDArray[np.int64],
    only: NDArray[np.int64] | None,
) -> NDArray[np.int64] | None:
    """At least k chunks that the server finds nearest and has up to date.

    Returns:
        None where it does not find as many, and an empty array where it has no such collection.
    """
    limit = max(LEAST_ASKED, k)
    while True:
        limit = min(limit, mirror.most)
        nearest = mirror.nearest(collection, vector, limit)
        if nearest is None:
            return NOTHING[0]
        current = np.setdiff1d(nearest, pending)
        if only is not None:
            current = np.intersect1d(current, only, assume_unique=True)
        if current.size >= k:
            return current
        if nearest.size < limit or limit == mirror.most:
            return None
        limit *= WIDER
