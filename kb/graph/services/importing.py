"""Imports of entities, facts and concepts from CSV files: first a plan of what would change, then the change itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from django.db import transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import lock_knowledge_bases
from kb.base.errors import Rejected
from kb.base.text import normalized_key
from kb.content.models import Chunk, Document
from kb.graph.models import Concept, ConceptTerm, Entity, EntityName, GraphFact, Origin
from kb.graph.services.entities import KIND_CHARACTERS, MAX_ALIASES, NAME_CHARACTERS
from kb.graph.services.facts import (
    BATCH,
    Identity,
    Triple,
    by_entities,
    facts_with,
    known_facts,
    rewrite_facts,
    write_facts,
)
from kb.graph.services.tables import CELL_CHARACTERS, Row, Table, read_table


class Effect(StrEnum):
    NEW = "new"
    CHANGED = "changed"
    SAME = "same"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row of a file; `message` says what is wrong with it, or what it changes."""

    line: int
    text: str
    effect: Effect
    message: str = ""


def plan_concepts(kb: KnowledgeBase, rows: Sequence[Row]) -> tuple[list[PlannedRow], Callable[[], None]]:
    """What the rows do, and what does it."""
    concepts = {normalized_key(each.name): each for each in Concept.objects.filter(knowledge_base=kb)}
    terms = {(term.concept_id, term.key) for term in ConceptTerm.objects.filter(knowledge_base=kb)}
    by_id = {each.pk: key for key, each in concepts.items()}
    named = set(concepts) | {normalized_key(row["name"]) for row in rows}
    wider = {key: by_id[each.parent_id] for key, each in concepts.items() if each.parent_id in by_id}
    held, wide = set(concepts), set(wider.values())
    planned, taken = [], []
    for row in rows:
        key = normalized_key(row["name"])
        error = _concept_error(row, named, wider, leads=key in wide)
        if error:
            planned.append(PlannedRow(row.line, row["name"], Effect.ERROR, error))
            continue
        parent = normalized_key(row["parent"])
        is_moved = bool(parent) and wider.get(key) != parent
        if parent:
            wider[key] = parent
            wide.add(parent)
        concept = concepts.get(key)
        added = [
            text
            for text in row.listed("synonyms")
            if concept is None or (concept.pk, normalized_key(text)) not in terms
        ]
        effect = Effect.NEW if key not in held else Effect.CHANGED if added or is_moved else Effect.SAME
        held.add(key)
        taken.append(row)
        planned.append(PlannedRow(row.line, row["name"], effect, " · ".join([*added, row["parent"]]).strip(" ·")))
    return planned, lambda: _apply_concepts(kb, taken, concepts)


def _apply_concepts(kb: KnowledgeBase, rows: Sequence[Row], concepts: dict[str, Concept]) -> None:
    for row in rows:
        key = normalized_key(row["name"])
        if key not in concepts:
            concepts[key] = Concept(knowledge_base=kb, name=row["name"])
            concepts[key].save()
    for row in rows:
        concept = concepts[normalized_key(row["name"])]
        parent = concepts.get(normalized_key(row["parent"])) if row["parent"] else None
        if parent is not None and concept.parent_id != parent.pk:
            concept.parent = parent
            concept.save()
        held = set(concept.terms.values_list("key", flat=True))
        for text in row.listed("synonyms"):
            if normalized_key(text) not in held:
                ConceptTerm(concept=concept, text=text).save()
                held.add(normalized_key(text))


def _concept_error(row: Row, named: set[str], wider: Mapping[str, str], *, leads: bool) -> str:
    """What is wrong with a row; `leads` where another concept is narrower than its own, without which there is no circle."""
    texts = [row["name"], *row.listed("synonyms")]
    if not all(map(normalized_key, texts)):
        return _("The name is missing.")
    if any(len(text) > NAME_CHARACTERS or "\0" in text for text in texts):
        return _("A name has %(most)d characters at most: shorten it.") % {"most": NAME_CHARACTERS}
    own, parent = normalized_key(row["name"]), normalized_key(row["parent"])
    if parent and parent not in named:
        message = _("The wider concept “%(name)s” is neither in the file nor in the knowledge base.")
        return message % {"name": row["parent"][:100]}
    above, met = parent, set()
    while above and above not in met:
        if above == own:
            return _("“%(name)s” is narrower than this concept: choose another one.") % {"name": row["parent"][:100]}
        met.add(above)
        above = wider.get(above, "") if leads else ""
    return ""


@dataclass(slots=True)
class _Planned:
    """An entity as it will be; `names` are those that it is given, by their keys."""

    entity: Entity
    names: dict[str, str] = field(default_factory=dict)
    is_changed: bool = False


