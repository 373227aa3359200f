"""Graphs as CSV files: how they are read, what they would change and change, and how they are written."""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated

from django.db.models import Q, TextChoices
from django.utils.translation import gettext as _, gettext_lazy
from typing_extensions import Doc

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import holding_knowledge_bases
from kb.base.errors import Rejected
from kb.base.shapes import AS_TEXT
from kb.base.text import csv_lines, normalized_key
from kb.content.models import Chunk, Document
from kb.graph.models import Concept, ConceptTerm, Entity, EntityName, GraphFact, Origin
from kb.graph.services.entities import (
    BATCH,
    KIND_CHARACTERS,
    MAX_ALIASES,
    NAME_CHARACTERS,
    Identity,
    Triple,
    by_entities,
    facts_with,
    give_source_chunks,
    known_facts,
    rewrite_facts,
    write_facts,
)
from kb.ingest.formats.text import decode
from kb.ingest.parser.parsed import ParseError

MAX_BYTES = 2 * 1024**2
MAX_ROWS = 20_000
CELL_CHARACTERS = 20_000
SEPARATOR = "|"
_BETWEEN = re.compile(r"[|;；\uff5c]")


class Table(TextChoices):
    ENTITIES = "entities", gettext_lazy("Entities")
    FACTS = "facts", gettext_lazy("Graph facts")
    CONCEPTS = "concepts", gettext_lazy("Concepts")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a file by its columns; those that it leaves out are blank."""

    line: int
    values: Mapping[str, str]

    def __getitem__(self, column: str) -> str:
        return self.values.get(column, "")

    def listed(self, column: str) -> list[str]:
        """The parts of a cell that holds several names."""
        return [part.strip() for part in _BETWEEN.split(self[column]) if part.strip()]


COLUMNS: Mapping[Table, Sequence[str]] = {
    Table.ENTITIES: ("name", "kind", "description", "aliases"),
    Table.FACTS: ("subject", "predicate", "object", "document", "chunk"),
    Table.CONCEPTS: ("name", "parent", "synonyms"),
}
REQUIRED: Mapping[Table, Sequence[str]] = {
    Table.ENTITIES: ("name",),
    Table.FACTS: ("subject", "predicate", "object"),
    Table.CONCEPTS: ("name",),
}
_CHINESE = {
    "名称": "name",
    "类别": "kind",
    "描述": "description",
    "别名": "aliases",
    "主语": "subject",
    "主体": "subject",
    "谓词": "predicate",
    "关系": "predicate",
    "宾语": "object",
    "客体": "object",
    "文档": "document",
    "块": "chunk",
    "上位概念": "parent",
    "同义词": "synonyms",
}


def read_bytes(data: bytes) -> str:
    """The text of a file in UTF-8, UTF-16 with a mark, or GB18030; Rejected where it is in another, or too large."""
    if len(data) > MAX_BYTES:
        raise Rejected(
            "too_large", _("The file is larger than %(megabytes)d MB: split it."), megabytes=MAX_BYTES // 1024**2
        )
    try:
        return decode(data)
    except ParseError as error:
        raise Rejected("undecodable", _("The file is neither UTF-8 nor GB18030: save it as UTF-8 CSV.")) from error


def read_table(text: str, table: Table) -> list[Row]:
    """The rows of a file with commas, semicolons or tabs, whose first line names the columns in English or Chinese.

    It is Rejected where a column is missing or not known, there are no rows or too many, or it is no CSV.
    """
    reader = csv.reader(io.StringIO(text), delimiter=max(",;\t", key=text.partition("\n")[0].count), strict=True)
    try:
        columns = _columns(next(reader, []), table)
        rows = list(_rows(reader, columns))
    except csv.Error as error:
        message = _("Line %(line)d is no CSV (%(reason)s): check its quotation marks.")
        raise Rejected("no_csv", message, line=reader.line_num, reason=error) from error
    if not rows:
        raise Rejected("no_rows", _("The file has no rows below its header: add some."))
    return rows


def _columns(header: Sequence[str], table: Table) -> list[str]:
    names = [cell.strip().strip("\ufeff").casefold() for cell in header]
    columns = [_CHINESE.get(name, name) for name in names]
    unknown = [name for name in columns if name and name not in COLUMNS[table]]
    missing = [name for name in REQUIRED[table] if name not in columns]
    if missing or unknown:
        message = _("The first line has to name the columns: %(columns)s. %(wrong)s does not fit.")
        wrong = ", ".join(f"“{name}”" for name in (missing or unknown)[:5])
        raise Rejected("bad_header", message, columns=", ".join(COLUMNS[table]), wrong=wrong)
    return columns


def _rows(reader: Iterator[list[str]], columns: Sequence[str]) -> Iterator[Row]:
    for count, cells in enumerate(reader, start=1):
        if count > MAX_ROWS:
            raise Rejected("too_many_rows", _("The file has more than %(most)d rows: split it."), most=MAX_ROWS)
        texts = [cell.strip() for cell in cells]
        texts = [text[1:] if text.startswith(("'=", "'+", "'-", "'@")) else text for text in texts]
        values = {column: text for column, text in zip(columns, texts, strict=False) if column}
        if any(values.values()):
            yield Row(reader.line_num, values)  # type: ignore[attr-defined]


class Effect(TextChoices):
    NEW = "new", gettext_lazy("new")
    CHANGED = "changed", gettext_lazy("changed")
    SAME = "same", gettext_lazy("as it is")
    ERROR = "error", gettext_lazy("error")


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row of a file; `message` says what is wrong with it, or what it changes."""

    line: int
    text: str
    effect: Annotated[Effect, AS_TEXT, Doc("One of: new, changed, same, error.")]
    message: str


