import pytest

from retrieval.config import RetrievalConfig
from retrieval.errors import InvalidConfiguration


def test_candidates_have_a_floor_and_grow_with_top_k():
    assert RetrievalConfig(top_k=5).vector_candidates == 60
    assert RetrievalConfig(top_k=40).bm25_candidates == 120


def test_explicit_candidates_win():
    config = RetrievalConfig(top_k=5, vector_top_k=7, bm25_top_k=9)
    assert (config.vector_candidates, config.bm25_candidates) == (7, 9)


@pytest.mark.parametrize(
    ("field", "value"),
    [("top_k", 0), ("top_k", 201), ("rrf_k", 0), ("vector_weight", -0.1), ("score_threshold", 1.5), ("bm25_top_k", 0)],
)
def test_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(InvalidConfiguration) as caught:
        RetrievalConfig(**{field: value})
    assert caught.value.field == field


def test_weights_may_not_both_be_zero():
    with pytest.raises(InvalidConfiguration):
        RetrievalConfig(vector_weight=0, keyword_weight=0)


def test_a_reranker_is_named_once():
    with pytest.raises(InvalidConfiguration, match="named twice"):
        RetrievalConfig(rerankers=("overlap", "cosine", "overlap"))


def test_override_replaces_only_what_is_named():
    config = RetrievalConfig().override({"top_k": 9, "vector_weight": 1, "score_threshold": None})
    assert (config.top_k, config.vector_weight, config.keyword_weight) == (9, 1, 0.4)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"top_kk": 3}, "unknown setting 'top_kk'"),
        ({"top_k": "3"}, "expected int"),
        ({"top_k": True}, "expected int"),
        ({"top_k": None}, "expected int"),
        ({"use_rerank": 1}, "expected bool"),
        ({"score_threshold": "high"}, "expected float or null"),
    ],
)
def test_override_refuses_what_does_not_fit(overrides, said):
    with pytest.raises(InvalidConfiguration, match=said):
        RetrievalConfig().override(overrides)


def test_fingerprints_differ_exactly_when_settings_do():
    assert RetrievalConfig().fingerprint() == RetrievalConfig(top_k=5).fingerprint()
    assert RetrievalConfig().fingerprint() != RetrievalConfig(top_k=6).fingerprint()
