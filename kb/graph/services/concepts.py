"""The concepts of a taxonomy that a language model assigns to documents."""

from collections.abc import Collection, Sequence

from django.db.models import Count

from kb.base.text import normalized_key
from kb.content.models.documents import Document
from kb.graph.models import Concept, ConceptTerm
from kb.graph.services.answers import FoundConcept

CONCEPT_CHARACTERS = 6_000
"""Of a document's title, headings and beginning."""
MOST_OFFERED = 200
MOST_NEW = 3
"""That one document can add to a taxonomy."""


def known_concepts(kb_id: int) -> list[str]:
    """The names of a knowledge base's concepts, the most used first."""
    rows = Concept.objects.filter(knowledge_base=kb_id).annotate(uses=Count("documents"))
    return list(rows.order_by("-uses", "name").values_list("name", flat=True)[:MOST_OFFERED])


def assign_concepts(document: Document, found: Sequence[FoundConcept], before: Collection[int]) -> list[int]:
    """Gives a document its concepts, in place of those it was given so before; what a person has chosen stays.

    Belongs inside a transaction that holds the knowledge base.

    Returns:
        The ids of the concepts that the document has through this.
    """
    wanted = _concepts(document.knowledge_base_id, found)
    held = set(document.concepts.values_list("pk", flat=True))
    chosen = held - set(before)
    document.concepts.remove(*(set(before) & held) - set(wanted))
    given = [pk for pk in wanted if pk not in chosen]
    document.concepts.add(*given)
    return given


def _concepts(kb_id: int, found: Sequence[FoundConcept]) -> list[int]:
    """The ids of the concepts; those that are not there are made, as far as one document may."""
    names = {normalized_key(name) for each in found for name in (each.name, each.wider) if name}
    rows = ConceptTerm.objects.filter(knowledge_base=kb_id, key__in=names).order_by("-kind", "pk")
    known = {row.key: row.concept_id for row in rows}
    made = 0
    ids = []
    for each in found:
        pk = known.get(normalized_key(each.name))
        if pk is None and made < MOST_NEW:
            wider = known.get(normalized_key(each.wider)) if each.wider else None
            concept = Concept(knowledge_base_id=kb_id, name=each.name, parent_id=wider)
            concept.save()
            pk = known[normalized_key(each.name)] = concept.pk
            made += 1
        if pk is not None:
            ids.append(pk)
    return list(dict.fromkeys(ids))
