"""Which of the candidates that passed the gate are results: so many in all, and of each kind of source so many.

Only scores with a meaning meet a threshold: each scale has its own default cut, and RRF sums have none. What lies below a
cut that nobody chose for these very scores is not refused, but given apart: the near misses.
"""

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from retrieval.config import RetrievalConfig
from retrieval.types import Candidate, CutBy, Relevance, Result

# The name, among a candidate's scores, of the one that a reranker gives and the gate compares with a cut, and of what
# results are ordered by, which may be more than it.
RELEVANCE = "rerank"
ORDER = "order"


class ScoreScale(StrEnum):
    CROSS_ENCODER = "cross_encoder"
    COSINE = "cosine"
    OVERLAP = "overlap"
    RRF = "rrf"


# The setting that holds the default cut of each scale; other scales have no meaning that a cut could have.
SETTING_OF_SCALE: Mapping[str, str] = {
    ScoreScale.CROSS_ENCODER: "similarity_threshold",
    ScoreScale.COSINE: "cosine_threshold",
    ScoreScale.OVERLAP: "overlap_threshold",
}

# Chosen on cmrc2018-reject with the hashing embedder, where it keeps 95.7 % of the queries that have an answer and lets 8.3 % of the
# others pass; docs/relevance-threshold.md has the curves. The best accidental match is the better the more chunks there are, so it
# falls by the slope with each e-fold of fewer chunks: to what keeps the first questions of somebody new, of 60 chunks.
OVERLAP_CUT, OVERLAP_CUT_SLOPE, OVERLAP_CUT_LEAST = 0.35, 0.118, 0.05
OVERLAP_CUT_CHUNKS = 559
# Where `high` begins, likewise: two of three answerable queries of that set reach it, and 2 % of the others.
OVERLAP_HIGH, OVERLAP_HIGH_SLOPE, OVERLAP_HIGH_LEAST = 0.5, 0.122, 0.2
# 0 lets everything pass: no cut was chosen for cosines, whose level differs from model to model.
COSINE_CUT = 0.0

# Where `medium` and `high` begin on the scales whose borders are the same in every knowledge base.
BORDERS: Mapping[str, tuple[float, float]] = {ScoreScale.CROSS_ENCODER: (0.6, 0.8), ScoreScale.COSINE: (0.5, 0.75)}

MOST_NEAR_MISSES = 3


@dataclass(frozen=True, slots=True)
class Cut:
    """The least score that passes; 0 lets everything pass."""

    threshold: float
    # What lies below is dropped: the cut was chosen for these scores, or the scale is one that means the same everywhere.
    refuses: bool = True
    # An explicit threshold was meant for another scale, and this scale's default applies instead.
    replaced: bool = False


def default_cut(scale: ScoreScale, config: RetrievalConfig, chunk_count: int | None = None) -> float:
    """The cut of a scale where nothing else is asked for; 0 for a scale without meaning.

    It is the configuration's or, where that has none, the calibrated one; overlap has a lower one in small knowledge
    bases: `chunk_count` is that of all together, where it is known.
    """
    if scale is ScoreScale.CROSS_ENCODER:
        return config.similarity_threshold
    if scale is ScoreScale.COSINE:
        return COSINE_CUT if config.cosine_threshold is None else config.cosine_threshold
    if scale is ScoreScale.OVERLAP:
        return overlap_cut(chunk_count) if config.overlap_threshold is None else config.overlap_threshold
    return 0.0


def overlap_cut(chunk_count: int | None) -> float:
    """The built-in cut of overlap, where `medium` begins."""
    return _of_size(OVERLAP_CUT, OVERLAP_CUT_SLOPE, OVERLAP_CUT_LEAST, chunk_count)


def overlap_high(chunk_count: int | None) -> float:
    """The score of overlap at which `high` begins."""
    return _of_size(OVERLAP_HIGH, OVERLAP_HIGH_SLOPE, OVERLAP_HIGH_LEAST, chunk_count)


def _of_size(score: float, slope: float, least: float, chunk_count: int | None) -> float:
    """A border of overlap, which falls with the logarithm of the chunks below the size it was chosen at, to the least."""
    if chunk_count is None or chunk_count >= OVERLAP_CUT_CHUNKS:
        return score
    return max(least, round(score - slope * math.log(OVERLAP_CUT_CHUNKS / max(chunk_count, 1)), 3))


def borders(scale: ScoreScale, chunk_count: int | None = None) -> tuple[float, float] | None:
    """The scores at which `medium` and `high` begin; None for a scale without meaning."""
    if scale is ScoreScale.OVERLAP:
        return overlap_cut(chunk_count), overlap_high(chunk_count)
    return BORDERS.get(scale)


def relevance_label(scale: ScoreScale, score: float, chunk_count: int | None = None) -> Relevance | None:
    """What a gated score says about a passage; None for a scale without meaning."""
    if (found := borders(scale, chunk_count)) is None:
        return None
    medium, high = found
    if score >= high:
        return Relevance.HIGH
    return Relevance.MEDIUM if score >= medium else Relevance.LOW


