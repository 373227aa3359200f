"""Ranks far below what a channel reads, and what an approximate index misses."""

import numpy as np
import pytest

from kb.index.pgvector import PgVectorStore
from kb.index.vector_index import VectorSpace, maintain_vector_indexes
from kb.models import Chunk, ChunkEmbedding, ChunkPostings, KnowledgeBase
from kb.providers import embedding_models as providers
from kb.providers.embedding_models import embedder
from kb.quality.why_not.services.remedies import apply_remedy, remedies
from kb.quality.why_not.services.walk import why_not_found
from retrieval.recall import RANKS_A_CANDIDATE
from retrieval.types import Rewritten
from tests.factories import make_document, make_kb, make_user, principal
from tests.kb.index.searching import sql
from tests.kb.index.vectors import MODEL, add_chunks, add_vectors
from tests.kb.quality.why_not.services.asking import ask, place, verdict

DEPTH = 10


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
    texts = [" ".join(f"w{(number * step) % 97}" for step in range(1, 7)) for number in range(3_000)]
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
    (deeper,) = (remedy for remedy in remedies(why) if remedy.about == "vector_top_k")
    request = apply_remedy(principal(make_user(superuser=True)), why, deeper)
    after = why_not_found(principal(kb.owner), request, missed)
    assert place(after, "vector").depth == 4 * DEPTH
    assert place(after, "vector").state == "candidate"


def missed_by(kb, ids, texts, vectors):
    """A query and a chunk that is among its nearest, which the index returns only when it is read four times as deep."""
    for row, query in enumerate(texts[:300]):
        found, _ = PgVectorStore().search(kb.pk, MODEL, vectors[row], RANKS_A_CANDIDATE * DEPTH)
        deeper, _ = PgVectorStore().search(kb.pk, MODEL, vectors[row], RANKS_A_CANDIDATE * 4 * DEPTH)
        exact = np.array(ids)[np.argsort(-(vectors @ vectors[row]), kind="stable")[: DEPTH // 2]]
        missed = np.setdiff1d(np.intersect1d(exact, deeper[: 4 * DEPTH]), found)
        if missed.size and found.size == RANKS_A_CANDIDATE * DEPTH:
            return query, int(missed[0])
    pytest.fail("this index misses nothing")


class TwoQuestions:
    """A rewriter that finds a second question in every query."""

    def rewrite(self, text, history, most, deadline):
        return Rewritten(text, ("电源",))


@pytest.mark.django_db
def test_each_sub_query_has_a_place_of_its_own(chunk, monkeypatch):
    monkeypatch.setattr(providers, "rewriter", TwoQuestions)
    shallow = {"rewrite": "always", "vector_top_k": 1, "bm25_top_k": 1, "top_k": 10}

    why = ask(chunk, overrides=shallow)

    places = {(each.channel, each.query): (str(each.state), each.rank, each.channel_rank) for each in why.places}
    assert places["bm25", 0] == ("deeper", 6, None)
    assert places["bm25", 1] == ("candidate", 1, 1)
    assert places["vector", 0][0] == "deeper"
    assert places["vector", 1] == ("candidate", 1, 1)
    assert why.rank is not None
