"""Stores beside PostgreSQL for tests: embedded ones, one of each for a test process."""

import time

from kb.index.mirrors.registry import MirroredKeywordStore, MirroredVectorStore, mirror
from kb.index.pgvector import PgVectorStore
from kb.index.services.stores.applying import changes_apply, queue_all_chunks
from kb.models import KnowledgeBase
from kb.providers.embedding_models import tokenizer
from retrieval.channels import BM25Channel
from retrieval.types import Analysis
from tests.interleaving import PATIENCE
from tests.kb.index.searching import request

NOBODY = "http://127.0.0.1:9"
"""Where no server listens."""


def use(kb, store):
    """Has searches of a knowledge base use a store, filled by now."""
    KnowledgeBase.objects.filter(pk=kb.pk).update(store=store)
    kb.refresh_from_db()
    if store != "postgres":
        queue_all_chunks(kb.pk, store)
        apply(kb)


def apply(kb):
    """Has the store take in what has changed."""
    if kb.store != "postgres":
        assert changes_apply(kb.pk, kb.store)


def vectors_of(store):
    return PgVectorStore() if store == "postgres" else MirroredVectorStore(store)


class OwnKeywords:
    """The knowledge base's own index, asked as a store of keywords is."""

    def __init__(self, kb):
        self._kb = kb

    def search(self, kb_id, text, k, *, only=None):
        ranking = self._ranking(text, k, only)
        return ranking.chunk_ids, ranking.scores

    def scores(self, kb_id, text, chunk_ids):
        return self._ranking(text, 1, None).score(chunk_ids)

    def _ranking(self, text, k, only):
        analysis = Analysis(text, {self._kb.pk: tuple(tokenizer()(text))})
        channel = BM25Channel(self._kb.pk, request(self._kb).wait, only=only)
        return channel.search(analysis, k, time.monotonic() + PATIENCE)


def keywords_of(kb):
    return OwnKeywords(kb) if kb.store == "postgres" else MirroredKeywordStore(kb.store, kb.language)


def collections_of(kb):
    return set() if kb.store == "postgres" else mirror(kb.store).collections(kb.pk)
