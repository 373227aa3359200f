"""What is known of an entity, and which others that leads to."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from django.db import connection
from django.db.models import QuerySet

from kb.graph.models import Entity, EntityName, FactSource, GraphFact
from kb.graph.services.facts import facts_with

MOST_FACTS = 2_000
"""Of an entity with more, a picture counts these."""

COUNTS = """
SELECT name.entity_id, count(DISTINCT fact.id)
FROM kb_entityname name JOIN LATERAL (
    SELECT id FROM kb_graphfact f WHERE f.knowledge_base_id = name.knowledge_base_id AND f.subject_key = name.key
    UNION ALL
    SELECT id FROM kb_graphfact f WHERE f.knowledge_base_id = name.knowledge_base_id AND f.object_key = name.key
) fact ON true
WHERE name.entity_id = ANY(%s) GROUP BY name.entity_id
"""


@dataclass(frozen=True, slots=True)
class Relation:
    """One fact as it is seen from an entity; `outward` where the entity is its subject."""

    predicate: str
    outward: bool


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The other end of an entity's facts; without an id where the text there is no entity's name."""

    name: str
    entity_id: int | None
    relations: tuple[Relation, ...]


def fact_counts(entity_ids: Collection[int]) -> Mapping[int, int]:
    """How many facts name each of the entities; those that none names are left out."""
    with connection.cursor() as cursor:
        cursor.execute(COUNTS, [list(entity_ids)])
        return dict(cursor.fetchall())


def facts_of(entity: Entity) -> QuerySet[GraphFact]:
    """The facts that name an entity, by whichever of its names."""
    return facts_with(entity.knowledge_base_id, _keys(entity)).order_by("predicate", "subject", "object", "pk")


def _keys(entity: Entity) -> set[str]:
    """Of all its names, which whoever reads many may have prefetched."""
    return {name.key for name in entity.names.all()}


def sources_of(facts: Sequence[GraphFact]) -> Mapping[int, list[FactSource]]:
    """The passages in which facts were found, by the fact."""
    found: dict[int, list[FactSource]] = {}
    for source in FactSource.objects.filter(fact__in=facts).select_related("document", "chunk").order_by("pk"):
        found.setdefault(source.fact_id, []).append(source)
    return found


def neighbours_of(entity: Entity) -> list[Neighbour]:
    """Those that most facts lead to first."""
    own = _keys(entity)
    ends: dict[str, list[tuple[str, Relation]]] = {}
    for fact in facts_with(entity.knowledge_base_id, own).order_by("pk")[:MOST_FACTS]:
        outward = fact.subject_key in own
        text, key = (fact.object, fact.object_key) if outward else (fact.subject, fact.subject_key)
        if key not in own:
            ends.setdefault(key, []).append((text, Relation(fact.predicate, outward)))
    rows = EntityName.objects.filter(knowledge_base=entity.knowledge_base_id, key__in=list(ends))
    entities = {row.key: row.entity for row in rows.select_related("entity")}
    grouped: dict[int | str, tuple[str, int | None, list[Relation]]] = {}
    for key, found in ends.items():
        other = entities.get(key)
        named = (other.name, other.pk) if other else (found[0][0], None)
        group = grouped.setdefault(other.pk if other else key, (*named, []))
        group[2].extend(relation for _text, relation in found)
    neighbours = [Neighbour(name, pk, tuple(dict.fromkeys(relations))) for name, pk, relations in grouped.values()]
    return sorted(neighbours, key=lambda each: (-len(each.relations), each.entity_id is None, each.name))
