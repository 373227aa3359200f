"""Only calibrated scores meet a threshold: each scale has its own default cut, and RRF sums have none."""

from enum import StrEnum


class ScoreScale(StrEnum):
    CROSS_ENCODER = "cross_encoder"
    COSINE = "cosine"
    OVERLAP = "overlap"
    RRF = "rrf"


# 0 lets everything pass: a cut is only set for a scale once it has been chosen on judged data.
DEFAULT_CUTS = {ScoreScale.COSINE: 0.0, ScoreScale.OVERLAP: 0.0}


def cut_for(scale: ScoreScale, threshold: float | None) -> float:
    """The cut that applies to scores of a scale.

    Args:
        scale: what the scores mean.
        threshold: an explicit cut; None asks for the default of the scale.

    Returns:
        The least score that passes; 0 lets everything pass, and is the answer for a scale without meaning.
    """
    if scale not in DEFAULT_CUTS:
        return 0.0
    return DEFAULT_CUTS[scale] if threshold is None else threshold
