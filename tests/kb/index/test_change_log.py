"""A base and the changes since, read from the log, are what a full build would give; where the log ends, one is made."""

import random
import time
from functools import partial

import pytest
from django.db import connection

from kb.base.db.transactions import Purpose, try_lock
from kb.base.db.triggers import MAX_LOGGED_ROWS
from kb.index import bm25
from kb.index.bm25 import BM25Store, DatabaseTier, RedisTier
from kb.ingest.services.chunks import chunk_update
from kb.models import BM25Index, Chunk, ChunkChange, ChunkPostings, Document, KnowledgeBase
from tests.factories import make_document, make_kb
from tests.interleaving import Gate
from tests.kb.index.searching import (
    PATIENCE,
    QUERIES,
    assert_as_built,
    at_once,
    builds,
    find,
    key,
    load,
    log,
    new_process,
    redis_entries,
    request,
    settle,
    sql,
    tier,
    version,
)

pytestmark = pytest.mark.django_db(transaction=True)

POSTINGS_OF_ONE_TERM = """
INSERT INTO kb_chunkpostings (chunk_id, knowledge_base_id, tokenizer_id, terms, frequencies, length)
SELECT c.id, c.knowledge_base_id, k.tokenizer_id, '\\x0100000000000000', '\\x01000000', 1
FROM kb_chunk c JOIN kb_knowledgebase k ON k.id = c.knowledge_base_id
WHERE c.knowledge_base_id = %s AND c.text = 'bulk'
"""


def first(kb):
    return Chunk.objects.filter(knowledge_base=kb).order_by("position").first()


def add_chunks_without_postings(kb, count):
    document = kb.documents.first()
    Chunk.objects.bulk_create(
        Chunk(knowledge_base=kb, document=document, position=100 + n, text="bulk", content_hash="x")
        for n in range(count)
    )


def move(kb, chunk):
    other = make_kb(kb.owner)
    make_document(other, "保修期 电源")
    load(other)
    sql("UPDATE kb_chunk SET knowledge_base_id = %s WHERE id = %s", other.pk, chunk.pk)
    sql("UPDATE kb_chunkpostings SET knowledge_base_id = %s WHERE chunk_id = %s", other.pk, chunk.pk)
    moved_in = load(other)
    assert moved_in.detail["changed_chunks"] == 1
    assert_as_built(moved_in, other)


def copy_postings(kb):
    """Chunks of a program that makes its own postings, in bulk."""
    add_chunks_without_postings(kb, 3)
    pattern = ChunkPostings.objects.filter(knowledge_base=kb).first()
    ChunkPostings.objects.bulk_create(
        ChunkPostings(
            chunk=chunk,
            knowledge_base=kb,
            tokenizer_id=pattern.tokenizer_id,
            terms=pattern.terms,
            frequencies=pattern.frequencies,
            length=pattern.length,
        )
        for chunk in Chunk.objects.filter(text="bulk")
    )


def ask(chunk, *questions):
    chunk_update(chunk, text=chunk.text, enabled=chunk.enabled, questions=questions)


def switch(kb, *, enabled):
    Chunk.objects.filter(pk=first(kb).pk).update(enabled=enabled)


def disable_and_enable(kb):
    switch(kb, enabled=False)
    switch(kb, enabled=True)


WRITES = {
    "add a document": (1, lambda kb: make_document(kb, "延长保修期可以另外购买")),
    "edit a chunk": (1, lambda kb: chunk_update(first(kb), text="新的内容 电源", enabled=True)),
    "give a chunk questions": (1, lambda kb: ask(first(kb), "电源在哪", "保修期多久")),
    "change its questions": (1, lambda kb: (ask(first(kb), "电源 关闭"), ask(first(kb), "保修期多久", "一 二 三"))),
    "disable a chunk with questions": (1, lambda kb: (ask(first(kb), "电源在哪"), switch(kb, enabled=False))),
    "edit and disable a chunk": (1, lambda kb: chunk_update(first(kb), text="新的内容", enabled=False)),
    "disable a chunk": (1, partial(switch, enabled=False)),
    "disable and enable a chunk": (1, disable_and_enable),
    "delete a chunk": (1, lambda kb: first(kb).delete()),
    "delete a document": (3, lambda kb: kb.documents.get().delete()),
    "delete all chunks by raw SQL": (
        3,
        lambda kb: sql("DELETE FROM kb_chunk WHERE knowledge_base_id = %s", kb.pk),
    ),
    "delete a document by raw SQL": (
        3,
        lambda kb: (
            sql("DELETE FROM kb_chunk c USING kb_document d WHERE d.id = c.document_id AND d.knowledge_base_id = %s", kb.pk),
            sql("DELETE FROM kb_document WHERE knowledge_base_id = %s", kb.pk),
        ),
    ),
    "delete postings": (1, lambda kb: ChunkPostings.objects.filter(chunk=first(kb)).delete()),
    "delete a disabled chunk": (1, lambda kb: (switch(kb, enabled=False), first(kb).delete())),
    "move a chunk by raw SQL": (1, lambda kb: move(kb, first(kb))),
    "create in bulk": (3, copy_postings),
    "add a document and delete it": (1, lambda kb: make_document(kb, "保修期").delete()),
    "change no term": (0, lambda kb: Chunk.objects.filter(knowledge_base=kb).update(page=7)),
}  # fmt: skip


