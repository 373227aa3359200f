"""What is there of the indexes of a knowledge base, for its page."""

from typing import Any

from django.conf import settings

from kb.access.models import KnowledgeBase
from kb.content.models import Chunk
from kb.index.models import ChunkEmbedding, VectorIndex
from kb.index.services.reindex import IndexState, index_state, with_base
from kb.index.vector_index import SHARE_TO_KEEP, builds_under_way, spaces_without_index


def keyword_index(kb: KnowledgeBase) -> tuple[IndexState, int]:
    """The state of its keyword index, and how many chunks have changed since it was built."""
    row = with_base(KnowledgeBase.objects.filter(pk=kb.pk)).get()
    return index_state(row, has_chunks=Chunk.objects.filter(knowledge_base=kb).exists()), row.changes


def vector_index(kb: KnowledgeBase) -> dict[str, Any]:
    """What the index over the vectors of the content finds, and what is missing; few vectors need none."""
    enough = int(SHARE_TO_KEEP * settings.VECTOR_INDEX_MIN_ROWS) + 1
    if Chunk.objects.filter(knowledge_base=kb).order_by()[:enough].count() < enough:
        return {}
    measured = VectorIndex.objects.filter(knowledge_base=kb.pk, model=kb.embedding_model)
    row = measured.filter(kind=ChunkEmbedding.Kind.CONTENT).first()
    due = spaces_without_index(kb.pk)
    under_way = builds_under_way() if due else {}
    return {
        "vector_index": row
        and {
            "row": row,
            "recall": f"{row.recall:.3f}",
            "target": settings.VECTOR_RECALL_TARGET,
            "is_low": row.is_used and row.recall < settings.VECTOR_RECALL_TARGET,
            "is_exact": not row.is_used,
        },
        "due_index": due
        and {
            "vectors": sum(space.vectors for space in due),
            "done": sum(min(under_way.get(space.index_name, 0), space.vectors) for space in due),
            "is_being_built": any(space.index_name in under_way for space in due),
        },
    }
