"""Where to cut the gate by the judged scores of an evaluation run, and a draft profile that cuts there."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from django.utils.translation import gettext as _
from numpy.typing import NDArray
from typing_extensions import Doc

from kb.access.models import Principal
from kb.base.errors import Rejected
from kb.content.models import Chunk
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import configuration_of, scorer_text
from kb.quality.models import EvalRun, EvalRunQuery
from kb.quality.profiles.services import save_draft
from kb.quality.runs.services.report import require_done
from retrieval.config import RetrievalConfig
from retrieval.eval.calibration import (
    Cut,
    cut_curve,
    cut_that_keeps,
    cut_that_refuses,
    figures_at,
    histogram,
    kept_at_least,
    queries_needed,
    suggest_cut,
)
from retrieval.selection import SETTING_OF_SCALE, ScoreScale, default_cut

BINS = 20
CURVE_POINTS = 101
SHARE = 0.95
LEAST_SHARE, MOST_SHARE = 0.01, 0.999
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GateCut(Cut):
    """What a cut does to the judged results of a run, and to its queries, which pass where any of their results does."""

    kept: Annotated[float, Doc("Share of the queries with an answer that pass: `answerable_kept` of a run.")]
    kept_at_least: Annotated[
        float, Doc("Its lower bound for further queries like these, with 95 % confidence (Clopper-Pearson).")
    ]
    passed: Annotated[float | None, Doc("Share of the queries without an answer that pass; null: there are none.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The scores of a run before the gate, and where to cut: the answer to GET /api/v1/eval-runs/{id}/calibration/."""

    score_scale: ScoreScale
    setting: Annotated[str, Doc("That holds the cut of this scale.")]
    share: Annotated[float, Doc("Of the queries with an answer that `keeps` is to keep.")]
    answerable_count: Annotated[int, Doc("Queries with an answer, by which `keeps` is chosen.")]
    answerable_needed: Annotated[int, Doc("The fewest by which that share can be promised.")]
    nothing_found: Annotated[int, Doc("Queries with an answer that found nothing, which no cut keeps.")]
    unanswerable_count: int
    current: Annotated[GateCut, Doc("The cut in force under the run’s profile.")]
    keeps: Annotated[
        GateCut | None,
        Doc(
            "The largest cut that keeps the next query with an answer with a probability of at least `share` (split "
            "conformal prediction); null: the queries are too few, or too many of them found nothing."
        ),
    ]
    refuses: Annotated[
        GateCut | None,
        Doc("The least cut that no query without an answer passes; null: there are none, or one scores 1."),
    ]
    best_f1: Annotated[GateCut | None, Doc("The cut of the highest F1; null where nothing is to be rejected.")]
    bins: Annotated[tuple[float, ...], Doc("Edges, one more than there are counts.")]
    relevant: Annotated[tuple[int, ...], Doc("Histogram of relevant results.")]
    irrelevant: tuple[int, ...]
    unanswerable: Annotated[tuple[int, ...], Doc("Of the best score of each query without an answer.")]
    curve: tuple[Cut, ...]
    left_out: Annotated[int, Doc("Queries whose scores are of another scale.")]


@dataclass(frozen=True, slots=True)
class Scores:
    """Those of one run before the gate, each array of shape (n,).

    Attributes:
        scale: that most queries were scored on.
        relevant: of results that are judged relevant.
        irrelevant: of other judged results of queries with an answer.
        answerable: the best score of each query with an answer, from 0; minus infinity where nothing was found.
        unanswerable: of each query without one, likewise.
        left_out: how many queries were scored on another scale.
    """

    scale: ScoreScale
    relevant: Array
    irrelevant: Array
    answerable: Array
    unanswerable: Array
    left_out: int

    @property
    def to_reject(self) -> Array:
        return np.concatenate([self.irrelevant, self.unanswerable[np.isfinite(self.unanswerable)]])

    def at(self, cut: float) -> GateCut:
        kept, count = int((self.answerable >= cut).sum()), self.answerable.size
        return GateCut(
            **asdict(figures_at(cut, self.relevant, self.to_reject)),
            kept=kept / count,
            kept_at_least=kept_at_least(kept, count),
            passed=float((self.unanswerable >= cut).mean()) if self.unanswerable.size else None,
        )


