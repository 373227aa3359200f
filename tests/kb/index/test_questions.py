"""The index of the questions that chunks answer, beside that of passages: in every tier, and under every change."""

import pytest
from django.db import connection

from kb.index import fulltext
from kb.index.bm25 import BM25Store, DatabaseTier, RedisTier, StoredIndex
from kb.index.services.reindex import reindex_embeddings, reindex_postings
from kb.index.services.tokenizing import tokenize_questions
from kb.ingest.services.chunks import chunk_update
from kb.models import Chunk, ChunkPostings, KnowledgeBaseVersion
from kb.providers.embedding_models import tokenizer
from kb.tasks import merge_keyword_index
from retrieval.postings import count_postings, hash_terms
from tests.kb.index.searching import (
    assert_as_built,
    empty_redis,
    find,
    find_by_questions,
    load,
    new_process,
    ranking,
    settle,
    sql,
)

pytestmark = pytest.mark.django_db(transaction=True)


def ask(chunk, *questions):
    chunk_update(chunk, text=chunk.text, enabled=chunk.enabled, questions=questions)


@pytest.fixture
def chunk(kb):
    chunk = Chunk.objects.select_related("document", "knowledge_base").get(text="安装前请先关闭电源")
    ask(chunk, "怎样给设备断电", "How do I cut the power?")
    return chunk


def test_a_chunk_is_found_by_the_words_of_its_questions_there_and_not_among_passages(kb, chunk):
    assert find_by_questions(kb, "设备断电") == find_by_questions(kb, "cutting power") == [chunk.pk]
    assert find(kb, "断电") == []


def test_passages_score_as_if_there_were_no_questions(kb):
    before = [ranking(load(kb).index, query) for query in ("保修期", "电源", "thermostat")]
    for chunk in Chunk.objects.filter(knowledge_base=kb).select_related("document", "knowledge_base"):
        ask(chunk, "保修期 电源 thermostat 保修期")
    BM25Store().merge(kb.pk, kb.tokenizer_id)
    assert [ranking(load(kb).index, query) for query in ("保修期", "电源", "thermostat")] == before


@pytest.mark.parametrize("nearest", ["redis", "database"])
def test_a_stored_base_holds_them(kb, chunk, nearest):
    load(kb)
    settle()
    if nearest == "database":
        empty_redis()
    new_process()
    loaded = load(kb)
    assert loaded.detail["cache_tier"] == nearest
    assert ranking(loaded.questions, "断电")[0] == [chunk.pk]
    assert_as_built(loaded, kb)


def test_without_questions_an_index_holds_none_and_takes_no_memory_for_them(kb):
    loaded = load(kb)
    assert ranking(loaded.questions, "电源") == ([], [])
    assert loaded.questions.nbytes < 1_000


