"""Entities, concepts and facts as curators write them, one at a time; an entity's facts are stated by its name."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from kb.base.db.transactions import lock_knowledge_bases
from kb.base.errors import Rejected
from kb.base.text import normalized_key
from kb.graph.models import Concept, ConceptTerm, Entity, EntityName, GraphFact, Origin
from kb.graph.services.facts import Rewriting, apply_rewriting, facts_with, plan_rewriting, rewrite_facts

NAME_CHARACTERS = 200
KIND_CHARACTERS = 80
MAX_ALIASES = 50


def entity_check(entity: Entity, name: str, aliases: Collection[str]) -> None:
    """Whether an entity, stored or not, could have these names.

    Raises:
        Rejected: as `entity_update`.
    """
    held = EntityName.objects.filter(entity=entity).count() if entity.pk else 0
    _refuse_taken(entity, _checked([name, *aliases], held=held))


def entity_update(
    entity: Entity,
    *,
    name: str | None = None,
    aliases: Collection[str] | None = None,
    **changes: Any,
) -> Entity:
    """Changes an entity, or stores a new one; a name that it was shown by stays one of its names.

    Facts that are stated by one of its names are stated by the first from now on.

    Args:
        entity: the caller has checked that the user may write to its knowledge base.
        name: the new one; None: as it is.
        aliases: all of its other names; None: those it has.
        changes: of its kind and description.

    Raises:
        ObjectDoesNotExist: it was deleted.
        Rejected: a name is blank or too long, or another entity of the knowledge base has it.
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
    """What `entity_merge` will do to the facts of both.

    Raises:
        Rejected: they are one entity, or of two knowledge bases.
    """
    if kept.pk == merged.pk:
        raise Rejected("same_entity", _("An entity cannot be merged with itself: choose another one."))
    if kept.knowledge_base_id != merged.knowledge_base_id:
        raise Rejected("other_base", _("Only entities of one knowledge base can be merged: choose another one."))
    return plan_rewriting(kept.knowledge_base_id, kept.keys | merged.keys, kept.name)


def entity_merge(kept: Entity, merged: Entity) -> Rewriting:
    """Makes two entities one: names move, facts are stated by the kept one's name, and equal facts become one.

    Raises:
        Rejected: as `plan_merge`.
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
    """Makes an entity of its own of one of the names; the facts that are chosen are stated by that name then.

    Raises:
        Rejected: it is no other name of the entity.
    """
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
    rows = EntityName.objects.filter(
        knowledge_base=entity.knowledge_base_id, key__in=[normalized_key(text) for text in texts]
    )
    taken = rows.exclude(entity=entity.pk).select_related("entity").first()
    if taken is not None:
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


# Of an entity with more, a picture counts these.
MOST_FACTS = 2_000

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
    """The other end of an entity's facts.

    Attributes:
        entity_id: None where the text there is no entity's name.
        relations: the predicates of the facts, each with whether the entity is its subject.
    """

    name: str
    entity_id: int | None
    relations: tuple[tuple[str, bool], ...]


def fact_counts(entity_ids: Collection[int]) -> Mapping[int, int]:
    """How many facts name each of the entities; those that none names are left out."""
    with connection.cursor() as cursor:
        cursor.execute(COUNTS, [list(entity_ids)])
        return dict(cursor.fetchall())


def facts_of(entity: Entity) -> QuerySet[GraphFact]:
    return facts_with(entity.knowledge_base_id, entity.keys).order_by("predicate", "subject", "object", "pk")


def neighbours_of(entity: Entity) -> list[Neighbour]:
    """Those that most facts lead to first."""
    own = entity.keys
    ends: dict[str, tuple[str, list[tuple[str, bool]]]] = {}
    for fact in facts_with(entity.knowledge_base_id, own).order_by("pk")[:MOST_FACTS]:
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
    """Changes what is given of a concept, or stores a new one.

    Args:
        concept: the caller has checked that the user may write to its knowledge base.
        synonyms: all of those that it is to have; None: as they are.
        abbreviations: likewise.
        changes: of name, description, and parent_id, that of the wider one.

    Raises:
        ObjectDoesNotExist: it was deleted.
        Rejected: the name is blank or taken, the wider concept is none of the same knowledge base or narrower than this one,
            or a word comes twice; nothing was changed.
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
            raise Rejected(
                "term_known", _("“%(term)s” is a term of this concept already: leave one of the two out."), term=text
            )
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

    Raises:
        ObjectDoesNotExist: it was deleted.
        Rejected: a part of it is blank, or it is known already; nothing was changed.
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
