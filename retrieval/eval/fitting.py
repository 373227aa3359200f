"""Which fusion, weights and use of the lexical reranker judgments favour, without a search for each setting.

What the channels found for a query is scored exactly once; under any settings the rankings follow from that.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.config import RetrievalConfig
from retrieval.eval.metrics import SEED
from retrieval.fusion import QUESTION_CHANNELS, channel_weights, min_max
from retrieval.rerankers.chain import order_of
from retrieval.rerankers.overlap import OverlapReranker
from retrieval.selection import ScoreScale

Floats = NDArray[np.float64]

# The settings that hold the weights of vectors and keywords under each fusion.
WEIGHTS: Mapping[str, tuple[str, str]] = {
    "rrf": ("vector_weight", "keyword_weight"),
    "weighted": ("hybrid_vector_weight", "hybrid_text_weight"),
}
STEPS = 20  # of the share of vectors, from 0 to 1
QUESTION_WEIGHTS = (0.0, 0.2, 0.4, 0.8)  # beside weights of vectors and keywords that sum to 1
# Another fusion, or `overlap` instead of no reranker, is as far away as half of the weight moved from one channel to
# another.
OTHER_METHOD = 0.5
# What settings as far away as a whole weight moved have to gain, summed over the judged queries. The prior does not grow with
# the judgments, so that as a mean it is PRIOR / n: .1 of 20 queries, .0005 of 4,000.
PRIOR = 2.0
AT = 10
FITTED_TO = f"ndcg@{AT}"


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What the channels found for one query: each candidate once, ascending by its id, n in all.

    Attributes:
        chunk_ids: shape (n,).
        ranks: by channel that has answered, shape (n,), from 1; 0 where it did not find the candidate.
        scores: likewise, exact, NaN where the candidate has none.
        covered: what `overlap` scores each, shape (n,).
        equal: which have a question that the query equals, shape (n,): they come before all others.
        units: what each counts as among the judged.
        grades: of the units that are judged.
    """

    chunk_ids: NDArray[np.int64]
    ranks: Mapping[str, NDArray[np.integer[Any]]]
    scores: Mapping[str, Floats]
    covered: Floats
    equal: NDArray[np.bool_]
    units: Sequence[Sequence[str]]
    grades: Mapping[str, int]


