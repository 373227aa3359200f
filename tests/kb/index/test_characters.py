"""How many chunks hold a character is known in all tiers, after changes, and soon after an upgrade."""

import threading

import numpy as np
import pytest
from django.conf import settings

from kb.access.models import Principal
from kb.base.db.transactions import Purpose, try_lock
from kb.index import bm25
from kb.index.bm25 import BM25Store
from kb.ingest.services.chunks import chunk_update
from kb.models import BM25Index, Chunk
from kb.search.services.search import SearchRequest, search
from retrieval.character_counts import query_codes
from tests.factories import make_document
from tests.interleaving import PATIENCE
from tests.kb.index.searching import builds, empty_redis, key, load, new_process, settle

pytestmark = pytest.mark.django_db(transaction=True)

RARE = "保"


def chunks_with(loaded, character):
    """From its rarity, log(1 + (N + 200 - n + 0.5) / (n + 0.5))."""
    rarity = loaded.characters.rarity(query_codes(character, (character,)))[0]
    return round((loaded.characters.chunk_count + 201) / np.exp(rarity) - 0.5)


@pytest.mark.parametrize("tier", ["process", "redis", "database", "build"])
def test_every_tier_has_them(kb, tier):
    load(kb)
    if tier != "process":
        new_process()
    if tier in ("database", "build"):
        empty_redis()
    if tier == "build":
        BM25Index.objects.all().delete()
    loaded = load(kb)
    assert loaded.detail["cache_tier"] == tier
    assert chunks_with(loaded, RARE) == 1
    assert loaded.characters.chunk_count == 2  # one of the three is English


def test_title_and_headings_count_as_the_text_does(kb):
    document = make_document(kb, "正文", title="彩虹")
    Chunk.objects.filter(document=document).update(heading_path=["雨伞"])
    loaded = load(kb)
    assert [chunks_with(loaded, each) for each in "虹伞正"] == [1, 1, 1]


def test_an_added_chunk_counts_at_once_and_a_removed_one_until_the_next_base(kb):
    load(kb)
    added = make_document(kb, "保险")
    assert chunks_with(load(kb), RARE) == 2
    added.delete()
    assert chunks_with(load(kb), RARE) == 1
    Chunk.objects.get(text__startswith="智能").delete()
    assert chunks_with(load(kb), RARE) == 1
    settle()
    assert BM25Store().merge(kb.pk, kb.tokenizer_id)
    new_process()
    assert chunks_with(load(kb), RARE) == 0


def test_an_edited_chunk_counts_with_its_new_text(kb):
    load(kb)
    chunk = Chunk.objects.get(text__startswith="安装")
    chunk_update(chunk, text="安装前请阅读保修条款", enabled=True)
    assert chunks_with(load(kb), RARE) == 2
    assert chunks_with(load(kb), "阅") == 1


@pytest.fixture
def stored_before(kb):
    """As a version of this package left it that counted no characters."""
    built = bm25.build_index(kb.pk, kb.tokenizer_id)
    BM25Store().cache.publish(key(kb), bm25.StoredIndex(built.index, built.version))
    new_process()
    return kb


def test_an_index_of_the_version_before_answers_at_once_and_is_completed(stored_before):
    before = builds()
    loaded = load(stored_before)
    assert (loaded.detail["cache_tier"], loaded.characters) == ("redis", None)
    settle()
    assert builds() == before + 1
    assert chunks_with(load(stored_before), RARE) == 1  # in this process
    new_process()
    assert chunks_with(load(stored_before), RARE) == 1  # and in others
    assert builds() == before


def complete(kb):
    settle()
    loaded = load(kb)
    return loaded.characters is not None and loaded.questions is not None


def test_while_another_process_holds_the_lock_an_old_index_answers_and_is_completed_afterwards(stored_before):
    with try_lock(Purpose.BUILD_INDEX, stored_before.pk):
        load(stored_before)
        assert not complete(stored_before)
        settle()
        assert builds() == 0
    assert not complete(stored_before)  # the old one still answers without waiting, and it is built meanwhile
    assert complete(stored_before)
    assert builds() == 1


def test_what_another_process_has_completed_is_read_and_not_built_again(stored_before, other_process):
    with try_lock(Purpose.BUILD_INDEX, stored_before.pk):
        load(stored_before)
        settle()
    other = other_process()
    other.ask("search", stored_before.pk, "保修期")
    assert other.ask("settle")["builds"] == 1
    assert not complete(stored_before)
    assert complete(stored_before)
    assert builds() == 0


def test_a_write_while_it_is_completed_does_not_leave_the_old_one(stored_before, monkeypatch):
    searched = []
    is_searched = threading.Event()

    def build(kb_id, tokenizer_id, *, build_index=bm25.build_index):
        built = build_index(kb_id, tokenizer_id)
        if not searched:
            make_document(stored_before, "保险")
            searched.append(load(stored_before).characters)
            is_searched.set()
        return built

    monkeypatch.setattr(bm25, "build_index", build)
    load(stored_before)
    assert is_searched.wait(PATIENCE)
    settle()
    assert searched == [None]
    assert complete(stored_before)
    assert chunks_with(load(stored_before), RARE) == 2


def test_a_build_that_fails_is_tried_again(stored_before, monkeypatch):
    with monkeypatch.context() as fault:
        fault.setattr(bm25, "build_index", lambda *_: 1 / 0)
        load(stored_before)
        settle()
    assert not complete(stored_before)
    assert complete(stored_before)


def test_one_that_has_become_too_large_for_redis_does_not_leave_the_old_one_there(stored_before, monkeypatch):
    monkeypatch.setattr(settings, "BM25_REDIS_MAX_BYTES", 10)
    new_process()
    load(stored_before)
    new_process()
    loaded = load(stored_before)
    assert loaded.characters is not None
    assert loaded.detail["cache_tier"] == "database"


@pytest.mark.parametrize(("query", "says"), [("保修期是几年", True), ("thermostat warranty", False)])
def test_a_search_says_so_meanwhile_where_it_matters(stored_before, monkeypatch, query, says):
    monkeypatch.setattr(BM25Store, "_complete", lambda self, wanted: None)
    request = SearchRequest(query=query, knowledge_base_ids=[stored_before.pk])
    outcome = search(Principal(stored_before.owner), request)
    assert outcome.result.hits
    assert ("bm25_index_old" in {each.code for each in outcome.result.degraded}) is says
    assert not any("characters" in each.ranks for each in outcome.result.candidates)


def test_a_search_ranks_by_them(kb):
    outcome = search(Principal(kb.owner), SearchRequest(query="保修期是几年", knowledge_base_ids=[kb.pk]))
    first = outcome.result.candidates[0]
    assert first.ranks["characters"] == 1
    assert first.scores["characters"] > first.scores["bm25"] > 0
