"""Writes chunks in place of others of their document, as merging and splitting do."""

from collections.abc import Sequence

from django.db.models import F

from kb.content.models.documents import Chunk, Document
from kb.content.signals import chunks_replacing
from kb.index.preparing import replace_postings, replace_vectors, write_chunks
from kb.index.services.writing import writing_chunks
from kb.ingest.chunkers.drafts import hash_content
from kb.ingest.services.chunk_work.checks import changed_meanwhile, check_chunk, prepared_chunks, unchanged_chunks
from kb.providers.loaded import embedder

WRITTEN = (
    "text",
    "cut_text",
    "own_cut",
    "keywords",
    "questions",
    "own_keywords",
    "own_questions",
    "enabled",
    "position",
    "content_hash",
    "token_count",
    "updated_at",
)


def replace_chunks(document: Document, before: Sequence[Chunk], after: Sequence[Chunk]) -> None:
    """Writes neighbours anew; the first keeps its row, and the facts that were taken from the others.

    Args:
        document: theirs, with its knowledge base.
        before: as they were read, in their order, without one between them.
        after: what takes their place, in its order; the first is a copy of the first one before, the others are new.

    Raises:
        Rejected: one of them cannot be so, the model is out of reach, or somebody was faster; nothing was changed.
        NotVisible: one of those before is gone.
        Superseded: the knowledge base moved to another model meanwhile.
    """
    kb, (kept, *new) = document.knowledge_base, after
    model = embedder(kb.embedding_model)
    for chunk in after:
        check_chunk(chunk)
        chunk.document, chunk.knowledge_base = document, kb
        chunk.content_hash = hash_content(chunk.text)
    of_kept, *of_new = prepared_chunks(kb, after)
    for chunk in after:
        chunk.token_count = model.count_tokens(chunk.text)
    with writing_chunks(kb):
        unchanged_chunks(document, before)
        _require_neighbours(document, before)
        gone = [chunk.pk for chunk in before[1:]]
        chunks_replacing.send(Chunk, kept=kept, gone=gone)
        Chunk.objects.filter(pk__in=gone).delete()
        first, last = before[0].position, before[-1].position
        for position, chunk in enumerate(after, start=first):
            chunk.position = position
        following = Chunk.objects.filter(document=document, position__gt=last)
        following.update(position=F("position") + first + len(after) - 1 - last)
        kept.save(update_fields=WRITTEN)
        replace_postings([(kept, of_kept.postings)])
        replace_vectors([(kept, of_kept)], model.model_id)
        write_chunks(new, of_new, model_id=model.model_id)


def _require_neighbours(document: Document, chunks: Sequence[Chunk]) -> None:
    between = Chunk.objects.filter(document=document, position__range=(chunks[0].position, chunks[-1].position))
    if between.count() != len(chunks):
        raise changed_meanwhile()
