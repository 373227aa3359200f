"""How many chunks hold a character is known in all tiers, after changes, and soon after an upgrade."""

import numpy as np
import pytest

from kb.access.models import Principal
from kb.index import bm25
from kb.index.bm25 import BM25Store
from kb.ingest.services.chunks import chunk_update
from kb.models import BM25Index, Chunk
from kb.search.services.search import SearchRequest, search
from retrieval.character_counts import query_codes
from tests.factories import make_document
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
