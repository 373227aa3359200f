"""What the pages call the stages and channels of a search."""

from collections.abc import Iterable, Mapping

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext

from kb.content.models.documents import Document
from retrieval.config import RetrievalConfig

CHANNELS = ("vector", "bm25", "question", "web", "external")
STAND_INS = ("fts", "lexical")


_STAGES = {
    "analysis": gettext_lazy("Analysis"),
    "channels": gettext_lazy("Channels"),
    "vector": gettext_lazy("Vector"),
    "bm25": gettext_lazy("BM25"),
    "question": gettext_lazy("Question"),
    "web": gettext_lazy("Live sources"),
    "external": gettext_lazy("External sources"),
    "fts": gettext_lazy("Full text"),
    "lexical": gettext_lazy("N-grams"),
    "passages": gettext_lazy("Passages"),
    "dedupe": gettext_lazy("Deduplication"),
    "fusion": gettext_lazy("Fusion"),
    "fused": gettext_lazy("Fused"),
    "rerank": gettext_lazy("Rerank"),
    "gate": gettext_lazy("Gate"),
    "selection": gettext_lazy("Selection"),
    "facts": gettext_lazy("Graph facts"),
    "other": gettext_lazy("Other"),
}


def stage_label(stage: str) -> str:
    kind, _colon, source = stage.partition(":")
    return source if source and kind in ("web", "external") else str(_STAGES.get(stage, stage))


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
