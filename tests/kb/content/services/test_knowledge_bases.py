import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from kb.content.services import knowledge_base_delete
from kb.models import Concept, ConceptTerm, Document, EvalSet, GraphFact, KnowledgeBase
from tests.factories import make_document, make_kb

pytestmark = pytest.mark.django_db
OF_CONCEPTS = Document.concepts.through


def with_content():
    """A knowledge base with a concept, a fact, an evaluation set and a document of that concept."""
    kb = make_kb()
    document = make_document(kb, "保修期是两年")
    concept = Concept.objects.create(knowledge_base=kb, name="concept")
    document.concepts.add(concept)
    GraphFact.objects.create(
        knowledge_base=kb, subject="a", predicate="is", object="b", source_chunk=document.chunks.get()
    )
    EvalSet.objects.create(knowledge_base=kb, name="set").queries.create(external_id="q", text="q")
    return kb


def delete(kb):
    """As in a transaction of its own, at whose end the constraints are checked."""
    with CaptureQueriesContext(connection) as queries:
        knowledge_base_delete(kb)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    return len(queries)


def test_everything_goes_with_its_knowledge_base_and_nothing_of_another():
    kb, other = with_content(), with_content()

    delete(kb)

    assert KnowledgeBase.objects.get() == other
    for model in (Concept, ConceptTerm, GraphFact, Document, EvalSet):
        assert model.objects.get().knowledge_base == other
    assert OF_CONCEPTS.objects.get().document.knowledge_base == other


def test_a_document_may_have_a_concept_of_another_knowledge_base():
    kb, other = with_content(), with_content()
    Document.objects.get(knowledge_base=kb).concepts.add(Concept.objects.get(knowledge_base=other))
    Document.objects.get(knowledge_base=other).concepts.add(Concept.objects.get(knowledge_base=kb))

    delete(kb)

    assert OF_CONCEPTS.objects.count() == 1


def test_a_large_taxonomy_takes_no_more_statements_than_a_small_one():
    small, large = with_content(), with_content()
    wider = Concept.objects.get(knowledge_base=large)
    narrower = [Concept(knowledge_base=large, name=f"concept {number}", parent=wider) for number in range(300)]
    Concept.objects.bulk_create(narrower)

    assert delete(large) == delete(small)
