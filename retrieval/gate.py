"""Only calibrated scores meet a threshold: each scale has its own default cut, and RRF sums have none."""

from dataclasses import dataclass
from enum import StrEnum

from retrieval.config import RetrievalConfig


class ScoreScale(StrEnum):
    CROSS_ENCODER = "cross_encoder"
    COSINE = "cosine"
    OVERLAP = "overlap"
    RRF = "rrf"


# Chosen on every second query of cmrc2018-reject with the hashing embedder, where it keeps 92 % of the queries that have an
# answer and lets 9 % of the others pass; docs/relevance-gate.md has the curves, also on the other half.
OVERLAP_CUT = 0.61
# 0 lets everything pass: no cut was chosen for cosines, whose level differs from model to model.
COSINE_CUT = 0.0


@dataclass(frozen=True, slots=True)
class Cut:
    """The least score that passes; 0 lets everything pass.

    Attributes:
        replaced: an explicit threshold was meant for another scale, and this scale's default applies instead.
    """

    threshold: float
    replaced: bool = False


def default_cut(scale: ScoreScale, config: RetrievalConfig) -> float:
    """The cut of a scale where nothing else is asked for; 0 for a scale without meaning."""
    if scale is ScoreScale.CROSS_ENCODER:
        return config.similarity_threshold
    if scale is ScoreScale.COSINE:
        return COSINE_CUT if config.cosine_threshold is None else config.cosine_threshold
    if scale is ScoreScale.OVERLAP:
        return OVERLAP_CUT if config.overlap_threshold is None else config.overlap_threshold
    return 0.0


def cut_for(scale: ScoreScale, config: RetrievalConfig, meant_for: ScoreScale) -> Cut:
    """The cut that applies to the scores of a search.

    Args:
        scale: what the scores mean.
        config: whose `score_threshold` is None for the scale's default, 0 for no gate, or an explicit cut.
        meant_for: the scale of the explicit cut: that of the first reranker that is of use for the candidates.
    """
    if config.score_threshold is None:
        return Cut(default_cut(scale, config))
    if config.score_threshold == 0 or (scale is meant_for and scale is not ScoreScale.RRF):
        return Cut(config.score_threshold)
    return Cut(default_cut(scale, config), replaced=True)