@pytest.mark.parametrize(("changed", "write"), WRITES.values(), ids=WRITES.keys())
def test_the_next_search_after_a_write_is_right_without_a_build(kb, changed, write):
    base = load(kb)
    before = builds()
    write(kb)
    builds_of_write = builds() - before  # moving a chunk builds the index of its new knowledge base

    loaded = load(kb)

    assert_as_built(loaded, kb)
    assert loaded.detail["cache_tier"] == "process"
    assert loaded.detail["changed_chunks"] == changed
    assert loaded.detail["base_version"] == base.detail["version"]
    assert loaded.detail["version"] == version(kb) > base.detail["version"]
    assert builds() == before + builds_of_write


def test_changes_lie_over_a_base_of_any_tier(kb):
    load(kb)
    make_document(kb, "延长保修期可以另外购买")
    new_process()
    loaded = load(kb)
    assert (loaded.detail["cache_tier"], loaded.detail["changed_chunks"]) == ("redis", 1)
    assert_as_built(loaded, kb)


def a_random_text(choose):
    return " ".join(choose.choices([*QUERIES, "other", "thermostat"], k=3))


def a_random_write(choose, kb):
    chunks = list(Chunk.objects.filter(knowledge_base=kb).select_related("document", "knowledge_base"))
    writes = ["add", "edit", "ask", "switch", "delete chunks", "delete document"]
    write = choose.choice(writes if chunks else ["add"])
    chunk = choose.choice(chunks) if chunks else None
    if write == "add":
        make_document(kb, *[a_random_text(choose) for _ in range(choose.randint(1, 4))])
    elif write == "edit":
        chunk_update(chunk, text=a_random_text(choose), enabled=choose.random() < 0.7)
    elif write == "ask":
        ask(chunk, *[a_random_text(choose) for _ in range(choose.randint(0, 3))])
    elif write == "switch":
        picked = choose.sample(chunks, min(3, len(chunks)))
        Chunk.objects.filter(pk__in=[each.pk for each in picked]).update(enabled=choose.random() < 0.5)
    elif write == "delete chunks":
        Chunk.objects.filter(pk__gt=chunk.pk).delete()
    else:
        chunk.document.delete()


@pytest.mark.parametrize("seed", range(4))
def test_after_every_step_of_random_edits_the_index_is_what_a_full_build_gives(kb, seed):
    choose = random.Random(seed)
    load(kb)
    settle()
    merges = 0
    for _ in range(25):
        a_random_write(choose, kb)
        assert_as_built(load(kb), kb)
        if choose.random() < 0.1:
            merges += BM25Store().merge(kb.pk, kb.tokenizer_id)
    assert builds() == 1 + merges


def test_publishing_a_base_trims_the_log_to_it(kb):
    load(kb)
    settle()
    make_document(kb, "新的内容")
    assert log(kb)[0] == ("reset", None)
    assert [operation for operation, _ in log(kb)[1:]] == ["write"]
    assert BM25Store().merge(kb.pk, kb.tokenizer_id)
    assert log(kb) == [("reset", None)]
    assert ChunkChange.objects.get(knowledge_base_id=kb.pk).version == version(kb)


def test_a_process_with_an_older_base_than_the_log_reaches_loads_the_newer_one(kb):
    old = load(kb).detail["version"]
    settle()
    make_document(kb, "新的内容")
    merged = version(kb)
    assert BM25Store().merge(kb.pk, kb.tokenizer_id)
    make_document(kb, "保修期")
    before = builds()

    loaded = load(kb)

    assert loaded.detail["cache_tier"] == "redis"
    assert (loaded.detail["base_version"], loaded.detail["changed_chunks"]) == (merged, 1)
    assert old < merged
    assert builds() == before
    assert_as_built(loaded, kb)


def test_an_index_with_changes_newer_than_the_base_in_the_tiers_gives_way_to_it_when_the_log_was_trimmed(kb):
    load(kb)
    make_document(kb, "新的内容")
    built = bm25.build_index(kb.pk, kb.tokenizer_id)
    make_document(kb, "保修期")
    newer = load(kb)
    cache = BM25Store().cache
    cache.publish(
        key(kb, built.version), bm25.StoredIndex(built.index, built.version, built.characters, built.questions)
    )
    make_document(kb, "电源")

    loaded = load(kb)

    assert newer.detail["base_version"] < built.version < newer.detail["version"]
    assert (loaded.detail["base_version"], loaded.detail["changed_chunks"]) == (built.version, 2)
    assert_as_built(loaded, kb)


def test_merging_publishes_a_base_that_new_processes_use_as_it_is(kb):
    load(kb)
    make_document(kb, "新的内容")
    load(kb)
    settle()
    assert BM25Store().merge(kb.pk, kb.tokenizer_id)
    new_process()
    loaded = load(kb)
    assert (loaded.detail["cache_tier"], loaded.detail["changed_chunks"]) == ("redis", 0)
    assert BM25Index.objects.get(knowledge_base=kb).version == version(kb)


