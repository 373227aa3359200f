"""Ranks far below what a channel reads, against a full sort; and what an approximate index misses."""

import numpy as np
import pytest

from kb.models import Chunk, ChunkEmbedding, ChunkPostings, KnowledgeBase
from kb.providers import embedder
from kb.services.why_not.apply import apply_remedy
from kb.services.why_not.remedies import remedies
from kb.services.why_not.walk import why_not_found
from kb.stores.exact_ranks import exact_place
from kb.stores.pgvector import PgVectorStore
from kb.stores.vector_index import VectorSpace, maintain_vector_indexes
from retrieval.recall import RANKS_A_CANDIDATE
from tests.factories import make_document, make_kb, make_user, principal
from tests.kb.services.why_not.asking import ask, place, verdict
from tests.kb.stores.searching import sql
from tests.kb.stores.vectors import add_chunks, add_vectors, clustered

DIMENSION = 64
MODEL = "hashing"
DEPTH = 10


def similarities(vectors, query):
    """As halves multiply."""
    halves = vectors.astype(np.float16).astype(np.float64)
    wanted = query.astype(np.float16).astype(np.float64)
    return halves @ wanted / np.linalg.norm(halves, axis=1) / np.linalg.norm(wanted)


@pytest.mark.django_db
class TestExactPlace:
    @pytest.fixture
    def vectors(self):
        return clustered(200, dimension=DIMENSION)

    @pytest.fixture
    def ids(self, kb, vectors):
        ids = add_chunks(kb, len(vectors))
        add_vectors(kb, ids, vectors)
        return ids

    @pytest.mark.parametrize("row", [0, 7, 199])
    def test_it_is_the_place_in_a_full_sort(self, kb, ids, vectors, row):
        cosines = similarities(vectors, vectors[3])

        found = exact_place(kb.pk, MODEL, vectors[3], ids[row])

        assert found.rank == 1 + (cosines > cosines[row]).sum()
        assert found.similarity == pytest.approx(cosines[row], abs=1e-3)
        assert (found.total, found.is_indexed) == (200, False)

    def test_only_chunks_that_pass_the_filters_and_are_enabled_count(self, kb, ids, vectors):
        nearest = np.argsort(-similarities(vectors, vectors[3]), kind="stable")
        sql("UPDATE kb_chunkembedding SET enabled = false WHERE chunk_id = %s", ids[nearest[0]])
        passing = np.sort(np.array(ids)[nearest[1:50:2]])

        found = exact_place(kb.pk, MODEL, vectors[3], ids[nearest[49]], only=passing)

        assert (found.rank, found.total) == (25, 25)

    def test_a_chunk_without_a_vector_has_no_rank(self, kb, ids, vectors):
        (bare,) = add_chunks(kb, 1)

        found = exact_place(kb.pk, MODEL, vectors[3], bare)

        assert (found.rank, found.similarity, found.total) == (None, None, 200)

    def test_a_vector_of_length_0_has_no_rank_and_takes_none(self, kb, ids, vectors):
        (empty,) = add_chunks(kb, 1)
        add_vectors(kb, [empty], [np.zeros(DIMENSION)])

        assert exact_place(kb.pk, MODEL, vectors[3], empty).rank is None
        assert exact_place(kb.pk, MODEL, vectors[3], ids[0]).total == 200

    def test_the_vector_of_keywords_has_its_share(self, kb, ids, vectors):
        add_vectors(kb, ids[:100], vectors[100:], kind="keywords")
        content = similarities(vectors, vectors[3])
        joined = np.concatenate([0.5 * content[:100] + 0.5 * content[100:], content[100:]])

        found = exact_place(kb.pk, MODEL, vectors[3], ids[42], keyword_share=0.5)

        assert found.rank == 1 + (joined > joined[42]).sum()
        assert found.similarity == pytest.approx(joined[42], abs=1e-3)

    def test_a_chunk_of_several_questions_counts_with_the_nearest(self, kb, ids, vectors):
        for ordinal, row in enumerate((150, 3)):
            add_vectors(kb, [ids[0]], [vectors[row]], kind="question", ordinal=ordinal)

        found = exact_place(kb.pk, MODEL, vectors[3], ids[0], kind="question")

        assert (found.rank, found.total) == (1, 1)
        assert found.similarity == pytest.approx(1.0, abs=1e-3)


