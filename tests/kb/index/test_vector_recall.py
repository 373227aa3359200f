from datetime import timedelta

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from kb.base.findings import State
from kb.index.pgvector import PgVectorStore, efforts, measure_due, recall_of
from kb.index.vector_index import maintain_vector_indexes
from kb.models import ChunkEmbedding, KnowledgeBase, VectorIndex
from kb.operations.services.health.indexes import vector_recall
from kb.tasks import sweep_vector_indexes
from tests.factories import make_kb
from tests.kb.index.searching import sql
from tests.kb.index.vectors import MODEL, add_chunks, add_vectors, clustered, unit

pytestmark = pytest.mark.django_db(transaction=True)

COUNT = 3_000


@pytest.fixture(autouse=True)
def _small_threshold(settings):
    settings.VECTOR_INDEX_MIN_ROWS = 100
    efforts.cache_clear()
    yield
    KnowledgeBase.objects.all().delete()
    ChunkEmbedding.objects.all().delete()
    maintain_vector_indexes()
    efforts.cache_clear()


@pytest.fixture
def kb():
    return make_kb()


def fill(kb, vectors):
    chunk_ids = add_chunks(kb, len(vectors))
    add_vectors(kb, chunk_ids, vectors)
    sql("ANALYZE kb_chunkembedding")
    return chunk_ids


def rows(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def scattered(count, dimension):
    """Vectors without any structure, which no index can tell apart."""
    return unit(np.random.default_rng(2).standard_normal((count, dimension)))


def search(kb, vector, k=25, **options):
    with CaptureQueriesContext(connection) as queries:
        chunk_ids, similarities = PgVectorStore().search(kb.pk, MODEL, vector, k, **options)
    return chunk_ids.tolist(), similarities.tolist(), " ".join(query["sql"] for query in queries)


def exact(vectors, chunk_ids, query, k=25):
    halves = vectors.astype(np.float16).astype(np.float32)
    order = np.lexsort((chunk_ids, -(halves @ query)))[:k]
    return [chunk_ids[place] for place in order]


def test_a_new_index_is_measured_and_its_figures_are_kept(kb):
    fill(kb, clustered(COUNT))

    sweep_vector_indexes()

    row = VectorIndex.objects.get()
    assert (row.knowledge_base, row.model, row.kind, row.method) == (kb, MODEL, "content", "hnsw")
    assert row.vectors == COUNT
    assert row.recall >= 0.98
    assert row.is_used
    assert row.sampled == 40
    assert row.exact_ms > 0
    assert row.index_ms > 0


def test_what_is_measured_is_not_measured_again_until_it_has_grown_or_is_old(kb):
    fill(kb, clustered(500))
    sweep_vector_indexes()
    assert measure_due() == []

    add_vectors(kb, add_chunks(kb, 200), clustered(200, seed=3))
    assert [row.vectors for row in measure_due()] == [700]

    VectorIndex.objects.update(measured_at=timezone.now() - timedelta(days=8))
    assert len(measure_due()) == 1


def test_an_index_that_finds_too_few_is_searched_deeper(kb, monkeypatch):
    monkeypatch.setattr("kb.index.pgvector.EF_SEARCHES", (1, 600))
    vectors = scattered(COUNT, 256)
    chunk_ids = fill(kb, vectors)
    sweep_vector_indexes()

    assert VectorIndex.objects.get().effort == 600
    found, _similarities, statement = search(kb, vectors[7])
    assert "SET LOCAL hnsw.ef_search = 600" in statement
    assert len(set(found) & set(exact(vectors, chunk_ids, vectors[7]))) >= 24


def test_an_index_that_never_finds_enough_is_not_used_where_comparing_all_is_quick(kb, settings):
    vectors = scattered(COUNT, 256)
    chunk_ids = fill(kb, vectors)
    settings.VECTOR_RECALL_TARGET = 1.1  # out of reach
    sweep_vector_indexes()

    assert not VectorIndex.objects.get().is_used
    assert vector_recall().state is State.OK
    query = unit(np.random.default_rng(5).standard_normal(256))
    assert search(kb, query)[0] == exact(vectors, chunk_ids, query)


def test_low_recall_that_searches_go_by_is_told_by_the_doctor(kb, settings):
    fill(kb, clustered(500))
    sweep_vector_indexes()
    assert vector_recall().state is State.OK

    VectorIndex.objects.update(recall=0.7, is_used=True)

    finding = vector_recall()
    assert finding.state is State.DEGRADED
    assert kb.name in finding.detail
    assert "0.70" in finding.detail


def test_ivfflat_takes_the_place_of_hnsw_and_finds_as_much(kb, settings):
    vectors = clustered(COUNT)
    chunk_ids = fill(kb, vectors)
    sweep_vector_indexes()
    settings.VECTOR_INDEX_METHOD = "ivfflat"

    sweep_vector_indexes()

    [(name, definition)] = rows(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'kb_chunkembedding' AND indexdef LIKE '%halfvec_cosine%'"
    )
    assert name.startswith("ivfflat_")
    assert "lists='55'" in definition  # the square root of the rows
    row = VectorIndex.objects.get()
    assert row.method == "ivfflat"
    assert row.recall >= 0.98
    found, similarities, statement = search(kb, vectors[3])
    assert f"SET LOCAL ivfflat.probes = {row.effort}" in statement
    assert similarities == sorted(similarities, reverse=True)
    assert len(set(found) & set(exact(vectors, chunk_ids, vectors[3]))) >= 24


@pytest.mark.parametrize("method", ["hnsw", "ivfflat"])
def test_a_filter_never_finds_fewer_than_there_are(kb, settings, method, monkeypatch):
    monkeypatch.setattr("kb.index.pgvector.MAX_EXACT", 0)  # so that the index is asked, whatever the filter's size
    settings.VECTOR_INDEX_METHOD = method
    vectors = clustered(COUNT)
    chunk_ids = np.array(fill(kb, vectors))
    sweep_vector_indexes()
    far = np.argsort(vectors @ vectors[0])[:30]  # the last that an index would come to

    found, _similarities, _statement = search(kb, vectors[0], only=np.sort(chunk_ids[far]))

    assert len(found) == 25
    assert set(found) <= set(chunk_ids[far].tolist())


def test_the_depth_of_one_search_does_not_stay_for_the_next(kb):
    fill(kb, clustered(500))
    sweep_vector_indexes()
    VectorIndex.objects.update(effort=512)
    efforts.cache_clear()

    _found, _similarities, statement = search(kb, clustered(1)[0])

    assert "SET LOCAL hnsw.ef_search = 512" in statement
    assert rows("SHOW hnsw.ef_search") == [("128",)]


def test_recall_counts_what_is_as_near_as_the_last_of_the_nearest():
    exact_distances = [np.array([0.1, 0.2, 0.2])]
    assert recall_of([np.array([0.1, 0.2, 0.2])], exact_distances) == 1
    assert recall_of([np.array([0.1, 0.2, 0.4])], exact_distances) == pytest.approx(2 / 3)
    assert recall_of([np.array([])], exact_distances) == 0
