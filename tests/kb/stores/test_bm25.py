"""Three tiers on real Redis and PostgreSQL: right after every commit, in every process, with Redis up, dead or lying."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from django.conf import settings
from django.core.cache import caches
from django.db import connection, transaction

from kb.conf import tokenizer
from kb.models import BM25Index, Chunk, KnowledgeBaseVersion
from kb.stores import bm25
from kb.stores.bm25 import BM25Store
from kb.stores.installation import installation_id
from kb.stores.tiers import RedisTier
from retrieval.payload import PayloadCodec
from retrieval.postings import hash_terms
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db(transaction=True)


def version(kb):
    return KnowledgeBaseVersion.objects.get(pk=kb.pk).version


def load(kb):
    return BM25Store().load(kb.pk, version(kb), tokenizer().id)


def find(kb, query):
    return load(kb).value.search(hash_terms(tokenizer()(query)), 10)[0].tolist()


def redis_entries():
    return caches["bm25"].keys(f"*{installation_id()}*")


def new_process():
    """A fresh L1, as another process would have."""
    bm25._shared_cache.cache_clear()


@pytest.fixture
def kb():
    kb = make_kb()
    make_document(kb, "智能温控器的保修期是两年", "安装前请先关闭电源", "thermostat warranty")
    return kb


def test_a_chunk_of_a_one_chunk_base_is_found_by_keyword():
    kb = make_kb()
    document = make_document(kb, "保修期是两年")
    assert find(kb, "保修") == [document.chunks.get().pk]


def test_the_first_search_builds_and_the_next_ones_find_the_nearest_tier(kb):
    tiers = [load(kb).tier, load(kb).tier]
    new_process()
    tiers += [load(kb).tier]
    caches["bm25"].clear()
    new_process()
    tiers += [load(kb).tier, load(kb).tier]
    assert tiers == ["build", "process", "redis", "database", "process"]


def test_the_persistent_tier_holds_one_row_of_the_newest_version(kb):
    load(kb)
    make_document(kb, "新的内容")
    load(kb)
    row = BM25Index.objects.get(knowledge_base=kb)
    assert (row.version, row.chunk_count, row.tokenizer_id) == (version(kb), 4, tokenizer().id)


def test_an_older_version_never_replaces_a_newer_row(kb):
    old = bm25.BM25Store._key(kb.pk, version(kb), tokenizer().id)
    make_document(kb, "新的内容")
    load(kb)
    bm25.DatabaseTier().store(old, b"late")
    assert BM25Index.objects.get(knowledge_base=kb).version == version(kb)


@pytest.mark.parametrize("change", ["add", "edit", "disable", "delete"])
def test_after_a_commit_the_next_search_sees_the_change(kb, change):
    assert len(find(kb, "保修期")) == 1
    chunk = Chunk.objects.get(position=0)
    if change == "add":
        make_document(kb, "延长保修期可以另外购买")
    elif change == "edit":
        chunk.postings.all().delete()
    elif change == "disable":
        Chunk.objects.filter(pk=chunk.pk).update(enabled=False)
    else:
        chunk.document.delete()
    assert len(find(kb, "保修期")) == (2 if change == "add" else 0)


def test_invalidate_clears_all_three_tiers_and_takes_a_new_version(kb):
    load(kb)
    before = version(kb)
    BM25Store().invalidate(kb.pk)
    assert version(kb) > before
    assert not BM25Index.objects.exists()
    assert redis_entries() == []
    assert load(kb).tier == "build"


def test_adding_and_deleting_a_document_clears_the_tiers_on_commit(kb):
    load(kb)
    make_document(kb, "新的内容")
    assert not BM25Index.objects.exists()
    load(kb)
    kb.documents.first().delete()
    assert not BM25Index.objects.exists()
    assert redis_entries() == []


def test_redis_holds_one_entry_and_its_pointer_a_base(kb):
    for text in ("一", "二", "三"):
        make_document(kb, text)
        load(kb)
    assert len(redis_entries()) == 2


def test_an_open_transaction_searches_what_it_wrote_and_publishes_nothing(kb):
    with transaction.atomic():
        make_document(kb, "尚未提交的保修期")
        assert len(find(kb, "保修期")) == 2
        assert not BM25Index.objects.exists()
        assert redis_entries() == []
        transaction.set_rollback(True)
    assert len(find(kb, "保修期")) == 1


@pytest.fixture
def dead_redis(settings):
    """The cache's address leads to a closed port."""
    settings.CACHES = {
        **settings.CACHES,
        "bm25": {**settings.CACHES["bm25"], "LOCATION": "redis://127.0.0.1:1/1"},
    }
    yield
    del caches["bm25"]