def cut_for(scale: ScoreScale, config: RetrievalConfig, meant_for: ScoreScale, chunk_count: int | None = None) -> Cut:
    """The cut that applies to the scores of a search.

    It is the configuration's `score_threshold` or, where that is None or meant for another scale, the scale's default.
    `meant_for` is the scale of the first reranker that is of use for the candidates. A default that nobody has set
    refuses nothing.
    """
    asked = config.score_threshold
    if asked is not None and (asked == 0 or (scale is meant_for and scale is not ScoreScale.RRF)):
        return Cut(asked)
    setting = SETTING_OF_SCALE.get(scale)
    refuses = setting is None or getattr(config, setting) is not None
    return Cut(default_cut(scale, config, chunk_count), refuses, replaced=asked is not None)


# The setting that caps the results of each kind of source; other kinds count as books.
CAPS = {"book": "max_books", "video": "max_videos", "qa": "max_qa", "web": "max_web"}
_OTHER_KINDS = "book"


def gated_stage(result: Result) -> str:
    """The name of the scores that meet the threshold."""
    if any(RELEVANCE in candidate.scores for candidate in result.candidates):
        return RELEVANCE
    return "vector" if result.score_scale == ScoreScale.COSINE else "fused"


def source_caps(config: RetrievalConfig) -> dict[str, int]:
    """How many results each kind of source may have, where they are capped."""
    return {kind: getattr(config, name) for kind, name in CAPS.items()}


def result_count(config: RetrievalConfig) -> int:
    """How many results a search gives at most: the fewest that any of its settings allows."""
    if config.general_retrieval:
        return min(config.general_final_count, config.rerank_top_k or config.top_k)
    most = sum(source_caps(config).values())
    return min(most, config.rerank_top_k or most)


def select(candidates: Sequence[Candidate], config: RetrievalConfig) -> list[Candidate]:
    """Marks the candidates that are too many, in their order, the best ones first.

    Of the chunks of one longer passage, which is given in their place, the best one stands for all; the others take no
    place in any count. A general search counts all alike. Otherwise each kind of source has its cap, and one beyond it
    takes no place in the count of all; kinds without a cap of their own share that of books.

    All candidates are returned: those cut here with `cut_by` "parent", "per_source" or "top_k", those cut before as
    they were.
    """
    caps = {} if config.general_retrieval else source_caps(config)
    left = result_count(config)
    taken: Counter[str] = Counter()
    parents: set[int] = set()
    marked = []
    for candidate in candidates:
        kind = candidate.passage.source_type if candidate.passage else _OTHER_KINDS
        parent = candidate.passage.parent_id if candidate.passage else None
        if kind not in caps:
            kind = _OTHER_KINDS
        if candidate.cut_by is not None:
            marked.append(candidate)
        elif parent in parents:
            marked.append(candidate._replace(cut_by=CutBy.PARENT))
        elif caps and taken[kind] >= caps[kind]:
            marked.append(candidate._replace(cut_by=CutBy.PER_SOURCE))
        elif left == 0:
            marked.append(candidate._replace(cut_by=CutBy.TOP_K))
        else:
            taken[kind] += 1
            left -= 1
            if parent is not None:
                parents.add(parent)
            marked.append(candidate)
    return marked


def with_near_misses(
    candidates: Sequence[Candidate], config: RetrievalConfig, stage: str, by_meaning: Container[int] = ()
) -> list[Candidate]:
    """Marks the best candidates that the gate cut, in their order: those that would be results too had they passed.

    `candidates` are those of `select`, `stage` is that of the score that was gated; one of 0 or less is no near miss, but
    for one of 0 among the first of a vector channel: `by_meaning` are the knowledge bases whose vectors compare meaning,
    which a paraphrase has without a word in common.
    """

    def is_near(each: Candidate) -> bool:
        is_first = each.kb_id in by_meaning and each.ranks.get("vector", math.inf) <= MOST_NEAR_MISSES
        return each.scores[stage] > 0 or (is_first and each.scores[stage] == 0)

    results = [each for each in candidates if each.cut_by is None]
    below = [each._replace(cut_by=None) for each in candidates if each.cut_by == CutBy.GATE and is_near(each)]
    selected = select([*results, *below], config)[len(results) :]
    near = {each.chunk_id for each in [each for each in selected if each.cut_by is None][:MOST_NEAR_MISSES]}
    return [each._replace(is_near_miss=True) if each.chunk_id in near else each for each in candidates]


def stands_for_parent(candidates: Sequence[Candidate], cut: Candidate) -> int | None:
    """The result for which another chunk of the same longer passage was cut."""
    parent = cut.passage.parent_id if cut.passage else None
    others = (each for each in candidates if each.cut_by is None and each.passage and each.passage.parent_id == parent)
    return next((each.chunk_id for each in others), None) if parent is not None else None
