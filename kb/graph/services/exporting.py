"""Entities, facts and concepts of a knowledge base as CSV, in the columns that an import reads."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from kb.access.models.knowledge import KnowledgeBase
from kb.graph.models import Concept, ConceptTerm, Entity, GraphFact
from kb.graph.services.tables import SEPARATOR, Table, write_table

ROWS_AT_ONCE = 1_000

Cells = Sequence[str | int]


def graph_export(kb: KnowledgeBase, table: Table) -> Iterator[str]:
    """The text of the file, in pieces."""
    return write_table(table, _ROWS[table](kb))


def _entities(kb: KnowledgeBase) -> Iterator[Cells]:
    rows = Entity.objects.filter(knowledge_base=kb).prefetch_related("names").order_by("name", "pk")
    for entity in rows.iterator(ROWS_AT_ONCE):
        others = [name.text for name in entity.names.all() if name.text != entity.name]
        yield entity.name, entity.kind, entity.description, SEPARATOR.join(others)


def _facts(kb: KnowledgeBase) -> Iterator[Cells]:
    rows = GraphFact.objects.filter(knowledge_base=kb).select_related("source_chunk__document")
    for fact in rows.order_by("subject", "predicate", "object", "pk").iterator(ROWS_AT_ONCE):
        chunk = fact.source_chunk
        source: Cells = (
            ("", "") if chunk is None else (chunk.document.source or chunk.document.title, chunk.position + 1)
        )
        yield fact.subject, fact.predicate, fact.object, *source


def _concepts(kb: KnowledgeBase) -> Iterator[Cells]:
    rows = Concept.objects.filter(knowledge_base=kb).select_related("parent").prefetch_related("terms")
    for concept in rows.order_by("name", "pk").iterator(ROWS_AT_ONCE):
        synonyms = [term.text for term in concept.terms.all() if term.kind != ConceptTerm.Kind.NAME]
        yield concept.name, concept.parent.name if concept.parent else "", SEPARATOR.join(synonyms)


_ROWS: Mapping[Table, Callable[[KnowledgeBase], Iterator[Cells]]] = {
    Table.ENTITIES: _entities,
    Table.FACTS: _facts,
    Table.CONCEPTS: _concepts,
}
