"""Writes chunks with what makes them searchable. Models run before a transaction, never inside one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from kb.models import Chunk, ChunkEmbedding, ChunkPostings
from kb.models.lexemes import NGRAM_PREFIX
from retrieval.lexical import ngrams
from retrieval.postings import Postings, count_postings
from retrieval.protocols import Embedder, Tokenizer

EMBED_BATCH = 64
ROWS_A_STATEMENT = 500


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the indexes hold of a chunk.

    Attributes:
        postings: by tokenizer id; empty where the tokenizer's packages are missing.
        vector: shape (dimension,).
    """

    postings: Mapping[str, Postings]
    vector: NDArray[np.float32]


def searchable_text(title: str, heading_path: Sequence[str], text: str) -> str:
    """The text that both channels index: a chunk in its context, as a reader would meet it."""
    return "\n".join(part for part in (title, " > ".join(heading_path), text) if part)


def tokenize(texts: Sequence[str], tokenizers: Sequence[Tokenizer]) -> list[dict[str, Postings]]:
    """The postings of each text by tokenizer id, with lexemes for full-text search: tokens first, then n-grams."""
    return [_postings_by_tokenizer(text, tokenizers) for text in texts]


def _postings_by_tokenizer(text: str, tokenizers: Sequence[Tokenizer]) -> dict[str, Postings]:
    grams = tuple(NGRAM_PREFIX + gram for gram in ngrams(text)) if tokenizers else ()
    cut = {cutter.id: cutter(text) for cutter in tokenizers}
    return {
        tokenizer_id: replace(count_postings(tokens), lexemes=(*dict.fromkeys(tokens), *grams))
        for tokenizer_id, tokens in cut.items()
    }


def embed(
    texts: Sequence[str], embedder: Embedder, on_batch: Callable[[int], None] = lambda _: None
) -> NDArray[np.float32]:
    """Embeds in batches.

    Args:
        texts: the documents.
        embedder: the model.
        on_batch: told how many texts are done, after each batch.

    Returns:
        Shape (len(texts), dimension).
    """
    batches = []
    for start in range(0, len(texts), EMBED_BATCH):
        batches.append(embedder.embed_documents(texts[start : start + EMBED_BATCH]))
        on_batch(min(start + EMBED_BATCH, len(texts)))
    return np.concatenate(batches) if batches else np.empty((0, embedder.dimension), dtype=np.float32)


def write_chunks(chunks: Sequence[Chunk], prepared: Sequence[Prepared], *, model_id: str) -> None:
    """Inserts chunks, postings and vectors; belongs inside the caller's transaction."""
    created = Chunk.objects.bulk_create(chunks, batch_size=ROWS_A_STATEMENT)
    pairs = list(zip(created, prepared, strict=True))
    write_postings((chunk, each.postings) for chunk, each in pairs)
    write_vectors(((chunk, each.vector) for chunk, each in pairs), model_id)


def replace_postings(pairs: Iterable[tuple[Chunk, Mapping[str, Postings]]]) -> None:
    """Writes the postings of chunks whose text has changed; what other tokenizers made of the old text goes."""
    pairs = list(pairs)
    stale = ChunkPostings.objects.filter(chunk__in=[chunk.pk for chunk, _ in pairs])
    stale.exclude(tokenizer_id__in={tokenizer_id for _, postings in pairs for tokenizer_id in postings}).delete()
    write_postings(pairs)


def write_postings(pairs: Iterable[tuple[Chunk, Mapping[str, Postings]]]) -> None:
    """Inserts the postings of chunks, or replaces those that the same tokenizers made before."""
    rows = [
        ChunkPostings(
            chunk=chunk,
            knowledge_base_id=chunk.knowledge_base_id,
            tokenizer_id=tokenizer_id,
            terms=postings.terms_bytes,
            frequencies=postings.frequencies_bytes,
            length=postings.length,
            lexemes=postings.lexemes,
        )
        for chunk, by_tokenizer in pairs
        for tokenizer_id, postings in by_tokenizer.items()
    ]
    ChunkPostings.objects.bulk_create(
        rows,
        batch_size=ROWS_A_STATEMENT,
        update_conflicts=True,
        unique_fields=["chunk", "tokenizer_id"],
        update_fields=["terms", "frequencies", "length", "lexemes"],
    )


def write_vectors(pairs: Iterable[tuple[Chunk, NDArray[np.float32]]], model_id: str) -> None:
    """Inserts the content vectors of chunks, or replaces those of the same model."""
    rows = [
        ChunkEmbedding(
            chunk=chunk,
            knowledge_base_id=chunk.knowledge_base_id,
            kind=ChunkEmbedding.Kind.CONTENT,
            model=model_id,
            vector=HalfVector(vector),
            enabled=chunk.enabled,
        )
        for chunk, vector in pairs
    ]
    ChunkEmbedding.objects.bulk_create(
        rows,
        batch_size=ROWS_A_STATEMENT,
        update_conflicts=True,
        unique_fields=["chunk", "kind", "model", "ordinal"],
        update_fields=["vector", "enabled"],
    )
