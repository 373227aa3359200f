"""Vectors of chunks for tests, written without a model."""

import numpy as np
from pgvector import HalfVector

from kb.ingest.chunk import hash_content
from kb.models import Chunk, ChunkEmbedding, Document

MODEL = "hashing"


def add_chunks(kb, count):
    """The ids of so many new chunks without text, postings or vectors."""
    document = Document.objects.create(knowledge_base=kb, sha256=hash_content(f"{kb.pk}:{Document.objects.count()}"))
    chunks = [
        Chunk(knowledge_base=kb, document=document, position=position, text="", content_hash="")
        for position in range(count)
    ]
    return [chunk.pk for chunk in Chunk.objects.bulk_create(chunks)]


def add_vectors(kb, chunk_ids, vectors, *, kind="content", model=MODEL, ordinal=0, enabled=True):
    ChunkEmbedding.objects.bulk_create(
        ChunkEmbedding(
            chunk_id=chunk_id,
            knowledge_base=kb,
            kind=kind,
            model=model,
            ordinal=ordinal,
            vector=HalfVector(vector),
            enabled=enabled,
        )
        for chunk_id, vector in zip(chunk_ids, vectors, strict=True)
    )


def unit(vectors):
    vectors = np.asarray(vectors, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def clustered(count, *, clusters=50, dimension=64, seed=1):
    """Unit vectors around so many centres, shape (count, dimension)."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((clusters, dimension))
    return unit(centres[random.integers(clusters, size=count)] + 0.5 * random.standard_normal((count, dimension)))
