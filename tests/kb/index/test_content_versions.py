"""The database moves the content version, whoever writes."""

from datetime import UTC, datetime

import pytest
from django.db import connection
from pgvector import HalfVector

from kb.content.services import knowledge_base_delete
from kb.models import (
    Chunk,
    ChunkEmbedding,
    Concept,
    ConceptTerm,
    Document,
    GraphFact,
    KnowledgeBase,
    KnowledgeBaseVersion,
    RetrievalProfile,
)
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db


def version(kb):
    return KnowledgeBaseVersion.objects.get(pk=kb.pk).version


def content_version(kb):
    return KnowledgeBaseVersion.objects.get(pk=kb.pk).content_version


def sql(statement, *values):
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def check_constraints():
    """As at the commit."""
    sql("SET CONSTRAINTS ALL IMMEDIATE")


def with_content(kb):
    """A knowledge base with a row in every table whose changes move the content version."""
    document = make_document(kb, "some text", "another text")
    chunk = Chunk.objects.get(document=document, position=0)
    concept = Concept.objects.create(knowledge_base=kb, name="concept")
    document.concepts.add(concept)
    GraphFact.objects.create(knowledge_base=kb, subject="a", predicate="is", object="b", source_chunk=chunk)
    return kb


def another_chunk(kb):
    return kb.chunks.get(position=1)


def of_base(model):
    return lambda kb: model.objects.filter(knowledge_base=kb)


def concepts_of_documents(kb):
    return Document.concepts.through.objects.filter(document__knowledge_base=kb)


def add_vector(kb):
    chunk = Chunk.objects.get(knowledge_base=kb, position=0)
    vector = HalfVector([0.0] * 4)
    ChunkEmbedding.objects.create(
        chunk=chunk, knowledge_base=kb, kind="question", ordinal=1, model=kb.embedding_model, vector=vector
    )


def of_itself(kb):
    return KnowledgeBase.objects.filter(pk=kb.pk)


def change_base(**fields):
    return lambda kb: of_itself(kb).update(**fields)


CONTENT_WRITES = {
    "vector added": add_vector,
    "vectors updated": lambda kb: of_base(ChunkEmbedding)(kb).update(kind="keywords"),
    "vectors deleted": lambda kb: of_base(ChunkEmbedding)(kb).delete(),
    "title": lambda kb: of_base(Document)(kb).update(title="new"),
    "source": lambda kb: of_base(Document)(kb).update(source="new"),
    "source type": lambda kb: of_base(Document)(kb).update(source_type="web"),
    "metadata": lambda kb: of_base(Document)(kb).update(metadata={"year": 2024}),
    "date": lambda kb: of_base(Document)(kb).update(created_at=datetime(2020, 1, 1, tzinfo=UTC)),
    "tags": lambda kb: of_base(Document)(kb).update(tags=["law"]),
    "raw tags": lambda kb: sql("UPDATE kb_document SET tags = '{law}' WHERE knowledge_base_id = %s", kb.pk),
    "concept of a document added": lambda kb: kb.documents.get().concepts.create(knowledge_base=kb, name="another"),
    "concepts of documents taken": lambda kb: concepts_of_documents(kb).delete(),
    "concept added": lambda kb: Concept.objects.bulk_create([Concept(knowledge_base=kb, name="another")]),
    "concept renamed": lambda kb: of_base(Concept)(kb).update(name="renamed"),
    "concept deleted": lambda kb: of_base(Concept)(kb).delete(),
    "term added": lambda kb: ConceptTerm(concept=kb.concepts.get(), text="synonym").save(),
    "term updated": lambda kb: of_base(ConceptTerm)(kb).update(text="Concept"),
    "term deleted": lambda kb: of_base(ConceptTerm)(kb).delete(),
    "fact added": lambda kb: GraphFact.objects.create(knowledge_base=kb, subject="c", predicate="is", object="d"),
    "fact updated": lambda kb: of_base(GraphFact)(kb).update(predicate="was"),
    "fact taken from another chunk": lambda kb: of_base(GraphFact)(kb).update(source_chunk=another_chunk(kb)),
    "fact deleted": lambda kb: of_base(GraphFact)(kb).delete(),
    "profile": lambda kb: of_itself(kb).update(profile=RetrievalProfile.objects.create(name="another")),
    "base renamed": change_base(name="renamed"),
    "embedding model": change_base(embedding_model="another"),
    "answer when nothing is found": change_base(no_answer="Nothing."),
    "language": change_base(language="en"),
    "keyword vectors": change_base(keyword_vectors=True),
}


