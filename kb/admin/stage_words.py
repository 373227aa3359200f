"""What the pages call the stages and channels of a search."""

from django.utils.translation import gettext as _

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


def fusion_in_words(config: RetrievalConfig) -> str:
    if config.fusion == "weighted":
        return _("weighted sum of min-max normalised scores")
    return _("RRF, k = %(k)d") % {"k": config.rrf_k}


def milliseconds(value: float) -> str:
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"