def test_merging_while_another_builds_does_nothing(kb):
    load(kb)
    settle()
    make_document(kb, "新的内容")
    with try_lock(Purpose.BUILD_INDEX, kb.pk) as taken:
        (merged,) = at_once(1, lambda: BM25Store().merge(kb.pk, kb.tokenizer_id))
    assert (taken, merged) == (True, False)
    assert BM25Index.objects.get(knowledge_base=kb).version < version(kb)


def end_log_with_postings(kb):
    """One statement over more rows than are logged, in a knowledge base that is not larger before."""
    sql(
        "INSERT INTO kb_chunk (knowledge_base_id, document_id, position, text, content_hash, token_count, enabled,"
        " heading_path, updated_at) SELECT %s, %s, 100 + n, 'bulk', 'x', 1, true, '{}', now()"
        " FROM generate_series(0, %s) n",
        kb.pk,
        kb.documents.first().pk,
        MAX_LOGGED_ROWS,
    )
    sql(POSTINGS_OF_ONE_TERM, kb.pk)


def swap_tokenizer(kb):
    active = kb.tokenizer_id
    KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizer_id="another")
    KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizer_id=active)


RESETS = {
    "a statement over more rows than are logged": end_log_with_postings,
    "invalidating": lambda kb: BM25Store().invalidate(kb.pk),
    "another tokenizer and back": swap_tokenizer,
}


@pytest.mark.parametrize("reset", RESETS.values(), ids=RESETS.keys())
def test_a_reset_makes_every_older_base_unusable(kb, reset):
    base = load(kb).detail["version"]
    settle()
    before = builds()
    reset(kb)

    loaded = load(kb)

    assert ("reset", None) in log(kb)
    assert loaded.detail["cache_tier"] == "build"
    assert loaded.detail["base_version"] == version(kb) > base
    assert builds() == before + 1
    assert_as_built(loaded, kb)


def test_deleting_more_rows_than_are_logged_is_seen(kb):
    load(kb)
    end_log_with_postings(kb)
    load(kb)
    settle()
    Chunk.objects.filter(text="bulk")._raw_delete("default")
    assert log(kb)[-1] == ("reset", None)
    loaded = load(kb)
    assert loaded.index.chunk_count == 3
    assert_as_built(loaded, kb)


def test_more_changes_than_the_limit_lead_to_a_build(kb, monkeypatch):
    monkeypatch.setattr(bm25, "MIN_CHANGES_TO_BUILD", 2)
    load(kb)
    settle()
    make_document(kb, "一", "二")
    at_the_limit = load(kb)
    make_document(kb, "三")
    over_it = load(kb)
    assert (at_the_limit.detail["cache_tier"], at_the_limit.detail["changed_chunks"]) == ("process", 2)
    assert (over_it.detail["cache_tier"], over_it.detail["changed_chunks"]) == ("build", 0)
    assert_as_built(over_it, kb)


def test_a_chunk_that_changed_often_counts_once(kb, monkeypatch):
    monkeypatch.setattr(bm25, "MIN_CHANGES_TO_BUILD", 2)
    load(kb)
    for _ in range(3):
        disable_and_enable(kb)
    loaded = load(kb)
    assert (loaded.detail["cache_tier"], loaded.detail["changed_chunks"]) == ("process", 1)


def test_a_late_older_base_changes_nothing_in_redis_or_in_postgresql(kb):
    old = key(kb)
    make_document(kb, "新的内容")
    load(kb)
    settle()
    rows, entries = list(BM25Index.objects.values()), sorted(redis_entries())
    resets = log(kb)

    stored = [RedisTier(10**6).store(old, b"late"), DatabaseTier().store(old, b"late")]

    assert stored == [False, False]
    assert list(BM25Index.objects.values()) == rows
    assert sorted(redis_entries()) == entries
    assert log(kb) == resets


def test_a_builder_that_ends_after_an_invalidation_publishes_nothing(kb, monkeypatch):
    gate = Gate(monkeypatch, bm25, "build_index", after=True)
    asked = request(kb)
    gate.wait()
    BM25Store().invalidate(kb.pk)
    gate.open()
    asked.wait(time.monotonic() + PATIENCE)
    settle()
    assert not BM25Index.objects.exists()
    assert redis_entries() == []
    assert tier(kb) == "build"


def test_a_document_moved_by_raw_sql_is_found_in_its_new_base_only(kb):
    other = make_kb(kb.owner)
    load(kb)
    load(other)
    document = Document.objects.get(knowledge_base=kb)
    with connection.cursor() as cursor:
        for table in ("kb_chunk", "kb_chunkpostings", "kb_chunkembedding"):
            cursor.execute(f"UPDATE {table} SET knowledge_base_id = %s WHERE knowledge_base_id = %s", [other.pk, kb.pk])
        cursor.execute("UPDATE kb_document SET knowledge_base_id = %s WHERE id = %s", [other.pk, document.pk])
    assert find(kb, "保修期") == []
    assert len(find(other, "保修期")) == 1
    assert_as_built(load(other), other)
