"""What the database holds of a document's chunks."""

from kb.models import Chunk, ChunkEmbedding, ChunkPostings


def chunks_of(document):
    rows = Chunk.objects.select_related("document__knowledge_base", "knowledge_base")
    return list(rows.filter(document=document).order_by("position"))


def texts_of(document):
    return [chunk.text for chunk in chunks_of(document)]


def is_indexed(chunk):
    """Whether every index holds the chunk as it is."""
    from kb.index.services.writing import searchable_text_of, tokenize, tokenizers_of
    from kb.providers.embedding_models import embedder

    text, kb = searchable_text_of(chunk), chunk.knowledge_base
    [wanted] = tokenize([text], tokenizers_of(kb))
    held = {row.tokenizer_id: bytes(row.terms) for row in ChunkPostings.objects.filter(chunk=chunk)}
    vectors = ChunkEmbedding.objects.filter(chunk=chunk, kind="content", enabled=chunk.enabled)
    [vector] = embedder(kb.embedding_model).embed_documents([text])
    near = [max(abs(a - b) for a, b in zip(row.vector, vector, strict=True)) < 0.01 for row in vectors]
    return held == {key: bytes(postings.terms_bytes) for key, postings in wanted.items()} and near == [True]
