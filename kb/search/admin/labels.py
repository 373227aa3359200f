"""What the pages call the stages and channels of a search."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.utils.text import capfirst
from django.utils.translation import gettext as _, gettext_lazy

from kb.access.models import KnowledgeBase
from kb.base.messages import shown
from kb.content.models import Document
from retrieval.config import RetrievalConfig
from retrieval.embedders.hashing import HASHING_MODEL_ID
from retrieval.errors import Degradation, DegradationCode
from retrieval.fusion import channel_weights
from retrieval.protocols import Scope

CHANNELS = ("vector", "bm25", "question", "question_bm25", "web", "external")
STAND_INS = ("fts", "lexical")


_STAGES = {
    "analysis": gettext_lazy("Analysis"),
    "channels": gettext_lazy("Channels"),
    "vector": gettext_lazy("Vector"),
    "bm25": gettext_lazy("BM25"),
    "characters": gettext_lazy("Characters"),
    "question": gettext_lazy("Question"),
    "question_bm25": gettext_lazy("Question BM25"),
    "web": gettext_lazy("Live sources"),
    "external": gettext_lazy("External sources"),
    "fts": gettext_lazy("Full text"),
    "lexical": gettext_lazy("N-grams"),
    "passages": gettext_lazy("Passages"),
    "dedupe": gettext_lazy("Deduplication"),
    "fusion": gettext_lazy("Fusion"),
    "fused": gettext_lazy("Fused"),
    "rerank": gettext_lazy("Rerank"),
    "order": gettext_lazy("Order"),
    "gate": gettext_lazy("Relevance threshold"),
    "selection": gettext_lazy("Selection"),
    "facts": gettext_lazy("Graph facts"),
    "other": gettext_lazy("Other"),
}


def stage_label(stage: str) -> str:
    kind, _colon, source = stage.partition(":")
    return source if source and kind in ("web", "external") else str(_STAGES.get(stage, stage))


_EXPLANATIONS = {
    "vector": gettext_lazy(
        "Cosine similarity of the vectors of query and chunk, at most 1: how near the embedding model finds their meanings."
    ),
    "bm25": gettext_lazy(
        "BM25 over words: the query’s words that the chunk holds, each the more the rarer it is and the more often it stands there."
    ),
    "characters": gettext_lazy(
        "BM25 over words, pairs of characters and single characters together, of every candidate: it finds what the tokenizer cuts "
        "into other words, and counts in the fusion in place of BM25."
    ),
    "question": gettext_lazy("Cosine similarity of the query to the nearest question that was added to the chunk."),
    "question_bm25": gettext_lazy("BM25 over words, of the questions that were added to the chunk."),
    "web": gettext_lazy("The score that the source gives, or 1 / rank where it gives none."),
    "external": gettext_lazy("The score that the source gives, or 1 / rank where it gives none."),
    "fts": gettext_lazy("PostgreSQL’s full text over the same words, where the keyword index could not answer."),
    "lexical": gettext_lazy(
        "Character n-grams that query and chunk share, where vectors are unavailable or words find too little."
    ),
    "fused": gettext_lazy("One order out of all channels, each with its weight, by the fusion in force."),
    "rerank": gettext_lazy(
        "How well the passage, or the best of its questions, fits the query, whatever other candidates there are:"
        " the score of the result, which is compared with the threshold."
    ),
    "order": gettext_lazy(
        "What results are ordered by: the relevance, to which the scale “word overlap” adds the agreement of the channels, so that "
        "results need not stand in the order of their scores."
    ),
}


def stage_explanation(stage: str) -> str:
    """What the score of a stage that ranks candidates says, in one sentence."""
    return str(_EXPLANATIONS[stage.partition(":")[0]])


def fusion_text(config: RetrievalConfig) -> str:
    weighted = _("weighted sum of min-max normalised scores")
    return weighted if config.fusion == "weighted" else _("RRF, k = %(k)d") % {"k": config.rrf_k}


def milliseconds(value: float) -> str:
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def source_label(kind: str) -> str:
    return str(dict(Document.SourceType.choices).get(kind, kind))


def with_figure(name: str, figure: object) -> str:
    return _("%(name)s %(figure)s") % {"name": name, "figure": figure}


def notices(
    degraded: Iterable[Degradation], scopes: Sequence[Scope], bases: Mapping[int, KnowledgeBase]
) -> list[dict[str, Any]]:
    """Degradations, grouped by code, in the order in which they were met.

    `details` has a sentence for each place it struck, with the remedy, in pieces, of which those between backticks are
    marked as code; `reasons` say what it means here.
    """
    details: dict[str, dict[str, None]] = {}  # each sentence once: two channels wait for one index
    for degradation in degraded:
        details.setdefault(str(degradation.code), {})[capfirst(shown(degradation.detail))] = None
    return [
        {
            "code": code,
            "heading": degradation_heading(code),
            "details": [
                tuple((piece, bool(index % 2)) for index, piece in enumerate(detail.split("`")) if piece)
                for detail in found
            ],
            "reasons": _reasons(code, scopes, bases),
        }
        for code, found in details.items()
    ]


def degradation_heading(code: str) -> str:
    """What a code means; one that this version does not know shows as it is written."""
    headings: Mapping[str, str] = {
        DegradationCode.BM25_INDEX_BUILDING: _("Searched without keywords: the keyword index is still being built"),
        DegradationCode.BM25_INDEX_OLD: _(
            "Searched by the words of passages only: the keyword index is of an older version"
        ),
        DegradationCode.BM25_DEPENDENCIES_MISSING: _("Searched without keywords: packages are missing"),
        DegradationCode.BM25_POSTINGS_OUTDATED: _("Searched without keywords: the keyword index is out of date"),
        DegradationCode.CHANNEL_FAILED: _("A channel failed"),
        DegradationCode.CHANNEL_TIMEOUT: _("A channel did not answer in time"),
        DegradationCode.EMBEDDER_FAILED: _("Searched without vectors: the model gave no usable vector"),
        DegradationCode.EMBEDDER_TIMEOUT: _("Searched without vectors: the model did not answer in time"),
        DegradationCode.EXTERNAL_LEFT_OUT: _("Searched without the live and external sources"),
        DegradationCode.EXTERNAL_NOT_CONFIGURED: _("A live or external source is not set up as it must be"),
        DegradationCode.EXTERNAL_BUSY: _("Too many searches wait for live and external sources"),
        DegradationCode.EXTERNAL_QUOTA: _("A live or external source has been asked too often"),
        DegradationCode.EXTERNAL_REFUSED: _("A live or external source does not let this server in"),
        DegradationCode.EXTERNAL_TIMEOUT: _("A live or external source did not answer in time"),
        DegradationCode.EXTERNAL_UNAVAILABLE: _("A live or external source is out of reach or failed"),
        DegradationCode.FACTS_FAILED: _("Searched without the facts of the graph"),
        DegradationCode.HASHING_EMBEDDER: _("Searched without an embedding model: vectors compare words, not meaning"),
        DegradationCode.LLM_NOT_CONFIGURED: _("No chat model is configured"),
        DegradationCode.LLM_STREAM_BROKEN: _("The chat model’s answer broke off"),
        DegradationCode.LLM_TIMEOUT: _("The chat model did not answer in time"),
        DegradationCode.LLM_UNAVAILABLE: _("The chat model is out of reach"),
        DegradationCode.LLM_UNUSABLE: _("The chat model’s answer was of no use"),
        DegradationCode.MODEL_CIRCUIT_OPEN: _("A model failed repeatedly and is left alone for a while"),
        DegradationCode.MODEL_UNAVAILABLE: _("Searched without vectors: the embedding model cannot be loaded"),
        DegradationCode.RERANKER_FAILED: _("A reranker failed: the next one in the chain was asked"),
        DegradationCode.RERANKER_TIMEOUT: _("A reranker was too slow: the next one in the chain was asked"),
        DegradationCode.RERANKER_UNAVAILABLE: _("A reranker is unavailable: the next one in the chain was asked"),
        DegradationCode.SHARED_CACHE_UNAVAILABLE: _("Searched without the shared cache"),
        DegradationCode.STORE_BEHIND: _("Searched in PostgreSQL: the store has many changes to take in"),
        DegradationCode.STORE_UNAVAILABLE: _("Searched in PostgreSQL: the store is out of reach or failed"),
        DegradationCode.THRESHOLD_NOT_APPLIED: _("The threshold was not applied: the scores are of another scale"),
    }
    return headings.get(code) or code.replace("_", " ").capitalize()


def _reasons(code: str, scopes: Sequence[Scope], bases: Mapping[int, KnowledgeBase]) -> tuple[str, ...]:
    if code != DegradationCode.HASHING_EMBEDDER:
        return ()
    reasons = [
        _(
            "The hashing embedder needs no model: its vectors tell which words and word parts two texts share. A question "
            "that is worded differently from the text is not found by it. At the usual weight it would push better keyword "
            "matches down, and so a knowledge base on it starts with a profile in which keywords lead."
        )
    ]
    for scope in scopes:
        if scope.space == HASHING_MODEL_ID:
            weights = channel_weights(scope.config)
            message = _("In “%(kb)s” this search weighed vectors %(vector)s and keywords %(keyword)s.")
            figures = {"vector": f"{weights['vector']:g}", "keyword": f"{weights['bm25']:g}"}
            reasons.append(message % {"kb": bases[scope.kb_id].name, **figures})
    return tuple(reasons)
