"""Rebuilds what is derived from chunks, beside what searches go on using, and swaps at the end."""

from collections.abc import Callable

from django.db import transaction

from kb.conf import tokenizer
from kb.ingest.index import prepare, replace_vectors
from kb.models import ChunkEmbedding, ChunkPostings, KnowledgeBase
from kb.providers import embedder
from kb.services.chunk_batches import any_chunk_without, chunk_batches, source_of
from kb.services.errors import Rejected
from kb.services.profiles import starting_profile
from kb.services.tokenizing import follow_to_target, lacks_postings, renewed_settings, tokenizer_change, write_tokens
from kb.services.writing import holding_model, keyword_language, unchanged
from kb.stores.bm25 import BM25Store
from kb.stores.fulltext import without_lexemes


def reindex_postings(
    kb: KnowledgeBase, *, resume: bool = False, on_progress: Callable[[int], None] = lambda _: None
) -> None:
    """Tokenises chunks anew: for the target tokenizer, for a newer version of the active one, or in place.

    On the way to a target a worker may do its share, since it is told of every target too.

    Args:
        kb: the knowledge base.
        resume: in place, keep what an interrupted run has made; the other two always do.
        on_progress: told how many further chunks are done.

    Raises:
        Rejected: the tokenizer's packages are missing.
    """
    cutter = tokenizer(kb.tokenizer_id)
    if cutter is None:
        raise Rejected("bm25_dependencies_missing", "rank-bm25 or jieba is not installed: pip install rank-bm25 jieba")
    if not kb.target_tokenizer_id and cutter.id != kb.tokenizer_id:
        tokenizer_change(kb, renewed_settings(kb, kb.tokenizer_id, cutter.id))
    if kb.target_tokenizer_id:
        follow_to_target(kb, on_progress=on_progress)
        return
    finished = _with_postings(kb, cutter.id) if resume else set()
    for batch in chunk_batches(kb, done=finished.intersection):
        write_tokens(kb, batch, cutter)
        on_progress(len(batch))
    KnowledgeBase.objects.filter(pk=kb.pk).update(lacks_postings=lacks_postings(kb, cutter.id))
    BM25Store().invalidate(kb.pk)


def reindex_embeddings(
    kb: KnowledgeBase,
    *,
    model_id: str = "",
    resume: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Embeds every chunk with a model; searches use the old vectors until the new ones are complete.

    Args:
        kb: the knowledge base.
        model_id: blank: the one in use.
        resume: keep the vectors of an interrupted run.
        on_progress: told how many further chunks are done.

    Raises:
        ModelUnavailable: the model cannot be loaded; nothing was changed.
    """
    model = embedder(model_id or kb.embedding_model)
    dimension = model.dimension  # loads the model, or says why not, before anything is changed
    KnowledgeBase.objects.filter(pk=kb.pk).update(target_embedding_model=model.model_id)
    finished = _with_vectors(kb, model.model_id) if resume else set()
    if not resume and model.model_id != kb.embedding_model:
        ChunkEmbedding.objects.filter(knowledge_base=kb, model=model.model_id).delete()
    while True:
        for batch in chunk_batches(kb, done=finished.intersection):
            sources = list(map(source_of, batch))
            prepared = prepare(sources, tokenizers=(), embedder=model, keyword_language=keyword_language(kb))
            with holding_model(kb):
                replace_vectors(unchanged(zip(batch, prepared, strict=True)), model.model_id)
            on_progress(len(batch))
        if _swap(kb, model.model_id, dimension):
            return
        finished = _with_vectors(kb, model.model_id)


def _swap(kb: KnowledgeBase, model_id: str, dimension: int) -> bool:
    """Moves the knowledge base to a model if every chunk has its vector; chunks written meanwhile are embedded first."""
    with transaction.atomic():
        locked = KnowledgeBase.objects.select_for_update(no_key=True).select_related("profile").get(pk=kb.pk)
        embedded = ChunkEmbedding.objects.filter(model=model_id, kind=ChunkEmbedding.Kind.CONTENT)
        if any_chunk_without(kb, embedded):
            return False
        if locked.profile.name == starting_profile(locked.embedding_model).name:
            locked.profile = starting_profile(model_id)
        locked.embedding_model, locked.dimension, locked.target_embedding_model = model_id, dimension, ""
        locked.save()
        ChunkEmbedding.objects.filter(knowledge_base=kb).exclude(model=model_id).delete()
    return True


def _with_postings(kb: KnowledgeBase, tokenizer_id: str) -> set[int]:
    """Chunks whose postings and lexemes are there."""
    rows = ChunkPostings.objects.filter(knowledge_base=kb, tokenizer_id=tokenizer_id)
    lacking = without_lexemes(rows).values_list("chunk_id", flat=True)
    return set(rows.values_list("chunk_id", flat=True)).difference(lacking)


def _with_vectors(kb: KnowledgeBase, model_id: str) -> set[int]:
    """Chunks that have a vector of each kind that the knowledge base keeps for all."""
    kinds = [ChunkEmbedding.Kind.CONTENT] + ([ChunkEmbedding.Kind.KEYWORDS] if kb.keyword_vectors else [])
    rows = ChunkEmbedding.objects.filter(knowledge_base=kb, model=model_id)
    return set.intersection(*(set(rows.filter(kind=kind).values_list("chunk_id", flat=True)) for kind in kinds))