class Searches:
    """Rankings of many queries under any settings, all of them at once; arrays have a query a row, padded at the end.

    What is fixed by the settings are those of the fusion, its weights, `rrf_k`, how many candidates are reranked, and
    whether `rerankers` names `overlap`.
    """

    def __init__(self, found: Sequence[Found]) -> None:
        widest = max((each.chunk_ids.size for each in found), default=0)
        deepest = max((len(units) for each in found for units in each.units), default=1)
        shape = (len(found), widest)
        channels = list(dict.fromkeys(channel for each in found for channel in each.ranks))
        self.is_candidate = np.zeros(shape, dtype=np.bool_)
        self.answered = {channel: np.array([channel in each.ranks for each in found]) for channel in channels}
        # Ranks and grades are small; scores stay exact, since rounding would make ties.
        self.ranks = {channel: np.zeros(shape, dtype=np.int16) for channel in channels}
        self.normalised = {channel: np.full(shape, np.nan) for channel in channels}
        self.covered = np.zeros(shape)
        self.equal = np.zeros(shape, dtype=np.bool_)
        self.units = np.full((*shape, deepest), -1, dtype=np.int32)
        self.gains = np.zeros((*shape, deepest), dtype=np.int16)
        self.ideal = np.array([_ideal(each.grades) for each in found])
        self.names: list[list[str]] = []
        self.grades = [each.grades for each in found]
        for row, each in enumerate(found):
            own = slice(each.chunk_ids.size)
            self.is_candidate[row, own] = True
            self.covered[row, own] = each.covered
            self.equal[row, own] = each.equal
            for channel, ranks in each.ranks.items():
                self.ranks[channel][row, own] = ranks
                self.normalised[channel][row, own] = each.scores[channel]
            numbers: dict[str, int] = {}
            for place, units in enumerate(each.units):
                for at, unit in enumerate(units):
                    self.units[row, place, at] = numbers.setdefault(unit, len(numbers))
                    self.gains[row, place, at] = each.grades.get(unit, 0)
            self.names.append(list(numbers))
        self.normalised = {channel: min_max(scores) for channel, scores in self.normalised.items()}

    def fused(self, config: RetrievalConfig) -> tuple[Floats, Floats]:
        """The score that `retrieval.fusion` gives each candidate, and that as a share of the best possible one."""
        weights = {channel: channel_weights(config)[channel] for channel in self.ranks}
        scores = np.zeros(self.is_candidate.shape)
        if config.fusion == "weighted":
            total = self._sum(weights)
            for channel, weight in weights.items():
                share = np.divide(weight, total, out=np.zeros_like(total), where=total > 0) * self.answered[channel]
                scores += share[:, np.newaxis] * self.normalised[channel]
            scores = np.minimum(scores, 1.0)
            knowing = self._sum({each: weight for each, weight in weights.items() if each not in QUESTION_CHANNELS})
            best = np.divide(knowing, total, out=np.zeros_like(total), where=total > 0)
            return scores, np.minimum(1.0, scores / np.where(best > 0, best, 1.0)[:, np.newaxis])
        for channel, weight in weights.items():
            ranks = self.ranks[channel].astype(np.float64)
            scores += np.divide(weight, config.rrf_k + ranks, out=np.zeros_like(ranks), where=ranks > 0)
        agreeing = self._sum(
            {channel: weight for channel, weight in weights.items() if channel not in QUESTION_CHANNELS}
        )
        best = np.where(agreeing > 0, agreeing, self._sum(weights)) / (config.rrf_k + 1)
        return scores, np.minimum(1.0, scores / np.where(best > 0, best, 1.0)[:, np.newaxis])

    def _sum(self, weights: Mapping[str, float]) -> Floats:
        """The sum of the weights of the channels that have answered, shape (n_queries,)."""
        total = np.zeros(len(self.is_candidate))
        for channel, weight in weights.items():
            total += weight * self.answered[channel]
        return total

    def ranked(self, config: RetrievalConfig) -> tuple[NDArray[np.int64], Floats]:
        """The places of the candidates of each query that are reranked, best first, and their last scores.

        Both of shape (n_queries, at most the number that is reranked); padding scores minus infinity.
        """
        fused, agreement = self.fused(config)
        fused = np.where(self.is_candidate, fused, -np.inf)
        # As in a search: first what has the query as its question, and ties go by chunk id, by which candidates ascend.
        places = np.lexsort((-fused, ~self.equal))[:, : max(config.rerank_candidates, config.top_k)]
        scores = np.take_along_axis(fused, places, axis=1)
        if OverlapReranker.name not in config.rerankers:
            return places, scores
        parts = (np.take_along_axis(each, places, axis=1) for each in (self.covered, agreement))
        ordered_by = np.where(np.take_along_axis(self.equal, places, axis=1), 1.0, order_of(ScoreScale.OVERLAP, *parts))
        scores = np.where(np.isfinite(scores), ordered_by, -np.inf)
        order = np.argsort(-scores, axis=1, kind="stable")
        return np.take_along_axis(places, order, axis=1), np.take_along_axis(scores, order, axis=1)

    def _counted(self, config: RetrievalConfig) -> tuple[NDArray[np.int32], NDArray[np.int16], NDArray[np.bool_]]:
        """The judged units in the order of `ranked`, their grades, and which count: each where it stands first."""
        places, _scores = self.ranked(config)
        shape, taken = (len(places), -1), places[..., np.newaxis]
        units = np.take_along_axis(self.units, taken, axis=1).reshape(shape)
        gains = np.take_along_axis(self.gains, taken, axis=1).reshape(shape)
        order = np.argsort(units, axis=1, kind="stable")
        ordered = np.take_along_axis(units, order, axis=1)
        is_first = np.ones(units.shape, dtype=np.bool_)
        np.put_along_axis(is_first, order[:, 1:], ordered[:, 1:] != ordered[:, :-1], axis=1)
        return units, gains, is_first & (units >= 0)

    def ndcg(self, config: RetrievalConfig) -> Floats:
        """NDCG@10 of each query as trec_eval has it, shape (n_queries,)."""
        _units, gains, counts = self._counted(config)
        ranks = np.cumsum(counts, axis=1)
        counts &= ranks <= AT
        figures: Floats = (gains * counts / np.log2(ranks + 1 + ~counts)).sum(axis=1) / self.ideal
        return figures

    def rankings(self, config: RetrievalConfig, depth: int) -> list[list[str]]:
        """The judged units of each query, best first, at most `depth`."""
        units, _gains, counts = self._counted(config)
        return [
            [names[unit] for unit in row[mask][:depth].tolist()]
            for names, row, mask in zip(self.names, units, counts, strict=True)
        ]

    def best(self, config: RetrievalConfig) -> Floats:
        """The highest score of `overlap` in each query, minus infinity where nothing was found."""
        places, scores = self.ranked(config)
        covered = np.where(np.isfinite(scores), np.take_along_axis(self.covered, places, axis=1), -np.inf)
        best: Floats = covered.max(axis=1, initial=-np.inf)
        return best


