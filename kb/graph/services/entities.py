"""Entities as curators keep them: their names are theirs alone, and facts are stated by the first of these.

Concepts and facts as a caller writes them, one at a time.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import lock_knowledge_bases
from kb.base.errors import Rejected
from kb.base.text import normalized_key
from kb.graph.models import Concept, ConceptTerm, Entity, EntityName, FactSource, GraphFact, Origin
from kb.graph.services.facts import Rewriting, facts_with, plan_rewriting, rewrite_facts

NAME_CHARACTERS = 200
KIND_CHARACTERS = 80
MAX_ALIASES = 50


@dataclass(frozen=True, slots=True)
class Merge:
    """What merging one entity into another comes to.

    Attributes:
        names: that the kept entity is given.
        facts: what becomes of the facts of both.
    """

    kept: Entity
    merged: Entity
    names: Sequence[str]
    facts: Rewriting


def names_of(entity: Entity) -> list[str]:
    """All names of an entity, that which it is shown by first."""
    texts = list(entity.names.order_by("pk").values_list("text", flat=True))
    return [entity.name, *(text for text in texts if text != entity.name)]


def aliases_of(entity: Entity) -> list[str]:
    return names_of(entity)[1:]


def keys_of_entity(entity: Entity) -> list[str]:
    return list(entity.names.values_list("key", flat=True))


def entity_check(entity: Entity, name: str, aliases: Collection[str]) -> None:
    """Whether an entity, stored or not, could have these names.

    Raises:
        Rejected: as `entity_create`.
    """
    held = EntityName.objects.filter(entity=entity).count() if entity.pk else 0
    _refuse_taken(entity, _checked([name, *aliases], held=held))


def entity_create(
    *,
    knowledge_base: KnowledgeBase,
    name: str,
    kind: str = "",
    description: str = "",
    aliases: Collection[str] = (),
    origin: Origin = Origin.HAND,
) -> Entity:
    """Creates an entity; facts that are stated by one of its names are stated by the first from now on.

    Raises:
        Rejected: a name is blank or too long, or another entity of the knowledge base has it.
    """
    entity = Entity(
        knowledge_base=knowledge_base, name=name.strip(), kind=kind.strip(), description=description, origin=origin
    )
    texts = _checked([name, *aliases])
    with transaction.atomic():
        lock_knowledge_bases([knowledge_base.pk])
        _refuse_taken(entity, texts)
        entity.save()
        _write_names(entity, texts)
        rewrite_facts(knowledge_base.pk, [normalized_key(text) for text in texts], entity.name)
    return entity


def entity_update(
    entity: Entity,
    *,
    name: str | None = None,
    aliases: Collection[str] | None = None,
    **changes: Any,
) -> Entity:
    """Changes an entity; a name that it was shown by stays one of its names.

    Args:
        entity: the entity.
        name: the new one; None: as it is.
        aliases: all of its other names; None: those it has.
        changes: of its kind and description.

    Raises:
        Rejected: as `entity_create`.
    """
    with transaction.atomic():
        lock_knowledge_bases([entity.knowledge_base_id])
        entity.refresh_from_db()
        shown = entity.name if name is None else name.strip()
        others = aliases_of(entity) if aliases is None else list(aliases)
        wanted = [shown, *others, *([entity.name] if shown != entity.name else [])]
        texts = _checked(wanted, held=EntityName.objects.filter(entity=entity).count())
        _refuse_taken(entity, texts)
        entity.name, entity.origin = shown, Origin.HAND
        for field, value in changes.items():
            setattr(entity, field, value)
        entity.save()
        before = keys_of_entity(entity)
        _write_names(entity, texts)
        rewrite_facts(entity.knowledge_base_id, {*before, *map(normalized_key, texts)}, shown)
    return entity


def plan_merge(kept: Entity, merged: Entity) -> Merge:
    """What `entity_merge` will do.

    Raises:
        Rejected: they are one entity, or of two knowledge bases.
    """
    _check_pair(kept, merged)
    keys = {*keys_of_entity(kept), *keys_of_entity(merged)}
    return Merge(kept, merged, names_of(merged), plan_rewriting(kept.knowledge_base_id, keys, kept.name))


def entity_merge(kept: Entity, merged: Entity) -> Merge:
    """Makes two entities one: names move, facts are stated by the kept one's name, and equal facts become one.

    Raises:
        Rejected: as `plan_merge`.
    """
    _check_pair(kept, merged)
    with transaction.atomic():
        lock_knowledge_bases([kept.knowledge_base_id])
        kept.refresh_from_db()
        merged.refresh_from_db()
        names = names_of(merged)
        keys = {*keys_of_entity(kept), *keys_of_entity(merged)}
        EntityName.objects.filter(entity=merged).update(entity=kept)
        kept.kind, kept.description = kept.kind or merged.kind, kept.description or merged.description
        kept.origin = Origin.HAND
        kept.save()
        Entity.objects.filter(pk=merged.pk).delete()
        facts = rewrite_facts(kept.knowledge_base_id, keys, kept.name)
    return Merge(kept, merged, names, facts)


def entity_split(entity: Entity, alias: str, fact_ids: Collection[int] = ()) -> Entity:
    """Makes an entity of its own of one of the names; the facts that are chosen are stated by that name then.

    Raises:
        Rejected: it is no other name of the entity.
    """
    key = normalized_key(alias)
    with transaction.atomic():
        lock_knowledge_bases([entity.knowledge_base_id])
        entity.refresh_from_db()
        row = entity.names.filter(key=key).first()
        if row is None or key == normalized_key(entity.name):
            message = _("“%(name)s” is no other name of “%(entity)s”: choose one of its aliases.")
            raise Rejected("no_alias", message % {"name": alias, "entity": entity.name})
        keys = keys_of_entity(entity)
        part = Entity.objects.create(knowledge_base_id=entity.knowledge_base_id, name=row.text, kind=entity.kind)
        EntityName.objects.filter(pk=row.pk).update(entity=part)
        _give_facts(list(facts_with(entity.knowledge_base_id, keys).filter(pk__in=list(fact_ids))), keys, part)
    return part


def entity_delete(entity: Entity) -> None:
    """Deletes an entity with its names; what is known of it stays, stated by the name it had."""
    with transaction.atomic():
        lock_knowledge_bases([entity.knowledge_base_id])
        Entity.objects.filter(pk=entity.pk).delete()


def _check_pair(kept: Entity, merged: Entity) -> None:
    if kept.pk == merged.pk:
        raise Rejected("same_entity", _("An entity cannot be merged with itself: choose another one."))
    if kept.knowledge_base_id != merged.knowledge_base_id:
        raise Rejected("other_base", _("Only entities of one knowledge base can be merged: choose another one."))


def _checked(texts: Sequence[str], *, held: int = 0) -> list[str]:
    """The names, each once, the first one first; of as many as are held already, a merge may have made too many.

    Raises:
        Rejected: one is blank or too long, or there are too many.
    """
    unique: dict[str, str] = {}
    for text in (text.strip() for text in texts):
        key = normalized_key(text)
        if not key:
            raise Rejected("blank_name", _("An entity needs a name: type some visible characters."))
        if len(text) > NAME_CHARACTERS:
            message = _("“%(name)s…” is longer than %(most)d characters: shorten it.")
            raise Rejected("name_too_long", message % {"name": text[:40], "most": NAME_CHARACTERS})
        unique.setdefault(key, text)
    if len(unique) > max(MAX_ALIASES + 1, held):
        message = _("An entity can have %(most)d other names at most: leave some out.")
        raise Rejected("too_many_names", message % {"most": MAX_ALIASES})
    return list(unique.values())


def _refuse_taken(entity: Entity, texts: Sequence[str]) -> None:
    rows = EntityName.objects.filter(
        knowledge_base=entity.knowledge_base_id, key__in=[normalized_key(text) for text in texts]
    )
    taken = rows.exclude(entity=entity.pk).select_related("entity").first()
    if taken is not None:
        message = _("“%(name)s” is a name of the entity “%(entity)s” already: merge the two, or choose another name.")
        raise Rejected("name_taken", message % {"name": taken.text, "entity": taken.entity.name})


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


def _give_facts(facts: Sequence[GraphFact], keys: Collection[str], part: Entity) -> None:
    """One fact after the other: one that the part has already stays where it is."""
    key = normalized_key(part.name)
    for fact in facts:
        if fact.subject_key in keys:
            fact.subject, fact.subject_key = part.name, key
        else:
            fact.object, fact.object_key = part.name, key
        there = GraphFact.objects.filter(
            knowledge_base=part.knowledge_base_id,
            subject_key=fact.subject_key,
            predicate=fact.predicate,
            object_key=fact.object_key,
        )
        if not there.exclude(pk=fact.pk).exists():
            fact.save()


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


MOST_TERMS = 100


def concept_create(
    *,
    knowledge_base: KnowledgeBase,
    name: str,
    description: str = "",
    parent_id: int | None = None,
    synonyms: Sequence[str] = (),
    abbreviations: Sequence[str] = (),
) -> Concept:
    """Adds a concept with the words for it; `parent_id` is that of the wider one, of the same knowledge base.

    Raises:
        Rejected: the name is blank or taken, the wider concept is none, or a word comes twice; nothing was changed.
    """
    concept = Concept(knowledge_base=knowledge_base)
    fields = {"name": name, "description": description, "parent_id": parent_id}
    with transaction.atomic():
        lock_knowledge_bases([knowledge_base.pk])
        _write_concept(concept, fields | {"synonyms": synonyms, "abbreviations": abbreviations})
    return concept


def concept_update(concept: Concept, **changes: Any) -> None:
    """Changes what is given of a concept; synonyms and abbreviations are all of those it is to have.

    Raises:
        Rejected: as `concept_create`.
    """
    with _held(concept):
        _write_concept(concept, changes)


def concept_delete(concept: Concept) -> None:
    """Deletes a concept; those that are narrower stay, without a wider one."""
    with transaction.atomic():
        lock_knowledge_bases([concept.knowledge_base_id])
        concept.delete()


def fact_create(*, knowledge_base: KnowledgeBase, subject: str, predicate: str, object: str) -> GraphFact:  # noqa: A002
    """Adds a fact.

    Raises:
        Rejected: a part of it is blank, or it is known already.
    """
    fact = GraphFact(knowledge_base=knowledge_base)
    _write_fact(fact, {"subject": subject, "predicate": predicate, "object": object})
    return fact


def fact_update(fact: GraphFact, **changes: str) -> None:
    """Changes subject, predicate or object.

    Raises:
        Rejected: as `fact_create`; nothing was changed.
    """
    with _held(fact):
        _write_fact(fact, changes)


def fact_delete(fact: GraphFact) -> None:
    """Deletes a fact with what it was read from."""
    with transaction.atomic():
        lock_knowledge_bases([fact.knowledge_base_id])
        fact.delete()


@contextmanager
def _held(row: Concept | GraphFact) -> Iterator[None]:
    """A transaction in which nobody else writes to the knowledge base's graph, and the row as it is now.

    Raises:
        ObjectDoesNotExist: it is gone.
    """
    with transaction.atomic():
        lock_knowledge_bases([row.knowledge_base_id])
        row.refresh_from_db()
        yield


def _write_fact(fact: GraphFact, changes: dict[str, str]) -> None:
    for field, value in changes.items():
        setattr(fact, field, value)
    if not (normalized_key(fact.subject) and fact.predicate.strip() and normalized_key(fact.object)):
        raise Rejected("blank_name", _("Subject, predicate and object are all needed."))
    try:
        with transaction.atomic():
            fact.save()
    except IntegrityError as error:
        message = _("The knowledge base holds this fact already: change it or go back.")
        raise Rejected("fact_known", message) from error


def _write_concept(concept: Concept, changes: dict[str, Any]) -> None:
    terms = {
        ConceptTerm.Kind.SYNONYM: changes.pop("synonyms", None),
        ConceptTerm.Kind.ABBREVIATION: changes.pop("abbreviations", None),
    }
    for field, value in changes.items():
        setattr(concept, field, value)
    _check(concept)
    concept.save()
    for kind, texts in terms.items():
        if texts is not None:
            concept.terms.filter(kind=kind).delete()
            taken = set(concept.terms.values_list("key", flat=True))
            for text in texts:
                key = normalized_key(text)
                if not key:
                    raise Rejected("blank_name", _("A word for a concept needs visible characters."))
                if key in taken:
                    message = _("“%(term)s” is a term of this concept already: leave one of the two out.")
                    raise Rejected("term_known", message % {"term": text})
                taken.add(key)
                ConceptTerm(concept=concept, text=text, kind=kind).save()


def _check(concept: Concept) -> None:
    if not normalized_key(concept.name):
        raise Rejected("blank_name", _("A concept needs a name with visible characters."))
    others = Concept.objects.filter(knowledge_base=concept.knowledge_base_id).exclude(pk=concept.pk)
    if others.filter(name=concept.name).exists():
        message = _("The knowledge base has a concept named “%(name)s” already: choose another name.")
        raise Rejected("name_taken", message % {"name": concept.name})
    if concept.parent_id is not None and not others.filter(pk=concept.parent_id).exists():
        raise Rejected("invalid_parent", _("Choose a wider concept of the same knowledge base."))
    try:
        concept.clean()
    except ValidationError as error:
        raise Rejected("invalid_parent", " ".join(error.messages)) from error
