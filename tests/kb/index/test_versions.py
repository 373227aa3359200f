"""The database moves the version, whoever writes."""

import pytest
from django.db import connection, transaction

from kb.content.services import knowledge_base_delete
from kb.models import Chunk, ChunkChange, ChunkEmbedding, ChunkPostings, Document, KnowledgeBase, KnowledgeBaseVersion
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db


def version(kb):
    return KnowledgeBaseVersion.objects.get(pk=kb.pk).version


def sql(statement, *values):
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def changes_after(kb, older):
    """What the log says since a version: its entries' versions, and (operation, chunk) in the order written."""
    found = ChunkChange.objects.filter(knowledge_base_id=kb.pk, version__gt=older).order_by("pk")
    return {each.version for each in found}, [(each.operation, each.chunk_id) for each in found]


def second_set_of_postings(kb):
    """What a move to another tokenizer writes beside the active postings."""
    rows = list(ChunkPostings.objects.filter(knowledge_base=kb))
    for row in rows:
        row.pk, row.tokenizer_id = None, "another"
    return ChunkPostings.objects.bulk_create(rows)


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


def test_postings_of_a_tokenizer_that_is_not_active_move_no_version_and_log_nothing():
    kb = make_kb()
    make_document(kb, "one", "two")
    before = version(kb)
    second_set_of_postings(kb)
    inactive = ChunkPostings.objects.filter(tokenizer_id="another")
    inactive.update(length=7)
    inactive.delete()
    assert version(kb) == before
    assert changes_after(kb, before) == (set(), [])


def test_postings_that_turn_into_the_active_ones_are_a_change():
    kb = make_kb()
    make_document(kb, "one")
    ChunkPostings.objects.update(tokenizer_id="another")
    before = version(kb)
    ChunkPostings.objects.update(tokenizer_id=kb.tokenizer_id)
    assert changes_after(kb, before) == ({version(kb)}, [("write", Chunk.objects.get().pk)])


def test_another_tokenizer_takes_a_version_and_ends_the_log_of_its_base_only():
    kb, other = make_kb(), make_kb()
    before, other_before = version(kb), version(other)
    KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizer_id="another")
    assert changes_after(kb, before) == ({version(kb)}, [("reset", None)])
    assert version(kb) > before
    assert version(other) == other_before


def test_other_changes_of_a_knowledge_base_move_no_version():
    kb = make_kb()
    before = version(kb)
    KnowledgeBase.objects.filter(pk=kb.pk).update(
        name="renamed", target_tokenizer_id="another", tokenizer_id=kb.tokenizer_id
    )
    assert version(kb) == before
    assert changes_after(kb, 0) == (set(), [])


LOGGED = {
    "disable": (lambda chunks: chunks.update(enabled=False), "write"),
    "new postings": (lambda chunks: ChunkPostings.objects.filter(chunk__in=chunks).update(length=1), "write"),
    "no postings": (lambda chunks: ChunkPostings.objects.filter(chunk__in=chunks).delete(), "delete"),
    "delete": (lambda chunks: chunks.delete(), "delete"),
    "raw delete": (lambda chunks: chunks._raw_delete("default"), "delete"),
}


@pytest.mark.parametrize(("write", "operation"), LOGGED.values(), ids=LOGGED.keys())
def test_the_log_names_each_changed_chunk_once_under_the_version_of_the_statement(write, operation):
    kb = make_kb()
    make_document(kb, "one", "two", "three")
    chunks = Chunk.objects.filter(position__lt=2)
    ids = set(chunks.values_list("pk", flat=True))
    before = version(kb)
    write(chunks)
    versions, changes = changes_after(kb, before)
    assert versions == {version(kb)}
    assert sorted(changes) == sorted((operation, pk) for pk in ids)


@pytest.mark.parametrize("fields", [{"page": 3}, {"enabled": True}])
def test_an_update_that_no_keyword_index_shows_is_not_logged(fields):
    kb = make_kb()
    make_document(kb, "one")
    before = version(kb)
    Chunk.objects.update(**fields)
    assert version(kb) > before
    assert changes_after(kb, before) == (set(), [])


def test_a_chunk_moved_between_bases_is_logged_in_both():
    kb, other = make_kb(), make_kb()
    make_document(kb, "one")
    chunk = Chunk.objects.get()
    before, other_before = version(kb), version(other)
    sql("UPDATE kb_chunk SET knowledge_base_id = %s", other.pk)
    assert changes_after(kb, before) == ({version(kb)}, [("write", chunk.pk)])
    assert changes_after(other, other_before) == ({version(other)}, [("write", chunk.pk)])


def test_a_chunk_switched_off_while_it_moves_is_logged_once_in_each_base():
    kb, other = make_kb(), make_kb()
    make_document(kb, "one")
    before, other_before = version(kb), version(other)
    sql("UPDATE kb_chunk SET knowledge_base_id = %s, enabled = false", other.pk)
    chunk = Chunk.objects.get()
    assert changes_after(kb, before)[1] == changes_after(other, other_before)[1] == [("write", chunk.pk)]


def test_a_session_that_has_switched_one_chunk_switches_many():
    kb = make_kb()
    make_document(kb, *[f"text {n}" for n in range(300)])
    first = Chunk.objects.order_by("pk").first()
    Chunk.objects.filter(pk=first.pk).update(enabled=False)
    before = version(kb)
    Chunk.objects.update(enabled=False)
    others = Chunk.objects.exclude(pk=first.pk).values_list("pk", flat=True)
    assert sorted(changes_after(kb, before)[1]) == [("write", pk) for pk in sorted(others)]
    assert not ChunkEmbedding.objects.filter(enabled=True).exists()


def test_a_session_that_has_switched_many_chunks_switches_one():
    kb = make_kb()
    make_document(kb, *[f"text {n}" for n in range(300)])
    Chunk.objects.update(enabled=False)
    before = version(kb)
    first = Chunk.objects.order_by("pk").first()
    Chunk.objects.filter(pk=first.pk).update(enabled=True)
    assert changes_after(kb, before) == ({version(kb)}, [("write", first.pk)])
    assert ChunkEmbedding.objects.get(enabled=True).chunk_id == first.pk


def test_one_statement_ends_the_logs_of_those_bases_whose_tokenizer_it_changes():
    moved, other, there_already = make_kb(), make_kb(), make_kb()
    KnowledgeBase.objects.filter(pk=there_already.pk).update(tokenizer_id="another")
    before = {kb.pk: version(kb) for kb in (moved, other, there_already)}
    KnowledgeBase.objects.update(tokenizer_id="another")
    logged = {kb.pk: changes_after(kb, before[kb.pk])[1] for kb in (moved, other, there_already)}
    assert logged == {moved.pk: [("reset", None)], other.pk: [("reset", None)], there_already.pk: []}


def test_a_rollback_takes_its_log_entries_back():
    kb = make_kb()
    make_document(kb, "one")
    before = changes_after(kb, 0)
    with transaction.atomic():
        Chunk.objects.update(enabled=False)
        transaction.set_rollback(True)
    assert changes_after(kb, 0) == before


@pytest.mark.parametrize("delete", [knowledge_base_delete, lambda kb: kb.delete()], ids=["service", "cascade"])
def test_a_deleted_base_leaves_no_log(delete):
    kb, other = make_kb(), make_kb()
    for each in (kb, other):
        make_document(each, "one", "two")
    delete(kb)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # as at the commit
    assert set(ChunkChange.objects.values_list("knowledge_base_id", flat=True)) == {other.pk}