@pytest.mark.parametrize("write", CONTENT_WRITES.values(), ids=CONTENT_WRITES.keys())
def test_what_can_change_a_response_moves_the_content_version_of_its_base_only(write):
    kb, other = with_content(make_kb()), with_content(make_kb())
    before, other_before, chunks_before = content_version(kb), content_version(other), version(kb)
    write(kb)
    assert content_version(kb) > before
    assert content_version(other) == other_before
    assert version(kb) == chunks_before


UNSEEN_WRITES = {
    "status": lambda kb: of_base(Document)(kb).update(status="processing", stage="embed", progress=40, attempts=1),
    "a document saved as it is": lambda kb: kb.documents.get().save(),
    "a base saved as it is": lambda kb: KnowledgeBase.objects.get(pk=kb.pk).save(),
    "description": change_base(description="for readers"),
    "chunking": change_base(chunk_size=900),
    "no rows": lambda kb: of_base(ChunkEmbedding)(kb).filter(kind="question").delete(),
    "chunks deleted": lambda kb: of_base(Chunk)(kb).delete(),
}


@pytest.mark.parametrize("write", UNSEEN_WRITES.values(), ids=UNSEEN_WRITES.keys())
def test_what_no_response_shows_or_moves_the_other_version_leaves_the_content_version(write):
    kb = with_content(make_kb())
    before = content_version(kb)
    write(kb)
    assert content_version(kb) == before


def test_one_statement_moves_the_content_version_of_every_base_that_it_changes():
    bases = [with_content(make_kb()), with_content(make_kb())]
    before = [content_version(kb) for kb in bases]
    Document.objects.update(tags=["law"])
    assert all(content_version(kb) > old for kb, old in zip(bases, before, strict=True))


def test_a_fact_moved_between_bases_moves_both_content_versions():
    kb, other = with_content(make_kb()), make_kb()
    before, other_before = content_version(kb), content_version(other)
    GraphFact.objects.update(knowledge_base=other)
    assert content_version(kb) > before
    assert content_version(other) > other_before


def test_deleting_a_chunk_leaves_its_fact_without_source_and_loads_neither(django_assert_num_queries):
    kb = with_content(make_kb())
    with django_assert_num_queries(1):
        Chunk.objects.filter(knowledge_base=kb).delete()
    check_constraints()
    assert GraphFact.objects.get().source_chunk_id is None


@pytest.mark.parametrize("delete", [knowledge_base_delete, lambda kb: kb.delete()], ids=["service", "cascade"])
def test_a_deleted_base_leaves_no_concepts_facts_or_links(delete):
    kb, other = with_content(make_kb()), with_content(make_kb())
    delete(kb)
    check_constraints()
    assert set(Concept.objects.values_list("knowledge_base_id", flat=True)) == {other.pk}
    assert set(ConceptTerm.objects.values_list("knowledge_base_id", flat=True)) == {other.pk}
    assert set(GraphFact.objects.values_list("knowledge_base_id", flat=True)) == {other.pk}
    assert Document.concepts.through.objects.count() == 1


def test_deleting_a_document_without_django_s_collector_takes_its_links_to_concepts_along():
    kb = with_content(make_kb())
    Chunk.objects.filter(knowledge_base=kb).delete()
    documents = Document.objects.filter(knowledge_base=kb)
    documents._raw_delete(documents.db)
    check_constraints()
    assert not Document.concepts.through.objects.exists()