def test_a_base_of_a_version_before_is_used_as_it_is_and_completed(kb, chunk, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(StoredIndex, "state", lambda index: index.index.state())
        new_process()
        load(kb)
        settle()
    new_process()
    loaded = load(kb)
    settle()

    assert (loaded.questions, loaded.characters, find(kb, "电源")) == (None, None, [chunk.pk])
    assert find_by_questions(kb, "断电") == [chunk.pk]
    for tier in (RedisTier, DatabaseTier):
        new_process()
        if tier is DatabaseTier:
            empty_redis()
        assert find_by_questions(kb, "断电") == [chunk.pk]


def test_they_are_tokenised_when_they_are_written(kb, chunk):
    [row] = ChunkPostings.objects.filter(chunk=chunk)
    assert [bytes(each) for each in row.questions] == [
        count_postings(tokenizer()(question)).packed for question in chunk_questions(chunk)
    ]
    ask(Chunk.objects.select_related("document", "knowledge_base").get(pk=chunk.pk))
    assert ChunkPostings.objects.get(chunk=chunk).questions is None


def chunk_questions(chunk):
    return Chunk.objects.get(pk=chunk.pk).questions


def test_those_that_were_written_before_are_tokenised_by_the_builder(kb, chunk):
    sql("UPDATE kb_chunkpostings SET questions = NULL WHERE chunk_id = %s", chunk.pk)
    assert find_by_questions(kb, "设备断电") == [chunk.pk]
    BM25Store().merge(kb.pk, kb.tokenizer_id)
    new_process()
    assert find_by_questions(kb, "设备断电") == [chunk.pk]


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("asked", [["拔掉插头"], [], ["一", "二", "拔掉插头"]])
def test_those_that_a_process_of_the_release_before_has_changed_are_tokenised_by_the_reader(kb, chunk, asked, is_built):
    load(kb)
    # It wrote all but the tokens of questions.
    sql("UPDATE kb_chunk SET questions = %s::text[] WHERE id = %s", asked, chunk.pk)
    sql("UPDATE kb_chunkpostings SET length = length WHERE chunk_id = %s", chunk.pk)
    assert len(ChunkPostings.objects.get(chunk=chunk).questions) == 2
    if is_built:
        BM25Store().invalidate(kb.pk)
    assert find_by_questions(kb, "设备断电") == []
    assert find_by_questions(kb, "插头") == ([chunk.pk] if asked else [])


def test_a_merge_writes_those_that_were_written_before(kb, chunk, monkeypatch):
    load(kb)
    settle()
    sql("UPDATE kb_chunkpostings SET questions = NULL WHERE chunk_id = %s", chunk.pk)
    monkeypatch.setattr(fulltext, "MIN_CHANGES_TO_MERGE", 0)
    merge_keyword_index(kb.pk)
    assert len(ChunkPostings.objects.get(chunk=chunk).questions) == 2
    assert ChunkPostings.objects.exclude(questions=None).count() == 1
    before = KnowledgeBaseVersion.objects.get(pk=kb.pk).version
    tokenize_questions(kb)
    assert KnowledgeBaseVersion.objects.get(pk=kb.pk).version == before
    new_process()
    assert find_by_questions(kb, "设备断电") == [chunk.pk]


def test_tokenising_again_writes_them(kb, chunk):
    sql("UPDATE kb_chunkpostings SET questions = NULL WHERE chunk_id = %s", chunk.pk)
    reindex_postings(kb)
    assert len(ChunkPostings.objects.get(chunk=chunk).questions) == 2


def test_what_a_model_asks_later_is_found_too(kb, chunk, monkeypatch):
    load(kb)
    from kb.index.services import writing

    find_terms = writing.find_terms
    monkeypatch.setattr(
        writing,
        "find_terms",
        lambda *of: [each.__class__(each.keywords, (*each.questions, "谁来安装")) for each in find_terms(*of)],
    )
    reindex_embeddings(kb)
    assert sorted(len(row.questions) for row in ChunkPostings.objects.all()) == [1, 1, 3]
    assert sorted(find_by_questions(kb, "谁来安装")) == sorted(
        Chunk.objects.filter(knowledge_base=kb).values_list("pk", flat=True)
    )


def test_a_disabled_chunk_and_one_that_is_deleted_are_not_found(kb, chunk):
    load(kb)
    Chunk.objects.filter(pk=chunk.pk).update(enabled=False)
    assert find_by_questions(kb, "断电") == []
    Chunk.objects.filter(pk=chunk.pk).update(enabled=True)
    assert find_by_questions(kb, "断电") == [chunk.pk]
    Chunk.objects.filter(pk=chunk.pk).delete()
    assert find_by_questions(kb, "断电") == []


def test_a_query_finds_them_inside_the_transaction_that_writes_them(kb, chunk):
    from django.db import transaction

    with transaction.atomic():
        ask(Chunk.objects.select_related("document", "knowledge_base").get(pk=chunk.pk), "拔掉插头")
        assert find_by_questions(kb, "插头") == [chunk.pk]
    assert connection.in_atomic_block is False


def test_the_exact_score_of_a_chunk_is_that_of_its_best_question(kb, chunk):
    import numpy as np

    questions = load(kb).questions
    terms = hash_terms(tokenizer()("设备断电"))
    others = np.array(Chunk.objects.filter(knowledge_base=kb).order_by("pk").values_list("pk", flat=True))
    scores = dict(zip(others.tolist(), questions.score(terms, others).tolist(), strict=True))
    assert scores.pop(chunk.pk) == pytest.approx(questions.search(terms, 5)[1][0], rel=1e-6)
    assert np.isnan(list(scores.values())).all()