def test_with_redis_dead_searches_are_right_and_the_database_tier_serves(kb, dead_redis):
    assert len(find(kb, "保修期")) == 1
    new_process()
    assert load(kb).tier == "database"
    make_document(kb, "延长保修期可以另外购买")
    assert len(find(kb, "保修期")) == 2


def test_what_happened_while_redis_was_away_is_not_undone_by_its_return(kb, settings):
    load(kb)
    alive = settings.CACHES
    settings.CACHES = {**alive, "bm25": {**alive["bm25"], "LOCATION": "redis://127.0.0.1:1/1"}}
    make_document(kb, "延长保修期可以另外购买")
    settings.CACHES = alive
    new_process()
    assert len(find(kb, "保修期")) == 2


class Harmless:
    """Pickles to a call that would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("forged", ["garbage", "truncated", "other key", "evil pickle", "other base"])
def test_a_payload_that_is_not_ours_is_a_miss_and_runs_nothing(kb, forged, tmp_path):
    load(kb)
    entry = str(bm25.BM25Store._key(kb.pk, version(kb), tokenizer().id))
    good = caches["bm25"].get(entry)
    mark = tmp_path / "ran"
    foreign = PayloadCodec(b"another secret")
    payload = {
        "garbage": b"\x00garbage" * 50,
        "truncated": good[: len(good) // 2],
        "other key": foreign.seal(entry, {}),
        "evil pickle": foreign.seal(entry, Harmless(mark)),
        "other base": PayloadCodec(settings.SECRET_KEY.encode()).seal("another key", {}),
    }[forged]
    caches["bm25"].set(entry, payload)
    BM25Index.objects.update(payload=payload)
    new_process()
    assert load(kb).tier == "build"
    assert not mark.exists()
    new_process()
    assert load(kb).tier == "redis"


def test_another_process_sees_a_commit_at_its_next_search(kb):
    """Writer in a process of its own; this one has the index in memory and must not answer from it."""
    assert len(find(kb, "保修期")) == 1
    script = f"""
        import django; django.setup()
        from django.conf import settings
        settings.DATABASES["default"]["NAME"] = {connection.settings_dict["NAME"]!r}
        from tests.factories import make_document
        from kb.models import KnowledgeBase
        make_document(KnowledgeBase.objects.get(pk={kb.pk}), "延长保修期可以另外购买")
    """
    environment = {"DJANGO_SETTINGS_MODULE": "config.settings", "PYTHONPATH": str(settings.BASE_DIR)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(find(kb, "保修期")) == 2


def test_an_empty_base_has_an_empty_index():
    kb = make_kb()
    found = load(kb)
    assert (found.value.chunk_count, find(kb, "任何")) == (0, [])


def test_scores_are_those_of_the_index_built_from_the_rows(kb):
    ids, scores = load(kb).value.search(hash_terms(tokenizer()("保修期")), 5)
    new_process()
    again_ids, again_scores = load(kb).value.search(hash_terms(tokenizer()("保修期")), 5)
    assert ids.tolist() == again_ids.tolist()
    assert np.array_equal(scores, again_scores)


def test_a_damaged_pointer_is_no_error(kb):
    caches["bm25"].set(RedisTier._pointer(kb.pk), b"\xff\xfe")
    BM25Store().clear(kb.pk)
    assert load(kb).tier == "build"
