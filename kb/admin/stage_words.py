"""What the pages call the stages and channels of a search."""

from collections.abc import Mapping

from django.utils.translation import gettext as _

from retrieval.candidates import LEXICAL_SHARE
from retrieval.config import RetrievalConfig

CHANNELS = ("vector", "bm25", "question")
STAND_INS = ("fts", "lexical")


def stage_label(stage: str) -> str:
    return {
        "analysis": _("Analysis"),
        "channels": _("Channels"),
        "vector": _("Vector"),
        "bm25": _("BM25"),
        "question": _("Question"),
        "fts": _("Full text"),
        "lexical": _("N-grams"),
        "passages": _("Passages"),
        "dedupe": _("Deduplication"),
        "fusion": _("Fusion"),
        "fused": _("Fused"),
        "rerank": _("Rerank"),
        "gate": _("Gate"),
        "selection": _("Selection"),
        "facts": _("Graph facts"),
        "other": _("Other"),
    }.get(stage, stage)


def channel_weights(config: RetrievalConfig) -> Mapping[str, float]:
    """The weight of each channel under the fusion in force; a stand-in has that of the channel it stands in for."""
    if config.fusion == "weighted":
        vector, keyword = config.hybrid_vector_weight, config.hybrid_text_weight
    else:
        vector, keyword = config.vector_weight, config.keyword_weight
    return {
        "vector": vector,
        "bm25": keyword,
        "question": config.question_weight,
        "fts": keyword,
        "lexical": keyword * LEXICAL_SHARE,
    }


def fusion_in_words(config: RetrievalConfig) -> str:
    if config.fusion == "weighted":
        return _("weighted sum of min-max normalised scores")
    return _("RRF, k = %(k)d") % {"k": config.rrf_k}


def milliseconds(value: float) -> str:
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"