# What the rows of a file do, and what does it.
Plan = tuple[list[PlannedRow], Callable[[], None]]


def _plan_concepts(kb: KnowledgeBase, rows: Sequence[Row]) -> Plan:
    concepts = {normalized_key(each.name): each for each in Concept.objects.filter(knowledge_base=kb)}
    terms = {(term.concept_id, term.key) for term in ConceptTerm.objects.filter(knowledge_base=kb)}
    keys = {each.pk: key for key, each in concepts.items()}
    named = set(concepts) | {normalized_key(row["name"]) for row in rows}
    wider = {key: keys[each.parent_id] for key, each in concepts.items() if each.parent_id in keys}
    held, wide = set(concepts), set(wider.values())
    planned, taken = [], []
    for row in rows:
        key, parent = normalized_key(row["name"]), normalized_key(row["parent"])
        if error := _concept_error(row, named, wider, leads=key in wide):
            planned.append(PlannedRow(row.line, row["name"], Effect.ERROR, error))
            continue
        concept = concepts.get(key)
        synonyms = row.listed("synonyms")
        added = [text for text in synonyms if not concept or (concept.pk, normalized_key(text)) not in terms]
        is_changed = added or (parent and wider.get(key) != parent)
        effect = Effect.NEW if key not in held else Effect.CHANGED if is_changed else Effect.SAME
        planned.append(PlannedRow(row.line, row["name"], effect, " · ".join(filter(None, [*added, row["parent"]]))))
        if parent:
            wider[key] = parent
            wide.add(parent)
        held.add(key)
        taken.append(row)
    return planned, lambda: _apply_concepts(kb, taken, concepts)


def _apply_concepts(kb: KnowledgeBase, rows: Sequence[Row], concepts: dict[str, Concept]) -> None:
    for row in rows:
        if (key := normalized_key(row["name"])) not in concepts:
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
    own, parent = normalized_key(row["name"]), normalized_key(row["parent"])
    if not all(map(normalized_key, texts)):
        return _("The name is missing.")
    if any(len(text) > NAME_CHARACTERS or "\0" in text for text in texts):
        return _("A name has %(most)d characters at most: shorten it.") % {"most": NAME_CHARACTERS}
    if parent and parent not in named:
        message = _("The wider concept “%(name)s” is neither in the file nor in the knowledge base.")
        return message % {"name": row["parent"][:100]}
    if own in (_with_wider(parent, wider) if leads else [parent]):
        return _("“%(name)s” is narrower than this concept: choose another one.") % {"name": row["parent"][:100]}
    return ""


def _with_wider(key: str, wider: Mapping[str, str]) -> dict[str, None]:
    met: dict[str, None] = {}
    while key and key not in met:
        met[key] = None
        key = wider.get(key, "")
    return met


def _plan_entities(kb: KnowledgeBase, rows: Sequence[Row]) -> Plan:
    keys = {normalized_key(text) for row in rows for text in (row["name"], *row.listed("aliases"))}
    held = EntityName.objects.filter(knowledge_base=kb, key__in=keys).select_related("entity")
    entities = {name.entity_id: name.entity for name in held}
    owners = {name.key: entities[name.entity_id] for name in held}
    names: list[EntityName] = []
    changed: dict[int, Entity] = {}
    planned = [_plan_entity(kb, row, owners, names, changed) for row in rows]
    return planned, lambda: _apply_entities(kb, names, changed.values())


