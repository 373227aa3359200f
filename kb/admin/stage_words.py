"""What the pages call the stages and channels of a search."""

from collections.abc import Iterable, Mapping

from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from kb.models import Document
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


def source_caps(config: RetrievalConfig) -> Mapping[str, int]:
    """How many results each kind of source may have, where they are capped."""
    return {"book": config.max_books, "video": config.max_videos, "qa": config.max_qa, "web": config.max_web}


def source_label(kind: str) -> str:
    return str(dict(Document.SourceType.choices).get(kind, kind))


def with_figure(name: str, figure: object) -> str:
    """A name and its figure, as in "BM25 0.4"."""
    return _("%(name)s %(figure)s") % {"name": name, "figure": figure}


def listed(parts: Iterable[str]) -> str:
    """Parts of one sentence, one after the other."""
    return pgettext("between the members of a list", ", ").join(parts)
