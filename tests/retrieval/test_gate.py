import pytest
from hypothesis import given, strategies as st

from retrieval.config import RetrievalConfig
from retrieval.selection import (
    COSINE_CUT,
    OVERLAP_CUT,
    OVERLAP_HIGH,
    Cut,
    ScoreScale,
    borders,
    cut_for,
    default_cut,
    overlap_cut,
    overlap_high,
    relevance_label,
)


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
    assert cut_for(scale, config(), ScoreScale.CROSS_ENCODER).threshold == cut


def test_a_threshold_for_a_scale_that_cannot_answer_gives_way_to_the_default_of_the_one_that_does():
    cut = cut_for(ScoreScale.OVERLAP, config(0.9), ScoreScale.CROSS_ENCODER)
    assert cut == Cut(OVERLAP_CUT, refuses=False, replaced=True)


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


@pytest.mark.parametrize(
    ("scale", "chosen", "refuses"),
    [
        (ScoreScale.CROSS_ENCODER, {}, True),
        (ScoreScale.OVERLAP, {}, False),
        (ScoreScale.OVERLAP, {"overlap_threshold": 0.5}, True),
        (ScoreScale.OVERLAP, {"cosine_threshold": 0.5}, False),
        (ScoreScale.OVERLAP, {"threshold": 0.5}, True),
        (ScoreScale.COSINE, {}, False),
        (ScoreScale.COSINE, {"cosine_threshold": 0.5}, True),
    ],
)
def test_only_a_cut_that_was_chosen_for_the_scores_refuses(scale, chosen, refuses):
    assert cut_for(scale, config(**chosen), scale).refuses is refuses


def test_a_threshold_that_gives_way_to_a_scale_s_own_refuses_where_that_was_chosen():
    replaced = cut_for(ScoreScale.OVERLAP, config(0.9, overlap_threshold=0.5), ScoreScale.CROSS_ENCODER)
    assert replaced == Cut(0.5, refuses=True, replaced=True)


@pytest.mark.parametrize(("border", "most"), [(overlap_cut, OVERLAP_CUT), (overlap_high, OVERLAP_HIGH)])
def test_the_borders_of_overlap_fall_below_the_size_that_they_were_chosen_at(border, most):
    found = [border(chunk_count) for chunk_count in (0, 1, 10, 100, 559, 100_000)]
    assert found == sorted(found)
    assert found[0] == found[1] == found[2] < found[3] < most  # in a tiny one chance cannot get lower
    assert found[-2:] == [most, most]
    assert border(None) == most


@pytest.mark.parametrize(
    ("scale", "score", "label"),
    [
        (ScoreScale.CROSS_ENCODER, 0.8, "high"),
        (ScoreScale.CROSS_ENCODER, 0.79, "medium"),
        (ScoreScale.CROSS_ENCODER, 0.6, "medium"),
        (ScoreScale.CROSS_ENCODER, 0.59, "low"),
        (ScoreScale.COSINE, 0.75, "high"),
        (ScoreScale.COSINE, 0.5, "medium"),
        (ScoreScale.COSINE, -0.2, "low"),
        (ScoreScale.OVERLAP, 1.0, "high"),
        (ScoreScale.OVERLAP, 0.0, "low"),
        (ScoreScale.RRF, 0.03, None),
    ],
)
def test_a_score_has_the_label_of_its_scale(scale, score, label):
    assert relevance_label(scale, score) == label


@given(st.integers(0, 5_000))
def test_what_passes_the_built_in_cut_of_overlap_is_medium_at_least_and_what_does_not_is_low(chunk_count):
    medium, high = borders(ScoreScale.OVERLAP, chunk_count)
    assert medium == default_cut(ScoreScale.OVERLAP, config(), chunk_count) < high < 1
    labels = [relevance_label(ScoreScale.OVERLAP, score, chunk_count) for score in (medium - 0.001, medium, high)]
    assert labels == ["low", "medium", "high"]


def test_the_default_cut_of_cross_encoders_is_where_medium_begins():
    assert borders(ScoreScale.CROSS_ENCODER)[0] == default_cut(ScoreScale.CROSS_ENCODER, config())


def test_a_profile_s_cut_holds_at_every_size():
    assert default_cut(ScoreScale.OVERLAP, config(overlap_threshold=0.5), chunk_count=3) == 0.5
