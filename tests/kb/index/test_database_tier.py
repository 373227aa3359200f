"""The table bm25_indexes as a tier."""

import random
from dataclasses import replace

import pytest

from kb.content.services import knowledge_base_delete
from kb.index.bm25 import DatabaseTier
from kb.models import BM25Index, KnowledgeBase
from retrieval.cache import TierUnavailable
from tests.interleaving import Gate, Running, until_somebody_waits_for_a_lock
from tests.kb.index.searching import key, log

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_payload_comes_back_as_it_was_stored(kb):
    payload = random.Random(1).randbytes(3_000_000)
    stored = key(kb)
    assert DatabaseTier().store(stored, payload)
    assert DatabaseTier().load(stored.at(stored.version - 1)) == (stored, payload)


def test_nothing_serves_a_newer_version_or_another_tokenizer_or_format(kb):
    stored = key(kb)
    DatabaseTier().store(stored, b"payload")
    others = [
        stored.at(stored.version + 1),
        replace(stored, tokenizer_id="another"),
        replace(stored, fingerprint="another"),
    ]
    assert [DatabaseTier().load(other) for other in others] == [None] * 3


def test_a_base_of_a_deleted_knowledge_base_is_not_stored(kb):
    late = key(kb)
    knowledge_base_delete(kb)
    assert not DatabaseTier().store(late, b"late")
    assert not BM25Index.objects.exists()
    assert log(kb) == []


def test_what_the_database_refuses_makes_the_tier_unavailable(kb):
    refused = replace(key(kb), tokenizer_id="t" * 121)
    with pytest.raises(TierUnavailable, match="too long"):
        DatabaseTier().store(refused, b"payload")


def test_deleting_a_knowledge_base_while_a_base_of_it_is_stored_ends_well(kb, monkeypatch):
    stored = key(kb)
    DatabaseTier().store(stored, b"old")
    results = []
    gate = Gate(monkeypatch, KnowledgeBase, "delete")
    deleter = Running(knowledge_base_delete, KnowledgeBase.objects.get(pk=kb.pk))
    gate.wait()
    publisher = Running(lambda: results.append(DatabaseTier().store(stored.at(stored.version + 1), b"new")))
    until_somebody_waits_for_a_lock()
    gate.open()

    outcomes = [deleter.outcome(), publisher.outcome()]

    assert outcomes == [None, None]
    assert results == [False]
    assert not BM25Index.objects.exists()
    assert not KnowledgeBase.objects.filter(pk=kb.pk).exists()
