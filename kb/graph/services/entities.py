"""Facts, each once and by the names of their entities; and entities, concepts and facts as curators change them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _
from msgspec import Struct

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import fetch_all, lock_knowledge_bases
from kb.base.errors import Rejected
from kb.base.text import normalized_key
from kb.content.models import Chunk, Document
from kb.graph.models import Concept, ConceptTerm, Entity, EntityName, FactSource, GraphFact, Origin

NAME_CHARACTERS = 200
KIND_CHARACTERS = 80
MAX_ALIASES = 50
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

    Those `renamed` are stated by its name from now on, those `united` are then equal to the one whose id stands beside
    them, and those that are `circular` would lead from the entity to itself, and go.
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
        Triple(names.get(subject, triple.subject), predicate, names.get(object_, triple.object))
        for triple in triples
        for subject, predicate, object_ in [triple.identity]
    ]


def write_facts(kb_id: int, triples: Sequence[Triple], origin: Origin) -> dict[Identity, int]:
    """Adds the facts that are missing, in a transaction that holds the knowledge base; returns all ids by identity."""
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
        if fact.subject_key == fact.object_key and not was_circular:
            circular.append(fact)
            continue
        same = held.setdefault((fact.subject_key, fact.predicate, fact.object_key), fact)
        if same is not fact:
            united.append((fact, same.pk))
        elif (fact.subject, fact.object) != before:
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
    """Gives a chunk the facts of those that become part of it; a fact that several state has one source then."""
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


# -- Entities, concepts and facts, one at a time ------------------------------------------------------------------------
def entity_check(entity: Entity, name: str, aliases: Collection[str]) -> None:
    """Raises Rejected, as `entity_update` does, where an entity, stored or not, could not have these names."""
    held = EntityName.objects.filter(entity=entity).count() if entity.pk else 0
    _refuse_taken(entity, _checked([name, *aliases], held=held))


def entity_update(
    entity: Entity, *, name: str | None = None, aliases: Collection[str] | None = None, **changes: Any
) -> Entity:
    """Changes an entity, or stores a new one, where the caller has checked that the user may.

    `aliases` are all of its other names, and the one that it was shown by stays among them; `changes` are of its kind
    and description. Facts that are stated by one of its names are stated by the first from now on. ObjectDoesNotExist
    where it was deleted; Rejected where a name is blank or too long, or another entity of the knowledge base has it.
    """
    with transaction.atomic():
        _lock(entity)
        shown = entity.name if name is None else name.strip()
        before, others = (set(), []) if entity.pk is None else (entity.keys, entity.aliases)
        former = [entity.name] if entity.name not in ("", shown) else []
        texts = _checked([shown, *(others if aliases is None else aliases), *former], held=len(before))
        _refuse_taken(entity, texts)
        for field, value in {"name": shown, "origin": Origin.HAND, **changes}.items():
            setattr(entity, field, value)
        entity.save()
        _write_names(entity, texts)
        rewrite_facts(entity.knowledge_base_id, {*before, *map(normalized_key, texts)}, shown)
    return entity


def plan_merge(kept: Entity, merged: Entity) -> Rewriting:
    """What `entity_merge` will do to the facts; raises Rejected where both are one, or of different knowledge bases."""
    if kept.pk == merged.pk:
        raise Rejected("same_entity", _("An entity cannot be merged with itself: choose another one."))
    if kept.knowledge_base_id != merged.knowledge_base_id:
        raise Rejected("other_base", _("Only entities of one knowledge base can be merged: choose another one."))
    return plan_rewriting(kept.knowledge_base_id, kept.keys | merged.keys, kept.name)


def entity_merge(kept: Entity, merged: Entity) -> Rewriting:
    """Makes two entities one: names move, facts are stated by the kept one's name, and equal ones become one.

    Raises as `plan_merge`.
    """
    with transaction.atomic():
        _lock(kept)
        merged.refresh_from_db()
        facts = plan_merge(kept, merged)
        EntityName.objects.filter(entity=merged).update(entity=kept)
        kept.kind, kept.description = kept.kind or merged.kind, kept.description or merged.description
        kept.origin = Origin.HAND
        kept.save()
        Entity.objects.filter(pk=merged.pk).delete()
        apply_rewriting(facts)
    return facts


def entity_split(entity: Entity, alias: str, fact_ids: Collection[int] = ()) -> Entity:
    """Makes one of the aliases, else Rejected, an entity of its own; the chosen facts are stated by that name then."""
    key = normalized_key(alias)
    with transaction.atomic():
        _lock(entity)
        row = entity.names.filter(key=key).first()
        if row is None or key == normalized_key(entity.name):
            raise Rejected(
                "no_alias",
                _("“%(name)s” is no other name of “%(entity)s”: choose one of its aliases."),
                name=alias,
                entity=entity.name,
            )
        keys = entity.keys
        facts = list(facts_with(entity.knowledge_base_id, keys).filter(pk__in=list(fact_ids)))
        part = Entity.objects.create(knowledge_base_id=entity.knowledge_base_id, name=row.text, kind=entity.kind)
        EntityName.objects.filter(pk=row.pk).update(entity=part)
        for fact in facts:
            setattr(fact, "subject" if fact.subject_key in keys else "object", part.name)
            if not fact.is_stated_already():  # one that the part has already stays where it is
                fact.save()
    return part


def _checked(texts: Sequence[str], *, held: int = 0) -> list[str]:
    """The names, each once, the first one first; raises Rejected.

    Those that are `held` already may be too many, since a merge may have made them so.
    """
    unique: dict[str, str] = {}
    for text in (text.strip() for text in texts):
        key = normalized_key(text)
        if not key:
            raise Rejected("blank_name", _("An entity needs a name: type some visible characters."))
        if len(text) > NAME_CHARACTERS:
            raise Rejected(
                "name_too_long",
                _("“%(name)s…” is longer than %(most)d characters: shorten it."),
                name=text[:40],
                most=NAME_CHARACTERS,
            )
        unique.setdefault(key, text)
    if len(unique) > max(MAX_ALIASES + 1, held):
        raise Rejected(
            "too_many_names", _("An entity can have %(most)d other names at most: leave some out."), most=MAX_ALIASES
        )
    return list(unique.values())


def _refuse_taken(entity: Entity, texts: Sequence[str]) -> None:
    rows = EntityName.objects.filter(knowledge_base=entity.knowledge_base_id, key__in=map(normalized_key, texts))
    if taken := rows.exclude(entity=entity.pk).select_related("entity").first():
        raise Rejected(
            "name_taken",
            _("“%(name)s” is a name of the entity “%(entity)s” already: merge the two, or choose another name."),
            name=taken.text,
            entity=taken.entity.name,
        )


def _write_names(entity: Entity, texts: Sequence[str]) -> None:
    """The names in the order given; those that stay keep their rows."""
    wanted = {normalized_key(text): text for text in texts}
    for row in EntityName.objects.filter(entity=entity):
        text = wanted.pop(row.key, None)
        if text is None:
            row.delete()
        elif text != row.text:
            row.text = text
            row.save()
    for text in wanted.values():
        EntityName(entity=entity, text=text).save()


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
class Neighbour:
    """The other end of an entity's facts; `relations` are predicates, each with whether the entity is its subject.

    It has no `entity_id` where the text there is no entity's name.
    """

    name: str
    entity_id: int | None
    relations: tuple[tuple[str, bool], ...]


def fact_counts(entity_ids: Collection[int]) -> Mapping[int, int]:
    """How many facts name each of the entities; those that none names are left out."""
    return dict(fetch_all(COUNTS, [list(entity_ids)]))


def facts_of(entity: Entity) -> QuerySet[GraphFact]:
    return facts_with(entity.knowledge_base_id, entity.keys).order_by("predicate", "subject", "object", "pk")


def neighbours_of(entity: Entity) -> list[Neighbour]:
    """Those that most facts lead to first."""
    own = entity.keys
    ends: dict[str, tuple[str, list[tuple[str, bool]]]] = {}
    for fact in facts_with(entity.knowledge_base_id, own).order_by("pk")[:2_000]:  # of more, these are counted
        outward = fact.subject_key in own
        text, key = (fact.object, fact.object_key) if outward else (fact.subject, fact.subject_key)
        if key not in own:
            ends.setdefault(key, (text, []))[1].append((fact.predicate, outward))
    rows = EntityName.objects.filter(knowledge_base=entity.knowledge_base_id, key__in=list(ends))
    entities = {row.key: row.entity for row in rows.select_related("entity")}
    relations: dict[tuple[str, int | None], list[tuple[str, bool]]] = {}
    for key, (text, found) in ends.items():
        other = entities.get(key)
        relations.setdefault((other.name, other.pk) if other else (text, None), []).extend(found)
    neighbours = [Neighbour(*end, tuple(dict.fromkeys(found))) for end, found in relations.items()]
    return sorted(neighbours, key=lambda each: (-len(each.relations), each.entity_id is None, each.name))


MOST_TERMS = 100


def concept_update(
    concept: Concept,
    *,
    synonyms: Sequence[str] | None = None,
    abbreviations: Sequence[str] | None = None,
    **changes: Any,
) -> Concept:
    """Changes what is given of a concept, or stores a new one, where the caller has checked that the user may.

    `synonyms` and `abbreviations` are all that it is to have; `changes` are of name, description and `parent_id`, the
    wider concept's. ObjectDoesNotExist where it was deleted; Rejected, and nothing changed, where the name is blank or
    taken, the wider concept is of another knowledge base or narrower than this one, or a word comes twice.
    """
    with transaction.atomic():
        _lock(concept, **changes)
        _check(concept)
        concept.save()
        for kind, texts in ((ConceptTerm.Kind.SYNONYM, synonyms), (ConceptTerm.Kind.ABBREVIATION, abbreviations)):
            if texts is not None:
                concept.terms.filter(kind=kind).delete()
                _add_terms(concept, kind, texts)
    return concept


def _add_terms(concept: Concept, kind: ConceptTerm.Kind, texts: Sequence[str]) -> None:
    taken = set(concept.terms.values_list("key", flat=True))
    for text in texts:
        key = normalized_key(text)
        if not key:
            raise Rejected("blank_name", _("A word for a concept needs visible characters."))
        if key in taken:
            message = _("“%(term)s” is a term of this concept already: leave one of the two out.")
            raise Rejected("term_known", message, term=text)
        taken.add(key)
        ConceptTerm(concept=concept, text=text, kind=kind).save()


def _check(concept: Concept) -> None:
    if not normalized_key(concept.name):
        raise Rejected("blank_name", _("A concept needs a name with visible characters."))
    others = Concept.objects.filter(knowledge_base=concept.knowledge_base_id).exclude(pk=concept.pk)
    if others.filter(name=concept.name).exists():
        raise Rejected(
            "name_taken",
            _("The knowledge base has a concept named “%(name)s” already: choose another name."),
            name=concept.name,
        )
    if concept.parent_id is not None and not others.filter(pk=concept.parent_id).exists():
        raise Rejected("invalid_parent", _("Choose a wider concept of the same knowledge base."))
    try:
        concept.clean()
    except ValidationError as error:
        raise Rejected("invalid_parent", " ".join(error.messages)) from error


def fact_update(fact: GraphFact, **changes: str) -> GraphFact:
    """Changes subject, predicate or object of a fact, or stores a new one.

    Raises ObjectDoesNotExist where it was deleted, and Rejected where a part of it is blank, or it is known already.
    """
    with transaction.atomic():
        _lock(fact, **changes)
        if not (normalized_key(fact.subject) and fact.predicate.strip() and normalized_key(fact.object)):
            raise Rejected("blank_name", _("Subject, predicate and object are all needed."))
        if fact.is_stated_already():
            raise Rejected("fact_known", _("The knowledge base holds this fact already: change it or go back."))
        fact.save()
    return fact


def _lock(row: Entity | Concept | GraphFact, **changes: Any) -> None:
    """Keeps others from writing to the knowledge base's graph, and reads the row as it is now, where it is stored.

    The changes are not saved yet.
    """
    lock_knowledge_bases([row.knowledge_base_id])
    if row.pk is not None:
        row.refresh_from_db()
    for field, value in changes.items():
        setattr(row, field, value)
