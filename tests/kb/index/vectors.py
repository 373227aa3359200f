"""Vectors of chunks for tests, written without a model."""

import threading
from contextlib import contextmanager

import numpy as np
from django.db import connection, connections
from pgvector import HalfVector

from kb.base.db.transactions import own_session
from kb.base.text import hash_content
from kb.index.vector_index import builds_under_way, maintain_vector_indexes
from kb.models import Document
from tests.interleaving import until

MODEL = "hashing"

CHUNKS = """
INSERT INTO kb_chunk (knowledge_base_id, document_id, position, text, heading_path, enabled, content_hash, token_count, updated_at)
SELECT %s, %s, n, '', '{}', true, '', 0, now() FROM generate_series(0, %s - 1) n ORDER BY n RETURNING id
"""
VECTORS = """
INSERT INTO kb_chunkembedding (chunk_id, knowledge_base_id, kind, model, ordinal, vector, enabled)
SELECT chunk_id, %s, %s, %s, %s, vector::halfvec, true
FROM unnest(%s::bigint[], %s::text[]) AS given (chunk_id, vector)
"""


def add_chunks(kb, count):
    """The ids of so many new chunks without text, postings or vectors."""
    document = Document.objects.create(knowledge_base=kb, sha256=hash_content(f"{kb.pk}:{Document.objects.count()}"))
    with connection.cursor() as cursor:
        cursor.execute(CHUNKS, [kb.pk, document.pk, count])
        return [chunk_id for (chunk_id,) in cursor.fetchall()]


def add_vectors(kb, chunk_ids, vectors, *, kind="content", model=MODEL, ordinal=0):
    with connection.cursor() as cursor:
        given = [HalfVector(vector).to_text() for vector in vectors]
        cursor.execute(VECTORS, [kb.pk, kind, model, ordinal, chunk_ids, given])


@contextmanager
def build_under_way(kb):
    """The index of a knowledge base is being built in another thread, which waits for a writer until the block ends."""

    def build():
        try:
            maintain_vector_indexes(kb.pk)
        finally:
            connections.close_all()

    builder = threading.Thread(target=build)
    with own_session() as writer, writer.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE kb_chunkembedding IN ROW EXCLUSIVE MODE")
        try:
            builder.start()
            until(builds_under_way)
            yield
        finally:
            cursor.execute("COMMIT")
            builder.join()


def unit(vectors):
    vectors = np.asarray(vectors, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def clustered(count, *, clusters=50, dimension=64, seed=1):
    """Unit vectors around so many centres, shape (count, dimension)."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((clusters, dimension))
    return unit(centres[random.integers(clusters, size=count)] + 0.5 * random.standard_normal((count, dimension)))
