"""Rankings under settings that no search was made with, and what judgments choose among them."""

import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.config import RetrievalConfig
from retrieval.eval import fitting
from retrieval.eval.fitting import Found, Searches, choose, choose_out_of_fold, distance, folds_of, grid
from retrieval.eval.metrics import per_query
from retrieval.fusion import fuse
from retrieval.types import Passage, Ranking

WITH, WITHOUT = ("overlap", "cosine"), ()
CONFIG = RetrievalConfig(rerankers=WITH)
BALANCED = {"fusion": "weighted", "hybrid_vector_weight": 0.5, "hybrid_text_weight": 0.5}
TRIED = [{}, *grid(questions=False, rerankers=[WITH, WITHOUT])]
DEPTH = 20


def ranks_of(scores):
    return np.argsort(np.argsort(-scores)) + 1


def simulated(seed, count, *, vectors, keywords, words=None, candidates=40):
    """Queries of one relevant candidate, which each channel scores so many standard deviations above the others."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        relevant = int(rng.integers(candidates))

        def scored(lead, relevant=relevant):
            scores = rng.normal(size=candidates)
            scores[relevant] += lead
            return scores

        vector, bm25, held = scored(vectors), scored(keywords), scored(keywords if words is None else words)
        found.append(
            Found(
                chunk_ids=np.arange(candidates),
                ranks={"vector": ranks_of(vector), "bm25": ranks_of(bm25)},
                scores={"vector": vector, "bm25": bm25},
                covered=0.6 / (1 + np.exp(1 - held)),
                equal=np.zeros(candidates, dtype=np.bool_),
                units=[(str(place),) for place in range(candidates)],
                grades={str(relevant): 1},
            )
        )
    return found


class Fitted:
    """What queries choose from some present settings, and what that is worth on further queries like them."""

    def __init__(self, count, seed, present=None, **channels):
        self.configs = [CONFIG.override({**(present or {}), **tried}) for tried in TRIED]
        searches = Searches(simulated(seed, count, **channels))
        figures = np.array([searches.ndcg(config) for config in self.configs])
        distances = np.array([distance(config, self.configs[0], questions=False) for config in self.configs])
        self.config = self.configs[choose(figures, distances)]
        self.further = Searches(simulated(10**6, 1_000, **channels))

    @property
    def gain(self):
        return self.worth(self.config)

    @property
    def best_gain(self):
        """Of all settings that are tried."""
        return max(map(self.worth, self.configs))

    def worth(self, config):
        return (self.further.ndcg(config) - self.further.ndcg(self.configs[0])).mean()

    @property
    def vector_share(self):
        vector, keyword = (getattr(self.config, name) for name in fitting.WEIGHTS[self.config.fusion])
        return vector / (vector + keyword)


# -- The same rankings as a search ------------------------------------------------------------------------------------------
@st.composite
def rankings(draw):
    """Two channels that score every chunk, one of questions or none, and full text, which scores what it finds only."""
    count = draw(st.integers(1, 12))
    exact = st.lists(st.integers(-5, 5).map(float), min_size=count, max_size=count).map(np.array)
    ids = np.arange(count)
    made = []
    for channel in ["vector", "bm25", *draw(st.sets(st.sampled_from(["question", "fts"])))]:
        scores = draw(exact)
        best = np.lexsort((ids, -scores))[: draw(st.integers(0, count))]
        score = None if channel == "fts" else (lambda wanted, scores=scores: scores[wanted])
        made.append(Ranking(channel, 1, ids[best], scores[best], score=score))
    return made


settings = st.fixed_dictionaries(
    {
        "fusion": st.sampled_from(["rrf", "weighted"]),
        "vector_weight": st.integers(0, 4).map(float),
        "keyword_weight": st.integers(1, 4).map(float),
        "hybrid_vector_weight": st.integers(0, 4).map(float),
        "hybrid_text_weight": st.integers(1, 4).map(float),
        "question_weight": st.integers(0, 2).map(float),
    }
)


@given(rankings(), settings, st.sets(st.integers(0, 11), max_size=2))
def test_candidates_are_fused_as_a_search_fuses_them(channels, given_settings, equal):
    config = CONFIG.override(given_settings)
    union = np.unique(np.concatenate([each.chunk_ids for each in channels]))
    passages = {chunk_id: Passage(chunk_id, 1, 1, "", "", None, "") for chunk_id in union.tolist()}

    expected = fuse([SimpleNamespace(kb_id=1, config=config)], channels, passages, None, dict.fromkeys(equal, "?"))

    exact = {each.channel: each.score(union) for each in channels if each.score}
    for each in channels:
        if each.score is None:
            exact[each.channel] = np.full(union.size, np.nan)
            exact[each.channel][np.searchsorted(union, each.chunk_ids)] = each.scores
    ranks = {each.channel: np.zeros(union.size, dtype=np.int64) for each in channels}
    for each in channels:
        ranks[each.channel][np.searchsorted(union, each.chunk_ids)] = np.arange(1, each.chunk_ids.size + 1)
    asked = np.isin(union, list(equal))
    found = Found(union, ranks, exact, np.zeros(union.size), asked, [(str(each),) for each in union.tolist()], {"0": 1})
    scores, agreement = Searches([found]).fused(config)
    assert dict(zip(union.tolist(), scores[0].tolist(), strict=True)) == pytest.approx(
        {each.chunk_id: each.scores["fused"] for each in expected}
    )
    assert dict(zip(union.tolist(), agreement[0].tolist(), strict=True)) == pytest.approx(
        {each.chunk_id: each.agreement for each in expected}
    )
    # Those with the question come first, and ties go by chunk id
    fused = config.override({"rerankers": WITHOUT})
    assert Searches([found]).rankings(fused, DEPTH) == [[str(each.chunk_id) for each in expected]]


def test_only_so_many_candidates_are_reranked():
    found = simulated(1, 30, vectors=2, keywords=2)
    config = CONFIG.override({"rerank_candidates": 12, "top_k": 5})

    reranked, fused = (Searches(found).rankings(config.override({"rerankers": each}), 40) for each in (WITH, WITHOUT))

    assert [len(each) for each in reranked] == [12] * 30
    assert [set(each) for each in reranked] == [set(each) for each in fused]
    assert reranked != fused


units = st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3, unique=True), min_size=1, max_size=15)
grades = st.dictionaries(st.sampled_from("abcdefz"), st.integers(0, 3), min_size=1).filter(
    lambda each: any(each.values())
)


@given(st.lists(st.tuples(units, grades), min_size=1, max_size=4))
def test_the_measure_is_that_of_the_rankings(queries):
    """A passage counts once, where it stands first, and a chunk as all judged passages in it."""
    found = [
        Found(
            chunk_ids=np.arange(len(chunks)),
            ranks={"bm25": np.arange(1, len(chunks) + 1)},
            scores={"bm25": -np.arange(len(chunks), dtype=np.float64)},
            covered=np.zeros(len(chunks)),
            equal=np.zeros(len(chunks), dtype=np.bool_),
            units=chunks,
            grades=judged,
        )
        for chunks, judged in queries
    ]
    searches = Searches(found)

    rankings = searches.rankings(CONFIG, DEPTH)

    names = list(map(str, range(len(found))))
    figures = per_query(
        {name: each.grades for name, each in zip(names, found, strict=True)}, dict(zip(names, rankings, strict=True))
    )
    assert searches.ndcg(CONFIG).tolist() == pytest.approx([figures[name]["ndcg@10"] for name in names])
    assert rankings == [list(dict.fromkeys(unit for chunk in each.units for unit in chunk)) for each in found]


def test_the_best_score_of_a_query_that_finds_nothing_passes_no_gate():
    nothing = Found(np.empty(0, dtype=np.int64), {}, {}, np.empty(0), np.empty(0, dtype=np.bool_), [], {})
    (something,) = simulated(1, 1, vectors=2, keywords=2)

    best = Searches([nothing, something]).best(CONFIG)

    assert best[0] == -np.inf
    assert 0 < best[1] <= 1


def test_settings_are_tried_on_all_queries_at_once():
    """As many calls for 300 queries as for 3."""

    def calls(count):
        searches, counted = Searches(simulated(1, count, vectors=2, keywords=2)), Counter()
        sys.setprofile(lambda _frame, event, _argument: counted.update([event.removeprefix("c_")]))
        try:
            for tried in TRIED[:9]:
                searches.ndcg(CONFIG.override(tried))
        finally:
            sys.setprofile(None)
        return counted["call"]

    assert calls(300) == calls(3) > 0


# -- What is chosen ---------------------------------------------------------------------------------------------------------
def test_the_grid_holds_both_ends_of_every_weight():
    tried = list(grid(questions=True, rerankers=[WITH, WITHOUT]))

    for fusion, names in fitting.WEIGHTS.items():
        own = [each for each in tried if each["fusion"] == fusion]
        assert {each[name] for each in own for name in names} >= {0.0, 0.5, 1.0}
        assert {each["question_weight"] for each in own} >= {0.0, 0.4}
        assert {each["rerankers"] for each in own} == {WITH, WITHOUT}
    for each in tried:
        CONFIG.override(each)  # none is out of range
    assert not {"question_weight", "rerankers"} & {
        name for each in grid(questions=False, rerankers=()) for name in each
    }


def test_the_present_settings_are_no_distance_away_and_both_ends_one():
    ends = [CONFIG.override({"vector_weight": weight, "keyword_weight": 1 - weight}) for weight in (0.0, 1.0)]

    assert distance(CONFIG, CONFIG, questions=True) == 0
    assert distance(*ends, questions=True) == 1
    doubled = CONFIG.override({"vector_weight": 1.2, "keyword_weight": 0.8, "question_weight": 0.8})
    assert distance(CONFIG, doubled, questions=True) == pytest.approx(0)
    assert distance(CONFIG, CONFIG.override({"question_weight": 0.0}), questions=True) == pytest.approx(0.4)
    assert distance(CONFIG, CONFIG.override({"question_weight": 0.0}), questions=False) == 0
    assert distance(CONFIG, CONFIG.override({"fusion": "weighted", "rerankers": WITHOUT}), questions=False) > 1


@pytest.mark.parametrize(
    ("channels", "share"),
    [({"vectors": 0, "keywords": 3, "words": 0}, 0.0), ({"vectors": 3, "keywords": 0, "words": 0}, 1.0)],
)
def test_a_channel_that_harms_is_dropped(channels, share):
    fitted = Fitted(400, 1, **channels)

    assert fitted.vector_share == share
    assert fitted.gain > 0.03


def test_a_lexical_reranker_that_harms_is_dropped():
    fitted = Fitted(400, 1, BALANCED, vectors=2, keywords=2, words=0)

    assert fitted.config.rerankers == WITHOUT
    assert fitted.gain > 0.1


def test_one_that_helps_is_kept():
    assert Fitted(400, 1, BALANCED, vectors=2, keywords=2, words=4).config.rerankers == WITH


EQUAL = {"vectors": 2, "keywords": 2}  # the present settings, `BALANCED`, are within .001 of the best


@pytest.mark.parametrize("seed", range(8))
def test_twenty_queries_do_not_ruin_good_settings(seed):
    assert Fitted(20, seed, BALANCED, **EQUAL).gain > -0.04


def test_without_the_prior_they_would_lose_more(monkeypatch):
    with_prior = np.mean([Fitted(20, seed, BALANCED, **EQUAL).gain for seed in range(8)])
    monkeypatch.setattr(fitting, "PRIOR", 0.0)
    without = np.mean([Fitted(20, seed, BALANCED, **EQUAL).gain for seed in range(8)])

    assert without < with_prior - 0.005
    assert with_prior > -0.01


@pytest.mark.parametrize("seed", range(3))
def test_many_queries_find_what_is_best(seed):
    fitted = Fitted(400, seed, **EQUAL)

    assert fitted.best_gain > 0.04
    assert fitted.gain > 0.8 * fitted.best_gain


def test_a_fold_has_no_say_in_its_own_settings():
    """The second settings are better by far on the queries of the first fold, and worse on all others."""
    folds = folds_of(40, 4)
    figures = np.array([np.full(40, 0.5), np.where(folds == 0, 1.0, 0.45)])

    assert choose_out_of_fold(figures, np.zeros(2), folds).tolist() == [0, 1, 1, 1]


@given(st.integers(2, 60), st.integers(2, 20))
def test_folds_are_of_nearly_equal_sizes_and_the_same_each_time(count, number):
    folds = folds_of(count, number)

    sizes = np.bincount(folds, minlength=number)
    assert sizes.sum() == count
    assert sizes.max() - sizes.min() <= 1
    assert folds.tolist() == folds_of(count, number).tolist()
