import pytest

from kb.base.errors import Rejected
from kb.ingest.services.chunks import chunks_change, chunks_delete, chunks_set_enabled
from kb.models import Chunk, ChunkEmbedding, ChunkPostings, KnowledgeBaseVersion
from tests.factories import make_document, make_kb
from tests.kb.ingest.services.chunk_work.rows import chunks_of, texts_of

pytestmark = pytest.mark.django_db


def version(kb):
    return KnowledgeBaseVersion.objects.get(pk=kb.pk).version


def test_many_chunks_are_switched_in_one_statement_whatever_their_number(kb, django_assert_num_queries):
    make_document(kb, *[f"第{number}条。" for number in range(50)])
    ids = list(Chunk.objects.values_list("pk", flat=True))
    before = version(kb)

    with django_assert_num_queries(4):  # savepoint, lock, update, release
        assert chunks_set_enabled(chunk_ids=ids, enabled=False) == 50

    assert not ChunkEmbedding.objects.filter(enabled=True).exists()
    assert version(kb) > before


def test_switching_what_is_so_already_makes_no_new_version(kb, document):
    before = version(kb)

    assert chunks_set_enabled(chunk_ids=[chunk.pk for chunk in chunks_of(document)], enabled=True) == 0

    assert version(kb) == before


def test_deleted_chunks_leave_nothing_and_the_others_move_up(document):
    first, second, _ = chunks_of(document)

    assert chunks_delete(chunk_ids=[first.pk, second.pk]) == 2

    assert [(chunk.text, chunk.position) for chunk in chunks_of(document)] == [("橙子是橙的。", 0)]
    assert (ChunkPostings.objects.count(), ChunkEmbedding.objects.count()) == (1, 1)


@pytest.mark.parametrize("action", ["enable", "disable", "delete"])
def test_chunks_of_another_knowledge_base_are_refused_and_nothing_is_changed(kb, document, action):
    foreign = chunks_of(make_document(make_kb(), "别的。"))[0]

    with pytest.raises(Rejected) as error:
        chunks_change(knowledge_base=kb, chunk_ids=[chunks_of(document)[0].pk, foreign.pk], action=action)

    assert error.value.code == "unknown_chunks"
    assert str(foreign.pk) in str(error.value)
    assert len(texts_of(document)) == 3
    assert not Chunk.objects.filter(enabled=False).exists()