def _ideal(grades: Mapping[str, int]) -> float:
    best = sorted((grade for grade in grades.values() if grade > 0), reverse=True)[:AT]
    return float(sum(grade / np.log2(rank + 1) for rank, grade in enumerate(best, start=1)))


def grid(*, questions: bool, rerankers: Sequence[tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    """The settings that are tried: both fusions, each with all of the weight on either channel, on none and in between.

    `questions`: whether the knowledge base has a channel of questions; `rerankers`: the chains to choose from, of which
    one names the lexical reranker; none where the chain stays as it is.
    """
    for fusion, (vector, keyword) in WEIGHTS.items():
        for step in range(STEPS + 1):
            for question in QUESTION_WEIGHTS if questions else (None,):
                for chain in rerankers or (None,):
                    settings = {vector: step / STEPS, keyword: (STEPS - step) / STEPS}
                    optional = {"question_weight": question, "rerankers": chain}
                    yield {
                        "fusion": fusion,
                        **settings,
                        **{name: value for name, value in optional.items() if value is not None},
                    }


def distance(config: RetrievalConfig, present: RetrievalConfig, *, questions: bool) -> float:
    """How far settings are from the present ones: 1 for all of the weight moved from one channel to the other."""
    (share, question), (share_now, question_now) = _shares(config), _shares(present)
    moved = abs(share - share_now) + (abs(question - question_now) if questions else 0.0)
    lexical = {OverlapReranker.name in each.rerankers for each in (config, present)}
    others = (config.fusion != present.fusion) + (len(lexical) > 1)
    return moved + OTHER_METHOD * others


def _shares(config: RetrievalConfig) -> tuple[float, float]:
    """The weights of vectors and of questions, as shares of those of vectors and keywords together."""
    vector, keyword = (getattr(config, name) for name in WEIGHTS[config.fusion])
    return vector / (vector + keyword), config.question_weight / (vector + keyword)


def choose(figures: Floats, distances: Floats) -> int:
    """The settings whose mean figure, less what their distance costs, is the highest; the first of equals.

    Figures have settings a row and queries a column. The cost, PRIOR x distance / n_queries, is what a prior of a fixed weight
    is beside n queries, as in a maximum a posteriori estimate (Murphy, "Machine Learning", 2012, section 5.2.1).
    """
    return int(np.argmax(figures.mean(axis=1) - PRIOR * distances / figures.shape[1]))


def folds_of(count: int, folds: int) -> NDArray[np.int64]:
    """The fold of each of `count` queries, from 0, by chance and of nearly equal sizes; the same each time."""
    return np.random.default_rng(SEED).permutation(np.arange(count) % folds)


def choose_out_of_fold(figures: Floats, distances: Floats, folds: NDArray[np.int64]) -> NDArray[np.int64]:
    """The settings that the queries of all other folds choose, for each fold; shape (n_folds,)."""
    return np.array([choose(figures[:, folds != fold], distances) for fold in range(int(folds.max()) + 1)])
