import numpy as np
from django.db.models.functions import Cast
from numpy.typing import NDArray
from pgvector import HalfVector
from pgvector.django import CosineDistance, HalfVectorField

from kb.models import ChunkEmbedding


class PgVectorStore:
    """Exact cosine search in PostgreSQL over the vectors of one knowledge base, model and kind."""

    def search(
        self, kb_id: int, model_id: str, vector: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        stored = Cast("vector", HalfVectorField(dimensions=len(vector)))
        rows = list(
            ChunkEmbedding.objects.filter(
                knowledge_base_id=kb_id, model=model_id, kind=ChunkEmbedding.Kind.CONTENT, enabled=True
            )
            .annotate(distance=CosineDistance(stored, HalfVector(vector)))
            .order_by("distance", "chunk_id")
            .values_list("chunk_id", "distance")[:k]
        )
        chunk_ids = np.array([chunk_id for chunk_id, _ in rows], dtype=np.int64)
        similarities = 1.0 - np.array([distance for _, distance in rows], dtype=np.float64)
        return chunk_ids, similarities