def plan_entities(kb: KnowledgeBase, rows: Sequence[Row]) -> tuple[list[PlannedRow], Callable[[], None]]:
    """What the rows do, and what does it."""
    keys = {normalized_key(text) for row in rows for text in (row["name"], *row.listed("aliases"))}
    held = EntityName.objects.filter(knowledge_base=kb, key__in=keys).select_related("entity")
    entities: dict[int, _Planned] = {}
    owners: dict[str, _Planned] = {}
    for name in held:
        owners[name.key] = entities.setdefault(name.entity_id, _Planned(name.entity))
    new: list[_Planned] = []
    planned = [_plan_row(kb, row, owners, new) for row in rows]
    changed = [each for each in entities.values() if each.is_changed]
    return planned, lambda: _apply_entities(kb, new, changed)


def _plan_row(kb: KnowledgeBase, row: Row, owners: dict[str, _Planned], new: list[_Planned]) -> PlannedRow:
    given = [row["name"], *row.listed("aliases")]
    texts: dict[str, str] = {}
    for text in given:
        texts.setdefault(normalized_key(text), text)
    shown = row["name"]
    if error := _entity_error(row, texts):
        return PlannedRow(row.line, shown, Effect.ERROR, error)
    known = {id(owners[key]): owners[key] for key in texts if key in owners}
    if len(known) > 1:
        names = "”, “".join(sorted(each.entity.name for each in known.values()))
        message = _("Its names belong to several entities (“%(names)s”): merge them first, or leave a name out.")
        return PlannedRow(row.line, shown, Effect.ERROR, message % {"names": names})
    target = next(iter(known.values()), None)
    effect = Effect.NEW if target is None else Effect.SAME
    if target is None:
        target = _Planned(Entity(knowledge_base=kb, name=shown, origin=Origin.IMPORT))
        new.append(target)
    added = {key: text for key, text in texts.items() if key not in owners}
    target.names |= added
    owners |= dict.fromkeys(added, target)
    fields = {name: row[name] for name in ("kind", "description") if row[name]}
    differing = [name for name, value in fields.items() if getattr(target.entity, name) != value]
    for name in differing:
        setattr(target.entity, name, fields[name])
    if effect is Effect.SAME and (added or differing):
        effect, target.is_changed = Effect.CHANGED, True
    others = [text for text in added.values() if text != target.entity.name]
    return PlannedRow(row.line, shown, effect, " · ".join([*others, *(fields[name][:80] for name in differing)]))


def _entity_error(row: Row, texts: dict[str, str]) -> str:
    if not normalized_key(row["name"]):
        return _("The name is missing.")
    is_long = any(len(text) > NAME_CHARACTERS for text in texts.values())
    if is_long or len(row["kind"]) > KIND_CHARACTERS or len(row["description"]) > CELL_CHARACTERS:
        return _("A name has %(name)d characters at most, and a kind %(kind)d: shorten it.") % {
            "name": NAME_CHARACTERS,
            "kind": KIND_CHARACTERS,
        }
    if len(texts) > MAX_ALIASES + 1:
        return _("An entity can have %(most)d other names at most: leave some out.") % {"most": MAX_ALIASES}
    if any("\0" in value for value in row.values.values()):
        return _("It holds a character that cannot be stored: delete it.")
    return ""


def _apply_entities(kb: KnowledgeBase, new: Sequence[_Planned], changed: Sequence[_Planned]) -> None:
    Entity.objects.bulk_create([each.entity for each in new], batch_size=BATCH)
    for each in changed:
        if each.entity.origin == Origin.LLM:
            each.entity.origin = Origin.IMPORT
    Entity.objects.bulk_update([each.entity for each in changed], ["kind", "description", "origin"], batch_size=BATCH)
    names = [
        EntityName(entity=each.entity, knowledge_base=kb, text=text, key=key)
        for each in [*new, *changed]
        for key, text in sorted(each.names.items(), key=lambda pair: pair[1] != each.entity.name)
    ]
    EntityName.objects.bulk_create(names, batch_size=BATCH)
    given = {name.key: name.entity for name in names if name.text != name.entity.name}
    stated = facts_with(kb.pk, given).values_list("subject_key", "object_key")
    touched = {given[key] for pair in stated for key in pair if key in given}
    keys: dict[Entity, list[str]] = {}
    for key, entity in given.items():
        keys.setdefault(entity, []).append(key)
    for entity, added in keys.items():
        if entity in touched:
            rewrite_facts(kb.pk, added, entity.name)


def plan_facts(kb: KnowledgeBase, rows: Sequence[Row]) -> tuple[list[PlannedRow], Callable[[], None]]:
    """What the rows do, and what does it."""
    stated = [Triple(row["subject"], row["predicate"], row["object"]) for row in rows]
    triples = by_entities(kb.pk, stated)
    documents, chunks = _sources(kb, rows)
    held = set(known_facts(kb.pk, triples))
    planned: list[PlannedRow] = []
    sources: dict[Identity, int | None] = {}
    taken: list[Triple] = []
    for row, triple in zip(rows, triples, strict=True):
        text = " · ".join([row["subject"], row["predicate"], row["object"]])
        document_id = documents.get(row["document"])
        chunk_id = chunks.get((document_id, row["chunk"].lstrip("0")))
        error = _fact_error(row, triple) or _source_error(row, document_id, chunk_id)
        if error:
            planned.append(PlannedRow(row.line, text, Effect.ERROR, error))
            continue
        effect = Effect.SAME if triple.identity in held else Effect.NEW
        held.add(triple.identity)
        taken.append(triple)
        sources[triple.identity] = sources.get(triple.identity) or chunk_id
        planned.append(PlannedRow(row.line, text, effect, row["document"]))
    return planned, lambda: _apply_facts(kb, taken, sources)