# -- Through a search --------------------------------------------------------------------------------------------------
@pytest.mark.django_db
def test_keyword_ranks_go_as_deep_as_chunks_hold_a_term(kb):
    documents = [make_document(kb, "保修期 " + "说明 " * number) for number in range(12)]
    chunk = documents[-1].chunks.select_related("knowledge_base__owner").get()

    why = ask(chunk, overrides={"bm25_top_k": 1, "vector_top_k": 1})

    assert (place(why, "bm25").rank, place(why, "bm25").total) == (12, 12)
    assert verdict(why) == ("channels", "too_deep")


@pytest.fixture
def poor_index(settings):
    """A knowledge base whose index is too thin to find its way about; chunk ids, and their texts' vectors."""
    settings.VECTOR_INDEX_MIN_ROWS = 100
    kb = make_kb()
    texts = [" ".join(f"w{(number * step) % 97}" for step in range(1, 7)) for number in range(1_000)]
    vectors = embedder(MODEL).embed_documents(texts)
    ids = add_chunks(kb, len(texts))
    add_vectors(kb, ids, vectors)
    space = VectorSpace(kb.pk, MODEL, "content", len(ids), vectors.shape[1])
    sql(
        f"CREATE INDEX {space.index_name} ON kb_chunkembedding"
        f" USING hnsw ((vector::halfvec({space.dimension})) halfvec_cosine_ops) WITH (m = 2, ef_construction = 4)"
        f" WHERE knowledge_base_id = {kb.pk} AND model = '{MODEL}' AND kind = 'content'"
    )
    sql("ANALYZE kb_chunkembedding")
    yield kb, ids, texts, vectors
    KnowledgeBase.objects.all().delete()
    ChunkEmbedding.objects.all().delete()
    maintain_vector_indexes()


@pytest.mark.django_db(transaction=True)
def test_a_chunk_that_the_approximate_index_misses_and_what_reading_deeper_does(poor_index):
    kb, ids, texts, vectors = poor_index
    query, missed = missed_by(kb, ids, texts, vectors)
    chunk = Chunk.objects.select_related("knowledge_base__owner").get(pk=missed)
    ChunkPostings.objects.create(chunk=chunk, knowledge_base=kb, tokenizer_id=kb.tokenizer_id, length=0)

    why = ask(chunk, query, overrides={"vector_top_k": DEPTH})

    assert verdict(why) == ("channels", "missed_by_index")
    found = place(why, "vector")
    assert found.is_indexed
    assert found.rank <= found.depth == DEPTH
    assert found.channel_rank is None
    (deeper,) = (remedy for remedy in remedies(why) if remedy.key == "vector_top_k")
    request = apply_remedy(principal(make_user(superuser=True)), why, deeper)
    after = why_not_found(principal(kb.owner), request, missed)
    assert place(after, "vector").depth == 4 * DEPTH
    assert place(after, "vector").state == "candidate"


def missed_by(kb, ids, texts, vectors):
    """A query and a chunk that is among its nearest, which the index returns only when it is read four times as deep."""
    for row, query in enumerate(texts[:300]):
        found, _ = PgVectorStore().search(kb.pk, MODEL, vectors[row], RANKS_A_CANDIDATE * DEPTH)
        deeper, _ = PgVectorStore().search(kb.pk, MODEL, vectors[row], RANKS_A_CANDIDATE * 4 * DEPTH)
        exact = np.array(ids)[np.argsort(-similarities(vectors, vectors[row]), kind="stable")[: DEPTH // 2]]
        missed = np.setdiff1d(np.intersect1d(exact, deeper[: 4 * DEPTH]), found)
        if missed.size and found.size == RANKS_A_CANDIDATE * DEPTH:
            return query, int(missed[0])
    pytest.fail("this index misses nothing")