def _plan_entity(
    kb: KnowledgeBase, row: Row, owners: dict[str, Entity], names: list[EntityName], changed: dict[int, Entity]
) -> PlannedRow:
    """What a row does; adds to the owners of names by their keys, the new names, and the stored entities that change."""
    texts: dict[str, str] = {}
    for text in [row["name"], *row.listed("aliases")]:
        texts.setdefault(normalized_key(text), text)
    known = {id(owners[key]): owners[key] for key in texts if key in owners}
    if error := _entity_error(row, texts, list(known.values())):
        return PlannedRow(row.line, row["name"], Effect.ERROR, error)
    entity = next(iter(known.values()), None)
    effect = Effect.SAME if entity else Effect.NEW
    entity = entity or Entity(knowledge_base=kb, name=row["name"], origin=Origin.IMPORT)
    added = {key: text for key, text in texts.items() if key not in owners}
    names += [EntityName(entity=entity, knowledge_base=kb, text=text, key=key) for key, text in added.items()]
    owners |= dict.fromkeys(added, entity)
    fields = {name: row[name] for name in ("kind", "description") if row[name] not in ("", getattr(entity, name))}
    for name, value in fields.items():
        setattr(entity, name, value)
    if effect is Effect.SAME and (added or fields):
        effect = Effect.CHANGED
        if entity.pk is not None:
            changed[entity.pk] = entity
    others = [text for text in added.values() if text != entity.name]
    return PlannedRow(row.line, row["name"], effect, " · ".join([*others, *(value[:80] for value in fields.values())]))


def _entity_error(row: Row, texts: Mapping[str, str], known: Sequence[Entity]) -> str:
    is_long = any(len(text) > NAME_CHARACTERS for text in texts.values())
    if not normalized_key(row["name"]):
        return _("The name is missing.")
    if is_long or len(row["kind"]) > KIND_CHARACTERS or len(row["description"]) > CELL_CHARACTERS:
        most = {"name": NAME_CHARACTERS, "kind": KIND_CHARACTERS}
        return _("A name has %(name)d characters at most, and a kind %(kind)d: shorten it.") % most
    if len(texts) > MAX_ALIASES + 1:
        return _("An entity can have %(most)d other names at most: leave some out.") % {"most": MAX_ALIASES}
    if any("\0" in value for value in row.values.values()):
        return _("It holds a character that cannot be stored: delete it.")
    if len(known) > 1:
        message = _("Its names belong to several entities (“%(names)s”): merge them first, or leave a name out.")
        return message % {"names": "”, “".join(sorted(each.name for each in known))}
    return ""


def _apply_entities(kb: KnowledgeBase, names: Sequence[EntityName], changed: Collection[Entity]) -> None:
    new = {id(name.entity): name.entity for name in names if name.entity.pk is None}
    Entity.objects.bulk_create(new.values(), batch_size=BATCH)
    for entity in changed:
        entity.origin = Origin.IMPORT if entity.origin == Origin.LLM else entity.origin
    Entity.objects.bulk_update(changed, ["kind", "description", "origin"], batch_size=BATCH)
    EntityName.objects.bulk_create(names, batch_size=BATCH)
    given: dict[Entity, list[str]] = defaultdict(list)
    for name in names:
        if name.text != name.entity.name:
            given[name.entity].append(name.key)
    facts = facts_with(kb.pk, [key for keys in given.values() for key in keys])
    stated = {key for ends in facts.values_list("subject_key", "object_key") for key in ends}
    for entity, keys in given.items():
        if not stated.isdisjoint(keys):
            rewrite_facts(kb.pk, keys, entity.name)


def _plan_facts(kb: KnowledgeBase, rows: Sequence[Row]) -> Plan:
    triples = by_entities(kb.pk, [Triple(row["subject"], row["predicate"], row["object"]) for row in rows])
    documents, chunks = _sources(kb, rows)
    held = set(known_facts(kb.pk, triples))
    planned: list[PlannedRow] = []
    sources: dict[Identity, int | None] = {}
    taken: list[Triple] = []
    for row, triple in zip(rows, triples, strict=True):
        document_id = documents.get(row["document"])
        chunk_id = chunks.get((document_id, row["chunk"].lstrip("0")))
        effect, message = Effect.SAME if triple.identity in held else Effect.NEW, row["document"]
        if error := _fact_error(row, triple) or _source_error(row, document_id, chunk_id):
            effect, message = Effect.ERROR, error
        else:
            held.add(triple.identity)
            taken.append(triple)
            sources[triple.identity] = sources.get(triple.identity) or chunk_id
        text = " · ".join([row["subject"], row["predicate"], row["object"]])
        planned.append(PlannedRow(row.line, text, effect, message))
    return planned, lambda: _apply_facts(kb, taken, sources)


