"""Rebuilds what is derived from chunks, beside what searches go on using, and swaps at the end."""

from collections.abc import Callable, Iterator

from django.db import transaction
from django.db.models import Exists, OuterRef

from kb.conf import embedder, tokenizer
from kb.ingest.index import embed, searchable_text, tokenize, write_postings, write_vectors
from kb.models import Chunk, ChunkEmbedding, ChunkPostings, KnowledgeBase
from kb.services.errors import Rejected
from kb.services.profiles import starting_profile
from kb.services.writing import holding_model, unchanged
from kb.stores.bm25 import BM25Store

BATCH = 256


def reindex_postings(
    kb: KnowledgeBase, *, resume: bool = False, on_progress: Callable[[int], None] = lambda _: None
) -> None:
    """Tokenises every chunk anew and drops the postings of other tokenizers.

    Args:
        kb: the knowledge base.
        resume: keep what this tokenizer has made already, so that an interrupted run goes on.
        on_progress: told how many further chunks are done.

    Raises:
        Rejected: the tokenizer's packages are missing.
    """
    cutter = tokenizer()
    if cutter is None:
        raise Rejected("bm25_dependencies_missing", "rank-bm25 or jieba is not installed: pip install rank-bm25 jieba")
    done = ChunkPostings.objects.filter(knowledge_base=kb, tokenizer_id=cutter.id) if resume else None
    for batch in _batches(kb, set(done.values_list("chunk_id", flat=True)) if done is not None else set()):
        pairs = zip(batch, tokenize([_text(chunk) for chunk in batch], cutter), strict=True)
        with holding_model(kb):
            write_postings(unchanged(pairs), cutter.id)
        on_progress(len(batch))
    with holding_model(kb):
        KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizer_id=cutter.id)
        ChunkPostings.objects.filter(knowledge_base=kb).exclude(tokenizer_id=cutter.id).delete()
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
    finished = _with_vector(kb, model.model_id) if resume else set()
    if not resume and model.model_id != kb.embedding_model:
        ChunkEmbedding.objects.filter(knowledge_base=kb, model=model.model_id).delete()
    while True:
        for batch in _batches(kb, finished):
            vectors = embed([_text(chunk) for chunk in batch], model)
            with holding_model(kb):
                write_vectors(unchanged(zip(batch, vectors, strict=True)), model.model_id)
            on_progress(len(batch))
        if _swap(kb, model.model_id, dimension):
            return
        finished = _with_vector(kb, model.model_id)


def _swap(kb: KnowledgeBase, model_id: str, dimension: int) -> bool:
    """Moves the knowledge base to a model if every chunk has its vector; chunks written meanwhile are embedded first."""
    with transaction.atomic():
        locked = KnowledgeBase.objects.select_for_update(no_key=True).select_related("profile").get(pk=kb.pk)
        embedded = ChunkEmbedding.objects.filter(chunk=OuterRef("pk"), model=model_id, kind=ChunkEmbedding.Kind.CONTENT)
        if Chunk.objects.filter(~Exists(embedded), knowledge_base=kb).exists():
            return False
        if locked.profile.name == starting_profile(locked.embedding_model).name:
            locked.profile = starting_profile(model_id)
        locked.embedding_model, locked.dimension, locked.target_embedding_model = model_id, dimension, ""
        locked.save()
        ChunkEmbedding.objects.filter(knowledge_base=kb).exclude(model=model_id).delete()
    return True


def _with_vector(kb: KnowledgeBase, model_id: str) -> set[int]:
    rows = ChunkEmbedding.objects.filter(knowledge_base=kb, model=model_id, kind=ChunkEmbedding.Kind.CONTENT)
    return set(rows.values_list("chunk_id", flat=True))


def _batches(kb: KnowledgeBase, without: set[int]) -> Iterator[list[Chunk]]:
    """Chunks by id, read in pieces, less those that are done."""
    last = 0
    while True:
        page = list(
            Chunk.objects.filter(knowledge_base=kb, pk__gt=last).select_related("document").order_by("pk")[:BATCH]
        )
        if not page:
            return
        last = page[-1].pk
        if batch := [chunk for chunk in page if chunk.pk not in without]:
            yield batch


def _text(chunk: Chunk) -> str:
    return searchable_text(chunk.document.title, chunk.heading_path, chunk.text)
