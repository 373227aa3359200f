"""Facts as they are written: by the names of their entities, each fact once, with what states it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet
from msgspec import Struct

from kb.access.models import KnowledgeBase
from kb.base.text import normalized_key
from kb.content.models import Chunk, Document
from kb.graph.models import Concept, ConceptTerm, EntityName, FactSource, GraphFact, Origin

BATCH = 1_000
# Which of two equal facts stays: what a person has stated outlasts what a model has found.
_PRECEDENCE = {Origin.HAND: 0, Origin.IMPORT: 1, Origin.LLM: 2}

Identity = tuple[str, str, str]


class Triple(Struct, frozen=True, array_like=True):
    subject: str
    predicate: str
    object: str

    @property
    def identity(self) -> Identity:
        """What tells it from the other facts of its knowledge base."""
        return normalized_key(self.subject), self.predicate, normalized_key(self.object)


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What becomes of facts that are stated by the names of an entity.

    Attributes:
        renamed: facts that are stated by its name from now on.
        united: facts that are then equal to another one, by the id of that one.
        circular: facts that would then lead from the entity to itself; they go.
    """

    renamed: Sequence[GraphFact]
    united: Sequence[tuple[GraphFact, int]]
    circular: Sequence[GraphFact]


def facts_with(kb_id: int, keys: Collection[str]) -> QuerySet[GraphFact]:
    """The facts of which an end is written as one of the keys."""
    keys = list(keys)
    return GraphFact.objects.filter(Q(subject_key__in=keys) | Q(object_key__in=keys), knowledge_base=kb_id)


def by_entities(kb_id: int, triples: Sequence[Triple]) -> list[Triple]:
    """The triples with the names of their entities in place of other names for them."""
    keys = {key for triple in triples for key in (triple.identity[0], triple.identity[2])}
    names = dict(EntityName.objects.filter(knowledge_base=kb_id, key__in=keys).values_list("key", "entity__name"))
    return [
        Triple(
            names.get(triple.identity[0], triple.subject),
            triple.predicate,
            names.get(triple.identity[2], triple.object),
        )
        for triple in triples
    ]


def write_facts(kb_id: int, triples: Sequence[Triple], origin: Origin) -> dict[Identity, int]:
    """Adds the facts that are not there; belongs inside a transaction that holds the knowledge base.

    Returns:
        The ids of all of them by their identity.
    """
    unique = {triple.identity: triple for triple in triples}
    rows = [
        GraphFact(
            knowledge_base_id=kb_id,
            subject=triple.subject,
            predicate=triple.predicate,
            object=triple.object,
            subject_key=subject_key,
            object_key=object_key,
            origin=origin,
        )
        for (subject_key, _predicate, object_key), triple in unique.items()
    ]
    GraphFact.objects.bulk_create(rows, ignore_conflicts=True, batch_size=BATCH)
    return known_facts(kb_id, triples)


def known_facts(kb_id: int, triples: Sequence[Triple]) -> dict[Identity, int]:
    """The ids of those of the facts that the knowledge base holds, by their identity."""
    wanted = {triple.identity for triple in triples}
    rows = GraphFact.objects.filter(knowledge_base=kb_id, subject_key__in={identity[0] for identity in wanted})
    return {
        (subject, predicate, object_): pk
        for subject, predicate, object_, pk in rows.values_list("subject_key", "predicate", "object_key", "pk")
        if (subject, predicate, object_) in wanted
    }


def plan_rewriting(kb_id: int, keys: Collection[str], name: str) -> Rewriting:
    """What stating facts by an entity's name does, whichever of the keys they are stated by now."""
    key = normalized_key(name)
    keys = {*keys, key}
    renamed, united, circular = [], [], []
    held: dict[Identity, GraphFact] = {}
    for fact in sorted(facts_with(kb_id, keys), key=lambda fact: (_PRECEDENCE[Origin(fact.origin)], fact.pk)):
        before = (fact.subject, fact.object)
        was_circular = fact.subject_key == fact.object_key
        if fact.subject_key in keys:
            fact.subject, fact.subject_key = name, key
        if fact.object_key in keys:
            fact.object, fact.object_key = name, key
        identity = (fact.subject_key, fact.predicate, fact.object_key)
        if fact.subject_key == fact.object_key and not was_circular:
            circular.append(fact)
        elif identity in held:
            united.append((fact, held[identity].pk))
        else:
            held[identity] = fact
            if (fact.subject, fact.object) != before:
                renamed.append(fact)
    return Rewriting(renamed, united, circular)


def rewrite_facts(kb_id: int, keys: Collection[str], name: str) -> None:
    """As `plan_rewriting`, and does it; belongs inside a transaction that holds the knowledge base."""
    apply_rewriting(plan_rewriting(kb_id, keys, name))


def apply_rewriting(plan: Rewriting) -> None:
    """Writes what was planned in the same transaction."""
    kept_of = {fact.pk: kept for fact, kept in plan.united}
    # What states a fact that is deleted states the one that it is united with.
    moved = [
        FactSource(fact_id=kept_of[source.fact_id], document_id=source.document_id, chunk_id=source.chunk_id)
        for source in FactSource.objects.filter(fact__in=kept_of)
    ]
    FactSource.objects.bulk_create(moved, ignore_conflicts=True, batch_size=BATCH)
    give_source_chunks({kept: fact.source_chunk_id for fact, kept in reversed(plan.united) if fact.source_chunk_id})
    GraphFact.objects.filter(pk__in=[*kept_of, *(fact.pk for fact in plan.circular)]).delete()
    # Each fact that stays has a place of its own, which none of the others has left to take another's.
    GraphFact.objects.bulk_update(plan.renamed, ["subject", "object", "subject_key", "object_key"], batch_size=BATCH)


def give_source_chunks(chunk_of: Mapping[int, int], **of_facts: Any) -> None:
    """Gives facts, by their ids, the chunk that states them, where they have none yet; `of_facts` filters them."""
    facts = list(GraphFact.objects.filter(pk__in=chunk_of, source_chunk=None, **of_facts))
    for fact in facts:
        fact.source_chunk_id = chunk_of[fact.pk]
    GraphFact.objects.bulk_update(facts, ["source_chunk"], batch_size=BATCH)


def move_facts(kept: Chunk, gone: Sequence[int]) -> None:
    """Gives a chunk the facts of those that become part of it; a fact that several of them state has one source then."""
    GraphFact.objects.filter(source_chunk__in=gone).update(source_chunk=kept)
    sources = FactSource.objects.filter(chunk__in=gone)
    stated = FactSource.objects.filter(chunk=kept).values("fact")
    moved = sources.exclude(fact__in=stated).order_by("fact_id", "pk").distinct("fact_id")
    FactSource.objects.filter(pk__in=list(moved.values_list("pk", flat=True))).update(chunk=kept)
    FactSource.objects.filter(chunk__in=gone).delete()


def delete_graph_of(kb: KnowledgeBase) -> None:
    """Deletes a knowledge base's concepts and facts, none of which is loaded."""
    for rows in (
        Document.concepts.through.objects.filter(Q(concept__knowledge_base=kb) | Q(document__knowledge_base=kb)),
        *(model.objects.filter(knowledge_base=kb) for model in (ConceptTerm, Concept, GraphFact)),
    ):
        rows._raw_delete(rows.db)
