"""Changes a chunk, by a curator's hand or on advice, and what the indexes hold of it."""

import copy
from collections.abc import Callable, Sequence

from django.db import transaction

from kb.base.db.row_locks import lock_knowledge_bases
from kb.content.models.documents import Chunk
from kb.index.preparing import replace_postings, replace_vectors
from kb.index.services.writing import writing_chunks
from kb.ingest.chunkers.drafts import hash_content
from kb.ingest.services.chunk_work.bulk import chunks_set_enabled
from kb.ingest.services.chunk_work.checks import check_chunk, entries, prepared_chunks, require_there, unchanged_chunk
from kb.providers.loaded import embedder


def chunk_update(
    chunk: Chunk,
    *,
    text: str,
    enabled: bool,
    questions: Sequence[str] | None = None,
    keywords: Sequence[str] | None = None,
    require: Callable[[Chunk], None] = lambda _chunk: None,
) -> None:
    """Changes a chunk and what the indexes hold of it.

    Args:
        chunk: read with its document and knowledge base.
        text: the new one.
        enabled: whether searches find it.
        questions: which it answers; None: those it has.
        keywords: that it is to be found by; none: they are extracted from its text again; None: those it has.
        require: raises where the chunk, which is locked, is not as the caller wants it to be before the change.

    Raises:
        Rejected: the text is blank, something is too long, the model is out of reach, or somebody changed the chunk or the
            document's title meanwhile; nothing was changed.
        Superseded: the knowledge base moved to another model meanwhile; nothing was changed.
        NotVisible: the chunk was deleted or replaced meanwhile.
    """
    wanted = _changed(chunk, text, questions, keywords)
    if not _is_indexed_anew(chunk, wanted):
        with transaction.atomic():
            lock_knowledge_bases([chunk.knowledge_base_id])
            require(require_there(chunk))
            chunks_set_enabled(chunk_ids=[chunk.pk], enabled=enabled)
        return
    _write_anew(chunk, wanted, enabled=enabled, require=require)


def chunk_reindex(chunk: Chunk) -> None:
    """Makes anew what the indexes hold of a chunk, which stays as it is.

    Raises:
        Rejected, Superseded, NotVisible: as `chunk_update`.
    """
    _write_anew(chunk, copy.copy(chunk), enabled=chunk.enabled)


def _write_anew(
    chunk: Chunk, wanted: Chunk, *, enabled: bool, require: Callable[[Chunk], None] = lambda _chunk: None
) -> None:
    model = embedder(chunk.knowledge_base.embedding_model)
    [prepared] = prepared_chunks(chunk.knowledge_base, [wanted])
    with writing_chunks(chunk.knowledge_base):
        locked = unchanged_chunk(chunk)
        require(locked)
        if wanted.text != locked.text:
            cut = locked.cut_text or locked.text
            locked.text, locked.cut_text = wanted.text, "" if wanted.text == cut else cut
        locked.questions, locked.own_questions = wanted.questions, wanted.own_questions
        locked.keywords, locked.own_keywords = wanted.keywords, wanted.own_keywords
        locked.enabled = enabled
        locked.content_hash, locked.token_count = hash_content(locked.text), model.count_tokens(locked.text)
        locked.save()
        replace_postings([(locked, prepared.postings)])
        replace_vectors([(locked, prepared)], model.model_id)


def _changed(chunk: Chunk, text: str, questions: Sequence[str] | None, keywords: Sequence[str] | None) -> Chunk:
    """The chunk as it is to be; nothing is written.

    Raises:
        Rejected: it cannot be so.
    """
    wanted = copy.copy(chunk)
    wanted.text = text
    if questions is not None and (asked := entries(questions)) != chunk.questions:
        wanted.questions, wanted.own_questions = asked, True
    if keywords is not None and (words := entries(keywords)) != chunk.keywords:
        wanted.keywords, wanted.own_keywords = words, bool(words)
    check_chunk(wanted)
    return wanted


def _is_indexed_anew(chunk: Chunk, wanted: Chunk) -> bool:
    names = ("text", "questions", "own_questions", "keywords", "own_keywords")
    return any(getattr(chunk, name) != getattr(wanted, name) for name in names)
