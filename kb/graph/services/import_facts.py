"""Facts from a file, each with the chunk that states it where the file tells one."""

from collections.abc import Callable, Sequence

from django.db.models import Q
from django.utils.translation import gettext as _

from kb.access.models.knowledge import KnowledgeBase
from kb.base.text import normalized_key
from kb.content.models.documents import Chunk, Document
from kb.graph.models import GraphFact, Origin
from kb.graph.services.entities import NAME_CHARACTERS
from kb.graph.services.facts import BATCH, Identity, Triple, by_entities, known_facts, write_facts
from kb.graph.services.import_plan import Effect, PlannedRow
from kb.graph.services.tables import Row


def plan_facts(kb: KnowledgeBase, rows: Sequence[Row]) -> tuple[list[PlannedRow], Callable[[], None]]:
    """What the rows do, and what does it."""
    stated = [Triple(row["subject"], row["predicate"], row["object"]) for row in rows]
    triples = by_entities(kb.pk, stated)
    documents = _documents(kb, rows)
    chunks = _chunks(set(documents.values()), rows)
    held = set(known_facts(kb.pk, triples))
    planned: list[PlannedRow] = []
    sources: dict[Identity, int | None] = {}
    taken: list[Triple] = []
    for row, triple in zip(rows, triples, strict=True):
        text = " · ".join([row["subject"], row["predicate"], row["object"]])
        document_id = documents.get(row["document"])
        chunk_id = chunks.get((document_id, _position(row["chunk"]))) if document_id else None
        error = _error(row, triple) or _source_error(row, document_id, chunk_id)
        if error:
            planned.append(PlannedRow(row.line, text, Effect.ERROR, error))
            continue
        effect = Effect.SAME if triple.identity in held else Effect.NEW
        held.add(triple.identity)
        taken.append(triple)
        sources[triple.identity] = sources.get(triple.identity) or chunk_id
        planned.append(PlannedRow(row.line, text, effect, row["document"]))
    return planned, lambda: _apply(kb, taken, sources)


def _apply(kb: KnowledgeBase, triples: Sequence[Triple], sources: dict[Identity, int | None]) -> None:
    ids = write_facts(kb.pk, triples, Origin.IMPORT)
    GraphFact.objects.filter(pk__in=ids.values(), origin=Origin.LLM).update(origin=Origin.IMPORT)
    chunk_of = {ids[identity]: chunk_id for identity, chunk_id in sources.items() if chunk_id and identity in ids}
    facts = list(GraphFact.objects.filter(pk__in=chunk_of, source_chunk=None))
    for fact in facts:
        fact.source_chunk_id = chunk_of[fact.pk]
    GraphFact.objects.bulk_update(facts, ["source_chunk"], batch_size=BATCH)


def _documents(kb: KnowledgeBase, rows: Sequence[Row]) -> dict[str, int]:
    """Documents by what a file calls them: their source, or their title."""
    names = {row["document"] for row in rows} - {""}
    found = Document.objects.filter(Q(source__in=names) | Q(title__in=names), knowledge_base=kb).order_by("-pk")
    documents = list(found.values_list("pk", "source", "title"))
    by_title = {title: pk for pk, _source, title in documents if title}
    return by_title | {source: pk for pk, source, _title in documents if source}


def _chunks(document_ids: set[int], rows: Sequence[Row]) -> dict[tuple[int | None, int], int]:
    if not any(row["chunk"] for row in rows):
        return {}
    found = Chunk.objects.filter(document__in=document_ids).values_list("document_id", "position", "pk")
    return {(document_id, position + 1): pk for document_id, position, pk in found}


def _position(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0


def _error(row: Row, triple: Triple) -> str:
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