def _apply_facts(kb: KnowledgeBase, triples: Sequence[Triple], sources: dict[Identity, int | None]) -> None:
    ids = write_facts(kb.pk, triples, Origin.IMPORT)
    GraphFact.objects.filter(pk__in=ids.values(), origin=Origin.LLM).update(origin=Origin.IMPORT)
    chunk_of = {ids[identity]: chunk_id for identity, chunk_id in sources.items() if chunk_id and identity in ids}
    facts = list(GraphFact.objects.filter(pk__in=chunk_of, source_chunk=None))
    for fact in facts:
        fact.source_chunk_id = chunk_of[fact.pk]
    GraphFact.objects.bulk_update(facts, ["source_chunk"], batch_size=BATCH)


def _sources(kb: KnowledgeBase, rows: Sequence[Row]) -> tuple[dict[str, int], dict[tuple[int | None, str], int]]:
    """Documents by what a file calls them, their source or else their title, and their chunks by their numbers from 1."""
    names = {row["document"] for row in rows} - {""}
    found = Document.objects.filter(Q(source__in=names) | Q(title__in=names), knowledge_base=kb).order_by("-pk")
    documents = list(found.values_list("pk", "source", "title"))
    by_name = {title: pk for pk, _source, title in documents if title}
    by_name |= {source: pk for pk, source, _title in documents if source}
    if not any(row["chunk"] for row in rows):
        return by_name, {}
    chunks = Chunk.objects.filter(document__in=by_name.values()).values_list("document_id", "position", "pk")
    return by_name, {(document_id, str(position + 1)): pk for document_id, position, pk in chunks}


def _fact_error(row: Row, triple: Triple) -> str:
    cells = (row["subject"], row["predicate"], row["object"])
    if not all(normalized_key(cell) for cell in cells):
        return _("Subject, predicate and object are all needed.")
    if any(len(cell) > NAME_CHARACTERS for cell in cells):
        return _("Subject, predicate and object have %(most)d characters at most: shorten them.") % {
            "most": NAME_CHARACTERS
        }
    if any("\0" in cell for cell in cells):
        return _("It holds a character that cannot be stored: delete it.")
    if triple.identity[0] == triple.identity[2] and normalized_key(row["subject"]) != normalized_key(row["object"]):
        return _("Subject and object are two names of one entity.")
    return ""


def _source_error(row: Row, document_id: int | None, chunk_id: int | None) -> str:
    if row["document"] and document_id is None:
        message = _("The knowledge base has no document of the source or title “%(name)s”.")
        return message % {"name": row["document"][:100]}
    if row["chunk"] and chunk_id is None:
        return _("The document has no chunk %(number)s; the first one is 1.") % {"number": row["chunk"][:20]}
    return ""


_PLANS: Mapping[Table, Callable[[KnowledgeBase, Sequence[Row]], tuple[list[PlannedRow], Callable[[], None]]]] = {
    Table.ENTITIES: plan_entities,
    Table.FACTS: plan_facts,
    Table.CONCEPTS: plan_concepts,
}


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """What a file would do, row by row."""

    table: Table
    rows: Sequence[PlannedRow]

    def count(self, effect: Effect) -> int:
        return sum(row.effect is effect for row in self.rows)

    @property
    def errors(self) -> list[PlannedRow]:
        return [row for row in self.rows if row.effect is Effect.ERROR]

    @property
    def counts(self) -> dict[str, int]:
        return {effect.value: self.count(effect) for effect in Effect}


def graph_import_plan(kb: KnowledgeBase, table: Table, text: str) -> ImportPlan:
    """What importing a file would change; nothing is changed.

    Raises:
        Rejected: the file as a whole cannot be read.
    """
    rows, _apply = _PLANS[table](kb, read_table(text, table))
    return ImportPlan(table, rows)


def graph_import(kb: KnowledgeBase, table: Table, text: str, *, skip_errors: bool = False) -> ImportPlan:
    """Imports a file, all of it or nothing.

    Args:
        kb: the caller has checked that the user may write there.
        table: what the file holds.
        text: the file.
        skip_errors: leave lines with errors out; else one such line refuses the file.

    Raises:
        Rejected: the file cannot be read, or has lines with errors.
    """
    rows = read_table(text, table)
    with transaction.atomic():
        lock_knowledge_bases([kb.pk])
        planned, apply = _PLANS[table](kb, rows)
        plan = ImportPlan(table, planned)
        if plan.errors and not skip_errors:
            first = plan.errors[0]
            message = _("Line %(line)d: %(error)s Nothing was imported.")
            raise Rejected("bad_lines", message % {"line": first.line, "error": first.message})
        apply()
    return plan
