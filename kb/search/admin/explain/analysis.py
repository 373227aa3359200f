"""What an explained search understood of its query, and what the graph says of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _

from kb.access.models.knowledge import KnowledgeBase
from kb.search.services.search import SearchOutcome
from retrieval.analysis import MOST_NAMES_A_CONCEPT
from retrieval.highlight import highlight
from retrieval.protocols import Tokenizer
from retrieval.types import Result


@dataclass(frozen=True, slots=True)
class Term:
    """A term that was searched for.

    Attributes:
        origin: the word of the query that it was made from, where they differ.
        is_found: a candidate holds it.
        is_other: it stands in another name of a concept only, not in the query.
    """

    text: str
    origin: str
    is_found: bool
    is_other: bool = False

    @property
    def note(self) -> str:
        if self.is_other and not self.is_found:
            return _("in another name of a concept; no candidate holds it")
        if self.is_other:
            return _("in another name of a concept")
        return "" if self.is_found else _("no candidate holds it")


@dataclass(frozen=True, slots=True)
class ShownConcept:
    """A concept that the query names; `names` are the other ones that were searched for."""

    name: str
    mention: str
    names: tuple[str, ...]
    kb_name: str
    url: str


@dataclass(frozen=True, slots=True)
class ShownAnalysis:
    """What the query was taken for.

    Attributes:
        text: as it was searched for.
        rewritten_by: the language model that has written the text; blank where it is the user's own.
    """

    text: str
    rewritten_by: str
    language: str
    intent: str
    keywords: tuple[str, ...]
    concepts: tuple[ShownConcept, ...]
    sub_queries: tuple[str, ...]
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class ShownFact:
    """A fact of the graph; `url` is that of the chunk it was taken from, or blank."""

    subject: str
    predicate: str
    object: str
    kb_name: str
    url: str


def shown_analysis(outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase]) -> ShownAnalysis:
    analysis = outcome.result.analysis
    is_rewritten = any("rewritten" in span.detail for span in outcome.result.spans if span.stage == "analysis")
    concepts = {
        concept.concept_id: ShownConcept(
            concept.name,
            "" if concept.mention == concept.name else concept.mention,
            concept.names[:MOST_NAMES_A_CONCEPT],
            bases[concept.kb_id].name,
            reverse("admin:kb_concept_change", args=[concept.concept_id]),
        )
        for query in analysis.queries
        for concept in query.concepts
    }
    return ShownAnalysis(
        text=analysis.text,
        rewritten_by=settings.LLM_MODEL if is_rewritten else "",
        language=language_in_words(analysis.language),
        intent="" if analysis.intent == analysis.text else analysis.intent,
        keywords=analysis.keywords,
        concepts=tuple(concepts.values()),
        sub_queries=tuple(each.text for each in analysis.sub_queries),
        terms=_terms(outcome.result, cutters(outcome)),
    )


def shown_facts(result: Result, bases: Mapping[int, KnowledgeBase]) -> tuple[ShownFact, ...]:
    return tuple(
        ShownFact(
            fact.subject,
            fact.predicate,
            fact.object,
            bases[fact.kb_id].name,
            reverse("admin:kb_chunk_change", args=[fact.chunk_id]) if fact.chunk_id else "",
        )
        for fact in result.facts
    )


def cutters(outcome: SearchOutcome) -> dict[int, Tokenizer]:
    """Each knowledge base's tokenizer, where there is one."""
    return {scope.kb_id: scope.tokenizer for scope in outcome.wiring.pipeline.scopes if scope.tokenizer}


def language_in_words(language: str) -> str:
    return {"zh": _("Chinese"), "en": _("English")}.get(language, language)


def _terms(result: Result, tokenizers: Mapping[int, Tokenizer]) -> tuple[Term, ...]:
    """The terms over all knowledge bases, each as the first one that has it makes it; those of other names come last."""
    held = {term for candidate in result.candidates for term in candidate.matched_terms}
    own: dict[str, Term] = {}
    other: dict[str, Term] = {}
    for kb_id, cutter in tokenizers.items():
        for term in result.analysis.terms(kb_id):
            if term not in own:
                own[term] = Term(term, _origin(result.analysis.text, term, cutter), term in held)
        for term in result.analysis.search_tokens(kb_id):
            other.setdefault(term, Term(term, "", term in held, is_other=True))
    return (*own.values(), *(term for text, term in other.items() if text not in own))


def _origin(query: str, term: str, cutter: Tokenizer) -> str:
    words = [segment.text for segment in highlight(query, [term], cutter) if segment.is_match]
    return words[0] if words and words[0].casefold() != term else ""
