import pytest

from retrieval.config import RetrievalConfig
from retrieval.selection import COSINE_CUT, OVERLAP_CUT, Cut, ScoreScale, cut_for, default_cut, overlap_cut


def config(threshold=None, **settings):
    return RetrievalConfig(score_threshold=threshold, **settings)


@pytest.mark.parametrize("scale", [scale for scale in ScoreScale if scale != ScoreScale.RRF])
def test_an_explicit_threshold_is_the_cut_of_the_scale_that_it_is_meant_for(scale):
    assert cut_for(scale, config(0.4), scale) == Cut(0.4)


@pytest.mark.parametrize("scale", list(ScoreScale))
def test_a_threshold_of_zero_lets_everything_pass_on_every_scale(scale):
    assert cut_for(scale, config(0.0), ScoreScale.CROSS_ENCODER) == Cut(0.0)


@pytest.mark.parametrize(
    ("scale", "cut"),
    [
        (ScoreScale.CROSS_ENCODER, 0.6),
        (ScoreScale.COSINE, COSINE_CUT),
        (ScoreScale.OVERLAP, OVERLAP_CUT),
        (ScoreScale.RRF, 0.0),
    ],
)
def test_without_a_threshold_the_default_of_the_scale_applies(scale, cut):
    assert cut_for(scale, config(), ScoreScale.CROSS_ENCODER) == Cut(cut)


def test_a_threshold_for_a_scale_that_cannot_answer_gives_way_to_the_default_of_the_one_that_does():
    cut = cut_for(ScoreScale.OVERLAP, config(0.9), ScoreScale.CROSS_ENCODER)
    assert cut == Cut(OVERLAP_CUT, replaced=True)


@pytest.mark.parametrize("threshold", [None, 0.0, 0.9])
def test_rrf_sums_never_meet_a_threshold(threshold):
    assert cut_for(ScoreScale.RRF, config(threshold), ScoreScale.RRF).threshold == 0.0


@pytest.mark.parametrize(
    ("field", "scale"),
    [
        ("similarity_threshold", ScoreScale.CROSS_ENCODER),
        ("cosine_threshold", ScoreScale.COSINE),
        ("overlap_threshold", ScoreScale.OVERLAP),
    ],
)
def test_a_profile_may_set_the_default_of_each_scale(field, scale):
    assert default_cut(scale, config(**{field: 0.123})) == 0.123


def test_the_cut_of_overlap_falls_below_the_size_that_it_was_chosen_at():
    cuts = [overlap_cut(chunk_count) for chunk_count in (0, 1, 10, 100, 559, 100_000)]
    assert cuts == sorted(cuts)
    assert cuts[0] == cuts[1] > 0.4
    assert cuts[-2:] == [OVERLAP_CUT, OVERLAP_CUT]
    assert overlap_cut(None) == OVERLAP_CUT


def test_a_profile_s_cut_holds_at_every_size():
    assert default_cut(ScoreScale.OVERLAP, config(overlap_threshold=0.5), chunk_count=3) == 0.5