def calibrate(run: EvalRun, share: float = SHARE) -> Calibration:
    """What the scores of a run that the caller may see say of the cut; `share` is that of `Calibration`.

    Results that no reranker was given are not counted, nor relevant ones that no channel found: the gate loses neither.
    Raises `Rejected` where the run is not done, or has no judged score on a scale that is gated, and for a share out of
    range.
    """
    if not LEAST_SHARE <= share <= MOST_SHARE:
        message = _("No threshold can be chosen for this share: give one from %(least)s %% to %(most)s %%.")
        raise Rejected("share_out_of_range", message, least=f"{100 * LEAST_SHARE:g}", most=f"{100 * MOST_SHARE:g}")
    scores = _scores(run)
    suggestion = suggest_cut(scores.relevant, scores.to_reject)
    cuts = {
        "keeps": cut_that_keeps(share, scores.answerable),
        "refuses": cut_that_refuses(scores.unanswerable),
        "best_f1": suggestion.cut if suggestion else None,
    }
    # Rounded, so that a score of .3 is in the bin that begins at .3.
    edges, along = (np.linspace(0.0, 1.0, count).round(4) for count in (BINS + 1, CURVE_POINTS))
    return Calibration(
        score_scale=scores.scale,
        setting=SETTING_OF_SCALE[scores.scale],
        share=share,
        answerable_count=scores.answerable.size,
        answerable_needed=queries_needed(share),
        nothing_found=int(np.isinf(scores.answerable).sum()),
        unanswerable_count=scores.unanswerable.size,
        current=scores.at(_current_cut(run, scores.scale, configuration_of(_settings(run)))),
        **{name: None if cut is None else scores.at(cut) for name, cut in cuts.items()},
        bins=tuple(edges.tolist()),
        relevant=tuple(histogram(scores.relevant, edges)),
        irrelevant=tuple(histogram(scores.irrelevant, edges)),
        unanswerable=tuple(histogram(scores.unanswerable[np.isfinite(scores.unanswerable)], edges)),
        curve=tuple(cut_curve(along, scores.relevant, scores.to_reject)),
        left_out=scores.left_out,
    )


def save_cut(
    principal: Principal, run: EvalRun, *, cut: float, name: str = "", confirm_shared: bool = False
) -> RetrievalProfile:
    """Saves a cut, of the run's scale, 0 to 1, over the settings that a run was made under, as a draft.

    The run comes with its set, knowledge base and profile. Where the draft goes is as `save_draft` has it, for the run's
    profile and knowledge base. Raises as `calibrate` and `save_draft`.
    """
    scores = _scores(run)
    settings = {key: value for key, value in _settings(run).items() if key != "score_threshold"}
    settings[SETTING_OF_SCALE[scores.scale]] = cut
    if configuration_of(settings).score_threshold is not None:
        settings["score_threshold"] = None  # the environment's would win over the cut of the scale
    words = _(
        "Threshold of %(scale)s at %(cut)s, by run %(run)d over “%(set)s”: keeps %(kept).1f %% of %(count)d "
        "queries that have an answer."
    )
    values = {"scale": scorer_text(scores.scale), "cut": f"{cut:g}", "run": run.pk, "set": run.eval_set.name}
    return save_draft(
        principal,
        run.eval_set.knowledge_base,
        run.profile,
        settings,
        description=words % {**values, "kept": 100 * scores.at(cut).kept, "count": scores.answerable.size},
        name=name,
        confirm_shared=confirm_shared,
    )


def _settings(run: EvalRun) -> Mapping[str, Any]:
    return {**run.profile.settings, **run.overrides}


def _current_cut(run: EvalRun, scale: ScoreScale, config: RetrievalConfig) -> float:
    """That of a search under the profile; a run itself has no gate."""
    if config.score_threshold is not None:
        return config.score_threshold
    gate = run.report.get("gate") or {}
    if gate.get("scale") == scale.value:
        return float(gate["cut"])
    return default_cut(
        scale, config, Chunk.objects.filter(knowledge_base=run.eval_set.knowledge_base_id, enabled=True).count()
    )


def _scores(run: EvalRun) -> Scores:
    require_done(run)
    rows = EvalRunQuery.objects.filter(run=run).only("answerable", "best_score", "score_scale", "judged")
    scale = _common_scale(row.score_scale for row in rows if row.score_scale)
    own = [row for row in rows if row.score_scale in (scale, "")]  # "": nothing was found
    judged = [(score, grade) for row in own if row.answerable for score, grade in row.judged if score is not None]
    relevant = np.array([score for score, grade in judged if grade > 0])
    if not relevant.size:
        raise Rejected(
            "nothing_relevant", _("No result of this run is judged relevant: judge some, and run the set again.")
        )
    best = [(row.answerable, -math.inf if row.best_score is None else max(0.0, row.best_score)) for row in own]
    return Scores(
        scale=scale,
        relevant=relevant,
        irrelevant=np.array([score for score, grade in judged if grade <= 0]),
        answerable=np.array([score for answerable, score in best if answerable]),
        unanswerable=np.array([score for answerable, score in best if not answerable]),
        left_out=len(rows) - len(own),
    )


def _common_scale(scales: Iterable[str]) -> ScoreScale:
    """The scale that most queries were scored on; where a reranker failed meanwhile, some were on another."""
    counts = Counter(scales).most_common(1)
    if not counts:
        raise Rejected("nothing_found", _("This run found nothing: upload documents, and run the set again."))
    scale = ScoreScale(counts[0][0])
    if scale not in SETTING_OF_SCALE:
        raise Rejected(
            "scale_not_gated",
            _("The scores of this run are sums over ranks, to which no threshold applies: switch a reranker on."),
        )
    return scale
