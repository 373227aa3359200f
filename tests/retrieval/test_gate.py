import pytest

from retrieval.gate import DEFAULT_CUTS, ScoreScale, cut_for


def test_an_explicit_threshold_is_the_cut():
    assert cut_for(ScoreScale.OVERLAP, 0.4) == 0.4


@pytest.mark.parametrize("scale", list(DEFAULT_CUTS))
def test_without_one_the_default_of_the_scale_applies(scale):
    assert cut_for(scale, None) == DEFAULT_CUTS[scale]


@pytest.mark.parametrize("threshold", [None, 0.9])
def test_rrf_sums_never_meet_a_threshold(threshold):
    assert cut_for(ScoreScale.RRF, threshold) == 0.0
