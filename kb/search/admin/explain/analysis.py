"""What an explained search understood of its query, and what the graph says of it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _
from numpy.typing import NDArray

from kb.access.models import KnowledgeBase
from kb.search.admin.labels import listed, with_figure
from kb.search.services.search import SearchOutcome
from retrieval.analysis import MOST_NAMES_A_CONCEPT
from retrieval.highlight import highlight
from retrieval.postings import hash_terms
from retrieval.protocols import Tokenizer
from retrieval.types import Analysis, Candidate, Lexicon, Result


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
        language={"zh": _("Chinese"), "en": _("English")}.get(analysis.language, analysis.language),
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
            bases[fact.knowledge_base_id].name,
            reverse("admin:kb_chunk_change", args=[fact.chunk_id]) if fact.chunk_id else "",
        )
        for fact in result.facts
    )


def cutters(outcome: SearchOutcome) -> dict[int, Tokenizer]:
    """Each knowledge base's tokenizer, where there is one."""
    return {scope.kb_id: scope.tokenizer for scope in outcome.wiring.pipeline.scopes if scope.tokenizer}


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


DECIMALS = 4


@dataclass(frozen=True, slots=True)
class TermScore:
    """What one term adds.

    Attributes:
        repeats: how often the query holds it, and so how often it counts.
        frequency: how often the chunk holds it.
        share: of the score, in per cent.
    """

    term: str
    repeats: int
    idf: str
    frequency: int
    adds: str
    share: str


@dataclass(frozen=True, slots=True)
class KeywordScore:
    """A BM25 score, exact to the last digit shown.

    Attributes:
        query: the sub-query that it is the score for; blank for the query itself.
        terms: those that the chunk holds, the ones that add most first.
        missing: those that it lacks, each with its idf, the rarest first.
    """

    total: str
    query: str
    terms: tuple[TermScore, ...]
    missing: str


def keyword_scores(result: Result) -> dict[int, KeywordScore]:
    """The scores of all candidates by chunk id, from one look into each knowledge base's index.

    Those of a knowledge base whose keyword index has not answered are missing, and those without any term of the query.
    """
    return {
        chunk_id: score
        for kb_id, lexicon in result.lexicons.items()
        for chunk_id, score in _of_one_base(
            result.analysis, lexicon, [each for each in result.candidates if each.kb_id == kb_id], kb_id
        )
    }


def _of_one_base(
    analysis: Analysis, lexicon: Lexicon, candidates: Sequence[Candidate], kb_id: int
) -> Iterator[tuple[int, KeywordScore]]:
    counts = [Counter(query.search_tokens(kb_id)) for query in analysis.queries]
    terms = tuple(dict.fromkeys(term for count in counts for term in count))
    if not terms or not candidates:
        return
    table = _Table.of(lexicon, terms, np.array([each.chunk_id for each in candidates], dtype=np.int64))
    repeats = np.array([[count[term] for term in terms] for count in counts])
    totals = table.contributions @ repeats.T
    shown = np.array([each.scores.get("bm25", np.nan) for each in candidates])
    # A chunk that several queries have found has the score of the one that put it first.
    of_query = np.where(np.isnan(shown), totals.argmax(axis=1), np.abs(totals - shown[:, np.newaxis]).argmin(axis=1))
    for row, (candidate, query) in enumerate(zip(candidates, of_query.tolist(), strict=True)):
        if totals[row, query] > 0:
            words = analysis.queries[query].text if query else ""
            terms_held, missing = table.terms_of(row, repeats[query])
            yield candidate.chunk_id, KeywordScore(f"{totals[row, query]:.{DECIMALS}f}", words, terms_held, missing)


@dataclass(frozen=True, slots=True)
class _Table:
    """Term statistics of some chunks.

    Attributes:
        idf: shape (n_terms,).
        frequencies: how often each chunk holds each term, shape (n_chunks, n_terms).
        contributions: what each term, named once, adds to each score, shape (n_chunks, n_terms).
    """

    terms: tuple[str, ...]
    idf: NDArray[np.float64]
    frequencies: NDArray[np.uint32]
    contributions: NDArray[np.float64]

    @classmethod
    def of(cls, lexicon: Lexicon, terms: tuple[str, ...], chunk_ids: NDArray[np.int64]) -> "_Table":
        hashes = hash_terms(terms)
        return cls(
            terms,
            lexicon.idf(hashes),
            lexicon.frequencies(hashes, chunk_ids),
            lexicon.contributions(hashes, chunk_ids),
        )

    def terms_of(self, row: int, repeats: NDArray[Any]) -> tuple[tuple[TermScore, ...], str]:
        """What each term of a query adds to a chunk's score, and in words the terms that add nothing."""
        added = self.contributions[row] * repeats
        whole = added.sum()
        order = [place for place in np.lexsort((-self.idf, -added)).tolist() if repeats[place]]
        held = tuple(
            TermScore(
                self.terms[place],
                int(repeats[place]),
                f"{self.idf[place]:.{DECIMALS}f}",
                int(self.frequencies[row, place]),
                f"{added[place]:.{DECIMALS}f}",
                f"{100 * added[place] / whole:.1f}",
            )
            for place in order
            if added[place]
        )
        lacking = [place for place in order if not added[place]]
        return held, listed(with_figure(self.terms[place], f"{self.idf[place]:.{DECIMALS}f}") for place in lacking)