def _apply_facts(kb: KnowledgeBase, triples: Sequence[Triple], sources: dict[Identity, int | None]) -> None:
    ids = write_facts(kb.pk, triples, Origin.IMPORT)
    GraphFact.objects.filter(pk__in=ids.values(), origin=Origin.LLM).update(origin=Origin.IMPORT)
    give_source_chunks({ids[identity]: pk for identity, pk in sources.items() if pk and identity in ids})


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
    keys = [normalized_key(cell) for cell in cells]
    if not all(keys):
        return _("Subject, predicate and object are all needed.")
    if any(len(cell) > NAME_CHARACTERS for cell in cells):
        message = _("Subject, predicate and object have %(most)d characters at most: shorten them.")
        return message % {"most": NAME_CHARACTERS}
    if any("\0" in cell for cell in cells):
        return _("It holds a character that cannot be stored: delete it.")
    if triple.identity[0] == triple.identity[2] and keys[0] != keys[2]:
        return _("Subject and object are two names of one entity.")
    return ""


def _source_error(row: Row, document_id: int | None, chunk_id: int | None) -> str:
    if row["document"] and document_id is None:
        message = _("The knowledge base has no document of the source or title “%(name)s”.")
        return message % {"name": row["document"][:100]}
    if row["chunk"] and chunk_id is None:
        return _("The document has no chunk %(number)s; the first one is 1.") % {"number": row["chunk"][:20]}
    return ""


_PLANS: Mapping[Table, Callable[[KnowledgeBase, Sequence[Row]], Plan]] = {
    Table.ENTITIES: _plan_entities,
    Table.FACTS: _plan_facts,
    Table.CONCEPTS: _plan_concepts,
}


@dataclass(frozen=True, slots=True)
class ImportPlan:
    table: Table
    rows: Sequence[PlannedRow]

    @property
    def errors(self) -> list[PlannedRow]:
        return [row for row in self.rows if row.effect is Effect.ERROR]

    @property
    def counts(self) -> dict[str, int]:
        return {effect.value: sum(row.effect is effect for row in self.rows) for effect in Effect}


def graph_import_plan(kb: KnowledgeBase, table: Table, text: str) -> ImportPlan:
    """What importing a file would change; nothing is changed. One that cannot be read as a whole is Rejected."""
    rows, _apply = _PLANS[table](kb, read_table(text, table))
    return ImportPlan(table, rows)


def graph_import(kb: KnowledgeBase, table: Table, text: str, *, skip_errors: bool = False) -> ImportPlan:
    """Imports a file, all of it or nothing, where the caller has checked that the user may.

    `skip_errors` leaves lines with errors out; else one such line, as a file that cannot be read, is Rejected.
    """
    rows = read_table(text, table)
    with holding_knowledge_bases([kb.pk]):
        planned, apply = _PLANS[table](kb, rows)
        plan = ImportPlan(table, planned)
        if plan.errors and not skip_errors:
            line, message = plan.errors[0].line, plan.errors[0].message
            raise Rejected("bad_lines", _("Line %(line)d: %(error)s Nothing was imported."), line=line, error=message)
        apply()
    return plan


ROWS_AT_ONCE = 1_000

Cells = Sequence[str | int]


def graph_export(kb: KnowledgeBase, table: Table) -> Iterator[str]:
    """The lines of a file that `read_table` reads."""
    return csv_lines(chain([COLUMNS[table]], _ROWS[table](kb)))


def _entities(kb: KnowledgeBase) -> Iterator[Cells]:
    rows = Entity.objects.filter(knowledge_base=kb).prefetch_related("names").order_by("name", "pk")
    for entity in rows.iterator(ROWS_AT_ONCE):
        yield entity.name, entity.kind, entity.description, SEPARATOR.join(entity.aliases)


def _facts(kb: KnowledgeBase) -> Iterator[Cells]:
    rows = GraphFact.objects.filter(knowledge_base=kb).select_related("source_chunk__document")
    for fact in rows.order_by("subject", "predicate", "object", "pk").iterator(ROWS_AT_ONCE):
        source: Cells = ("", "")
        if chunk := fact.source_chunk:
            source = chunk.document.source or chunk.document.title, chunk.position + 1
        yield fact.subject, fact.predicate, fact.object, *source


def _concepts(kb: KnowledgeBase) -> Iterator[Cells]:
    rows = Concept.objects.filter(knowledge_base=kb).select_related("parent").prefetch_related("terms")
    for concept in rows.order_by("name", "pk").iterator(ROWS_AT_ONCE):
        synonyms = SEPARATOR.join(term.text for term in concept.other_terms)
        yield concept.name, concept.parent.name if concept.parent else "", synonyms


_ROWS: Mapping[Table, Callable[[KnowledgeBase], Iterator[Cells]]] = {
    Table.ENTITIES: _entities,
    Table.FACTS: _facts,
    Table.CONCEPTS: _concepts,
}
