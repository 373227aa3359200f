"""Concepts and facts as a caller writes them, one at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase
from kb.base.db.transactions import lock_knowledge_bases
from kb.base.errors import Rejected
from kb.base.text import normalized_key
from kb.graph.models import Concept, ConceptTerm, GraphFact

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
