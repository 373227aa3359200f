"""What stands above the form of a knowledge base: figures, state, and the ways to its pages."""

from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _

from kb.index.admin.keyword_cache import index_state_in_words
from kb.index.admin.stores import stores_url
from kb.index.admin.tokenizer import tokenizer_in_words, tokenizer_url
from kb.index.models.index import ChunkEmbedding, VectorIndex
from kb.index.services.keyword_cache import IndexState, index_state
from kb.index.vector_index import SHARE_TO_KEEP, builds_under_way, spaces_without_index
from kb.ingest.admin.chunk_preview import chunk_preview_url, outdated_count, recut_url
from kb.providers.embedding_models import recommended_embedding_model
from retrieval.embedders.hashing import HASHING_MODEL_ID


def panel_of(kb: Any) -> dict[str, Any]:
    """The context of ingest/knowledge_base_panel.html.

    Args:
        kb: with the counts of the list, and its index's state.
    """
    return {
        "kb": kb,
        "index_state": index_state_in_words(state_of_index(kb), kb.changes),
        "tokenizer": tokenizer_in_words(kb.tokenizer_id),
        "tokenizer_url": tokenizer_url(kb),
        "stores_url": stores_url(kb),
        "outdated": outdated_count(kb),
        "chunk_preview_url": chunk_preview_url(kb),
        "recut_url": recut_url(kb),
        "is_hashing": kb.embedding_model == HASHING_MODEL_ID,
        "profile_description": _(kb.profile.description) if kb.profile.description else "",
        "vector_index": _measured_index(kb),
        "due_index": _due_index(kb),
        "recommended_model": recommended_embedding_model(kb.language),
    }


def _due_index(kb: Any) -> dict[str, Any] | None:
    """What is known of an index that is missing; None where none is due."""
    if kb.chunk_count <= SHARE_TO_KEEP * settings.VECTOR_INDEX_MIN_ROWS:
        return None
    due = spaces_without_index(kb.pk)
    if not due:
        return None
    under_way = builds_under_way()
    done = sum(min(under_way.get(space.index_name, 0), space.vectors) for space in due)
    return {
        "vectors": sum(space.vectors for space in due),
        "done": done,
        "is_being_built": any(space.index_name in under_way for space in due),
    }


def _measured_index(kb: Any) -> dict[str, Any] | None:
    """What the index over the vectors of the content finds; None where it was not measured, as few vectors need none."""
    if kb.chunk_count <= SHARE_TO_KEEP * settings.VECTOR_INDEX_MIN_ROWS:
        return None
    row = VectorIndex.objects.filter(
        knowledge_base=kb.pk, model=kb.embedding_model, kind=ChunkEmbedding.Kind.CONTENT
    ).first()
    if row is None:
        return None
    is_low = row.recall < settings.VECTOR_RECALL_TARGET
    return {
        "row": row,
        "recall": f"{row.recall:.3f}",
        "target": settings.VECTOR_RECALL_TARGET,
        "is_low": is_low and row.is_used,
        "is_exact": not row.is_used,
    }


def state_of_index(kb: Any) -> IndexState:
    """The state of a row of the list."""
    return index_state(kb, has_chunks=bool(kb.chunk_count))
