"""What an explained search understood of its query, and what the graph says of it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _

from kb.access.models import KnowledgeBase
from kb.search.admin.labels import listed, with_figure
from kb.search.services.search import SearchOutcome
from retrieval.analysis import MOST_NAMES_A_CONCEPT
from retrieval.highlight import highlight
from retrieval.postings import hash_terms
from retrieval.protocols import Tokenizer
from retrieval.types import Analysis, Candidate, Lexicon, Result

DECIMALS = 4


def shown_analysis(outcome: SearchOutcome, bases: Mapping[int, KnowledgeBase]) -> dict[str, Any]:
    """What the query was taken for; `rewritten_by` is blank where the text is the user's own."""
    analysis = outcome.result.analysis
    is_rewritten = any("rewritten" in span.detail for span in outcome.result.spans if span.stage == "analysis")
    concepts = {
        concept.concept_id: {
            "name": concept.name,
            "mention": "" if concept.mention == concept.name else concept.mention,
            "names": concept.names[:MOST_NAMES_A_CONCEPT],
            "kb_name": bases[concept.kb_id].name,
            "url": reverse("admin:kb_concept_change", args=[concept.concept_id]),
        }
        for query in analysis.queries
        for concept in query.concepts
    }
    return {
        "text": analysis.text,
        "rewritten_by": settings.LLM_MODEL if is_rewritten else "",
        "language": {"zh": _("Chinese"), "en": _("English")}.get(analysis.language, analysis.language),
        "intent": "" if analysis.intent == analysis.text else analysis.intent,
        "keywords": analysis.keywords,
        "concepts": list(concepts.values()),
        "sub_queries": [each.text for each in analysis.sub_queries],
        "terms": _terms(outcome.result, cutters(outcome)),
    }


def cutters(outcome: SearchOutcome) -> dict[int, Tokenizer]:
    """Each knowledge base's tokenizer, where there is one."""
    return {scope.kb_id: scope.tokenizer for scope in outcome.wiring.pipeline.scopes if scope.tokenizer}


def _terms(result: Result, tokenizers: Mapping[int, Tokenizer]) -> list[dict[str, Any]]:
    """The terms over all knowledge bases, each as the first one that has it makes it; those of other names come last.

    `origin` is the word of the query that a term was made from, where they differ.
    """
    held = {term for candidate in result.candidates for term in candidate.matched_terms}
    own: dict[str, dict[str, Any]] = {}
    other: dict[str, dict[str, Any]] = {}
    for kb_id, cutter in tokenizers.items():
        for term in result.analysis.terms(kb_id):
            if term not in own:
                words = [each.text for each in highlight(result.analysis.text, [term], cutter) if each.is_match]
                note = "" if term in held else _("no candidate holds it")
                own[term] = {
                    "text": term,
                    "origin": words[0] if words and words[0].casefold() != term else "",
                    "is_found": term in held,
                    "note": note,
                }
        for term in result.analysis.search_tokens(kb_id):
            note = _("in another name of a concept")
            if term not in held:
                note = _("in another name of a concept; no candidate holds it")
            other[term] = {"text": term, "is_other": True, "is_found": term in held, "note": note}
    return [*own.values(), *(each for term, each in other.items() if term not in own)]


def keyword_scores(result: Result) -> dict[int, dict[str, Any]]:
    """How the BM25 scores of all candidates add up, by chunk id, from one look into each knowledge base's index.

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
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each chunk's total, the sub-query that it is the score for, the terms that add most first, and those missing."""
    counts = [Counter(query.search_tokens(kb_id)) for query in analysis.queries]
    terms = tuple(dict.fromkeys(term for count in counts for term in count))
    if not terms or not candidates:
        return
    hashes, chunk_ids = hash_terms(terms), np.array([each.chunk_id for each in candidates], dtype=np.int64)
    idf = lexicon.idf(hashes)  # (n_terms,)
    frequencies = lexicon.frequencies(hashes, chunk_ids)  # (n_chunks, n_terms)
    contributions = lexicon.contributions(hashes, chunk_ids)  # (n_chunks, n_terms), of each term named once
    repeats = np.array([[count[term] for term in terms] for count in counts])
    totals = contributions @ repeats.T
    shown = np.array([each.scores.get("bm25", np.nan) for each in candidates])
    # A chunk that several queries have found has the score of the one that put it first.
    of_query = np.where(np.isnan(shown), totals.argmax(axis=1), np.abs(totals - shown[:, np.newaxis]).argmin(axis=1))
    for row, (candidate, query) in enumerate(zip(candidates, of_query.tolist(), strict=True)):
        if totals[row, query] <= 0:
            continue
        added = contributions[row] * repeats[query]
        order = [place for place in np.lexsort((-idf, -added)).tolist() if repeats[query, place]]
        held = [
            {
                "term": terms[place],
                "repeats": int(repeats[query, place]),
                "idf": f"{idf[place]:.{DECIMALS}f}",
                "frequency": int(frequencies[row, place]),
                "adds": f"{added[place]:.{DECIMALS}f}",
                "share": f"{100 * added[place] / added.sum():.1f}",
            }
            for place in order
            if added[place]
        ]
        yield (
            candidate.chunk_id,
            {
                "total": f"{totals[row, query]:.{DECIMALS}f}",
                "query": analysis.queries[query].text if query else "",
                "terms": held,
                "missing": listed(
                    with_figure(terms[place], f"{idf[place]:.{DECIMALS}f}") for place in order if not added[place]
                ),
            },
        )
