import numpy as np
import pytest
from pgvector import HalfVector

from kb.base.db.transactions import vector_text
from kb.index.services.writing import copy_rows
from kb.models import Chunk, ChunkEmbedding, ChunkPostings, Document
from tests.factories import make_document, make_kb


def test_every_number_of_half_precision_survives_its_text():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    read = np.array(vector_text(finite)[1:-1].split(","), dtype=np.float32).astype(np.float16)
    assert np.array_equal(read, finite)


@pytest.mark.django_db
def test_rows_are_copied_as_an_insert_writes_them():
    kb = make_kb()
    document = Document(
        knowledge_base=kb, title="甲\t\\N", source="a", sha256="1", metadata={"k": ["\n", None]}, tags=["x,y", '"']
    )
    copy_rows(Document, [document])
    chunk = Chunk(knowledge_base=kb, document=document, position=0, text="a\nb\\", heading_path=["h"], content_hash="c")
    copy_rows(Chunk, [chunk])
    lexemes = ["it's", "\\", "词 语", "~a"]
    copy_rows(
        ChunkPostings,
        [
            ChunkPostings(
                chunk=chunk,
                knowledge_base=kb,
                tokenizer_id="t",
                terms=b"\0\1",
                frequencies=b"",
                length=1,
                lexemes=lexemes,
            )
        ],
    )
    vector = np.array([0.25, -1, 0], dtype=np.float32)
    row = ChunkEmbedding(chunk=chunk, knowledge_base=kb, model="m", vector=HalfVector(vector))
    copy_rows(ChunkEmbedding, [row], {"vector": lambda value: vector_text(value.to_numpy())})

    stored = Document.objects.get(pk=document.pk)
    assert (stored.title, stored.metadata, stored.tags) == (document.title, document.metadata, document.tags)
    assert stored.created_at is not None
    [read] = stored.chunks.all()
    assert (read.text, read.heading_path, read.cut_text, read.keywords, read.enabled) == ("a\nb\\", ["h"], "", [], True)
    postings = read.postings.get()
    assert sorted(postings.lexemes) == sorted(lexemes)
    assert bytes(postings.terms) == b"\0\1"
    assert read.embeddings.get().vector == vector.tolist()


@pytest.mark.django_db
def test_copied_chunks_take_a_new_version_as_inserted_ones_do():
    kb = make_kb()
    before = kb.version_row.version
    make_document(kb, "text")
    kb.version_row.refresh_from_db()
    assert kb.version_row.version > before
