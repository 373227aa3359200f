"""The database moves the version, whoever writes."""

import pytest
from django.db import connection, transaction

from kb.models import Chunk, ChunkEmbedding, ChunkPostings, Document, KnowledgeBaseVersion
from kb.services.knowledge_bases import knowledge_base_delete
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db


def version(kb):
    return KnowledgeBaseVersion.objects.get(pk=kb.pk).version


def sql(statement, *values):
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


WRITES = {
    "queryset update": lambda kb: Chunk.objects.filter(knowledge_base=kb).update(text="new"),
    "raw update": lambda kb: sql("UPDATE kb_chunk SET text = 'raw' WHERE knowledge_base_id = %s", kb.pk),
    "raw delete": lambda kb: sql("DELETE FROM kb_chunk WHERE knowledge_base_id = %s", kb.pk),
    "document cascade": lambda kb: Document.objects.filter(knowledge_base=kb).delete(),
    "bulk create": lambda kb: Chunk.objects.bulk_create(
        [Chunk(knowledge_base=kb, document=kb.documents.get(), position=9, text="x", content_hash="x")]
    ),
    "postings update": lambda kb: ChunkPostings.objects.filter(knowledge_base=kb).update(length=1),
    "postings delete": lambda kb: ChunkPostings.objects.filter(knowledge_base=kb).delete(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_every_writer_moves_the_version_of_its_base_only(write):
    kb, other = make_kb(), make_kb()
    make_document(kb, "some text")
    make_document(other, "other text")
    before, other_before = version(kb), version(other)
    write(kb)
    assert version(kb) > before
    assert version(other) == other_before


def test_one_statement_over_several_bases_moves_them_all():
    bases = [make_kb(), make_kb()]
    for kb in bases:
        make_document(kb, "some text")
    before = [version(kb) for kb in bases]
    Chunk.objects.update(text="all")
    assert all(version(kb) > old for kb, old in zip(bases, before, strict=True))


def test_a_rolled_back_version_is_never_used_again():
    kb = make_kb()
    make_document(kb, "some text")
    lost = None
    with transaction.atomic():
        Chunk.objects.update(text="rolled back")
        lost = version(kb)
        transaction.set_rollback(True)
    Chunk.objects.update(text="kept")
    assert version(kb) > lost


def test_saving_a_stale_form_puts_no_old_version_back():
    kb = make_kb()
    make_document(kb, "some text")
    moved = version(kb)
    kb.description = "read before the document came"
    kb.save()
    assert version(kb) == moved


def test_vectors_follow_their_chunk_in_and_out():
    kb = make_kb()
    make_document(kb, "one", "two")
    first = Chunk.objects.first()
    Chunk.objects.filter(pk=first.pk).update(enabled=False)
    assert set(ChunkEmbedding.objects.filter(enabled=False).values_list("chunk_id", flat=True)) == {first.pk}
    Chunk.objects.filter(pk=first.pk).update(enabled=True)
    assert not ChunkEmbedding.objects.filter(enabled=False).exists()


def test_deleting_a_document_removes_chunks_postings_and_vectors_without_loading_chunks(django_assert_max_num_queries):
    kb = make_kb()
    document = make_document(kb, *[f"text {n}" for n in range(50)])
    with django_assert_max_num_queries(12):
        document.delete()
    assert not Chunk.objects.exists()
    assert not ChunkPostings.objects.exists()
    assert not ChunkEmbedding.objects.exists()


def test_deleting_a_knowledge_base_leaves_nothing(django_assert_max_num_queries):
    kb, other = make_kb(), make_kb()
    for n in range(20):
        make_document(kb, f"text {n}")
    make_document(other, "stays")
    with django_assert_max_num_queries(40):
        knowledge_base_delete(kb)
    assert set(Chunk.objects.values_list("knowledge_base_id", flat=True)) == {other.pk}
    assert set(ChunkEmbedding.objects.values_list("knowledge_base_id", flat=True)) == {other.pk}
    assert not KnowledgeBaseVersion.objects.filter(pk=kb.pk).exists()
