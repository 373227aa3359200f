"""What was found in a document's passages, written into the graph of its knowledge base."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from django.db.models import Count

from kb.base.text import normalized_key
from kb.content.models import Document
from kb.graph.models import Concept, ConceptTerm, Entity, EntityName, FactSource, GraphFact, Origin
from kb.graph.services.answers import Found, FoundConcept, FoundEntity
from kb.graph.services.entities import MAX_ALIASES, fact_counts
from kb.graph.services.facts import BATCH, Triple, by_entities, rewrite_facts, write_facts
from kb.graph.services.reader import passage_of, readable_chunks


def write_found(document: Document, found: Mapping[str, Found]) -> int:
    """Writes what the passages say in place of what they said; belongs inside a transaction that holds the knowledge base.

    Args:
        document: the document.
        found: by the hashes of passages; those that were not read are not among them, and what they said stays.

    Returns:
        How many facts the document states.
    """
    kb_id = document.knowledge_base_id
    digests = {chunk.pk: passage_of(document, chunk).content_hash for chunk in readable_chunks(document)}
    read = {chunk_id: found[digest] for chunk_id, digest in digests.items() if digest in found}
    _write_entities(kb_id, [entity for each in found.values() for entity in each.entities])
    stated = [(triple, chunk_id) for chunk_id, each in read.items() for triple in each.facts]
    triples = by_entities(kb_id, [triple for triple, _chunk_id in stated])
    # Two names of one entity may stand in one fact, which then says nothing.
    said = [
        (triple, chunk_id)
        for triple, (_stated, chunk_id) in zip(triples, stated, strict=True)
        if triple.identity[0] != triple.identity[2]
    ]
    return _write_facts(document, said, stale=set(digests) - set(read))


def _write_facts(document: Document, said: Sequence[tuple[Triple, int]], stale: set[int]) -> int:
    """Facts, their sources, and then those away that nothing states any more; `stale` chunks keep what they stated."""
    kb_id = document.knowledge_base_id
    ids = write_facts(kb_id, [triple for triple, _chunk_id in said], Origin.LLM)
    wanted = {(ids[triple.identity], chunk_id) for triple, chunk_id in said if triple.identity in ids}
    held = {
        (source.fact_id, source.chunk_id): source for source in FactSource.objects.filter(document=document).iterator()
    }
    gone = [source for key, source in held.items() if key not in wanted and (key[1] is None or key[1] not in stale)]
    new = [key for key in wanted if key not in held]
    rows = [FactSource(fact_id=fact_id, document=document, chunk_id=chunk_id) for fact_id, chunk_id in sorted(new)]
    FactSource.objects.bulk_create(rows, batch_size=BATCH)
    _tell_sources(rows)
    losing = GraphFact.objects.filter(pk__in=[source.fact_id for source in gone])
    touched = {key for pair in losing.values_list("subject_key", "object_key") for key in pair}
    FactSource.objects.filter(pk__in=[source.pk for source in gone]).delete()
    _drop_unnamed(kb_id, touched)
    return FactSource.objects.filter(document=document).values("fact").distinct().count()


def _tell_sources(rows: Iterable[FactSource]) -> None:
    """A fact of a language model that has no passage to show has one now."""
    first = {row.fact_id: row.chunk_id for row in reversed(list(rows))}
    lacking = list(GraphFact.objects.filter(pk__in=first, source_chunk=None, origin=Origin.LLM))
    for fact in lacking:
        fact.source_chunk_id = first[fact.pk]
    GraphFact.objects.bulk_update(lacking, ["source_chunk"], batch_size=BATCH)


def _write_entities(kb_id: int, found: Sequence[FoundEntity]) -> None:
    """Entities that are not there yet; one that is known by its name or an alias is given what it lacks."""
    keys = {normalized_key(text) for each in found for text in (each.name, *each.aliases)}
    rows = EntityName.objects.filter(knowledge_base=kb_id, key__in=keys).select_related("entity")
    owners = {row.key: row.entity for row in rows}
    for each in found:
        texts = {normalized_key(text): text for text in (each.name, *each.aliases)}
        entity = next((owners[key] for key in texts if key in owners), None)
        if entity is None:
            entity = Entity.objects.create(knowledge_base_id=kb_id, name=each.name, kind=each.kind, origin=Origin.LLM)
        elif each.kind and not entity.kind:
            entity.kind = each.kind
            entity.save(update_fields=["kind"])
        new = {key: text for key, text in texts.items() if key not in owners}
        if new:
            room = MAX_ALIASES + 1 - EntityName.objects.filter(entity=entity).count()
            new = dict(islice(new.items(), max(0, room)))
        for key, text in new.items():
            EntityName(entity=entity, text=text).save()
            owners[key] = entity
        if new:
            rewrite_facts(kb_id, new, entity.name)


def _drop_unnamed(kb_id: int, keys: set[str]) -> None:
    """Takes entities away that only a language model has named, and that no fact names any more."""
    rows = Entity.objects.filter(knowledge_base=kb_id, origin=Origin.LLM, names__key__in=keys)
    ids = set(rows.values_list("pk", flat=True))
    Entity.objects.filter(pk__in=ids - set(fact_counts(ids))).delete()


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
