"""Concepts from a file, with their wider ones and synonyms; one that is known by its name is added to."""

from collections.abc import Callable, Mapping, Sequence

from django.utils.translation import gettext as _

from kb.access.models.knowledge import KnowledgeBase
from kb.base.text import normalized_key
from kb.graph.models import Concept, ConceptTerm
from kb.graph.services.entities import NAME_CHARACTERS
from kb.graph.services.import_plan import Effect, PlannedRow
from kb.graph.services.tables import Row


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
        error = _error(row, named, wider, leads=key in wide)
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
    return planned, lambda: _apply(kb, taken, concepts)


def _apply(kb: KnowledgeBase, rows: Sequence[Row], concepts: dict[str, Concept]) -> None:
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


def _error(row: Row, named: set[str], wider: Mapping[str, str], *, leads: bool) -> str:
    """What is wrong with a row; `leads` where another concept is narrower than its own, without which there is no circle."""
    texts = [row["name"], *row.listed("synonyms")]
    if not all(map(normalized_key, texts)):
        return _("The name is missing.")
    if any(len(text) > NAME_CHARACTERS or "\0" in text for text in texts):
        return _("A name has %(most)d characters at most: shorten it.") % {"most": NAME_CHARACTERS}
    parent = normalized_key(row["parent"])
    if parent and parent not in named:
        message = _("The wider concept “%(name)s” is neither in the file nor in the knowledge base.")
        return message % {"name": row["parent"][:100]}
    if parent == normalized_key(row["name"]):
        return _("“%(name)s” is narrower than this concept: choose another one.") % {"name": row["parent"][:100]}
    key, met = parent if leads else "", set()
    while key and key not in met:
        if key == normalized_key(row["name"]):
            return _("“%(name)s” is narrower than this concept: choose another one.") % {"name": row["parent"][:100]}
        met.add(key)
        key = wider.get(key, "")
    return ""
