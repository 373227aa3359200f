"""Where to cut the gate by the judged scores of an evaluation run, and a draft profile that cuts there."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from django.utils.translation import gettext as _
from numpy.typing import NDArray
from typing_extensions import Doc

from kb.access.models import Principal
from kb.base.errors import Rejected
from kb.content.models import Chunk
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import configuration_of, create_version
from kb.quality.models import EvalRun, EvalRunQuery
from kb.quality.runs.services.report import require_done
from retrieval.config import RetrievalConfig
from retrieval.eval.calibration import Cut, cut_curve, figures_at, histogram, suggest_cut
from retrieval.selection import SETTING_OF_SCALE, ScoreScale, default_cut

BINS = 20
CURVE_POINTS = 101
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The scores of a run before the gate, and where to cut: the answer to GET /api/v1/eval-runs/{id}/calibration/."""

    score_scale: ScoreScale
    setting: Annotated[str, Doc("That holds the cut of this scale.")]
    bins: Annotated[tuple[float, ...], Doc("Edges, one more than there are counts.")]
    relevant: Annotated[tuple[int, ...], Doc("Histogram of relevant results.")]
    irrelevant: tuple[int, ...]
    unanswerable: Annotated[tuple[int, ...], Doc("Of the best score of each query without an answer.")]
    current: Annotated[Cut, Doc("The cut in force under the run’s profile.")]
    suggestion: Annotated[Cut | None, Doc("The cut of the highest F1; null where nothing is to be rejected.")]
    curve: tuple[Cut, ...]
    left_out: Annotated[int, Doc("Queries whose scores are of another scale.")]


def calibrate(run: EvalRun) -> Calibration:
    """What the scores of a run that the caller may see say of the cut.

    Results that no reranker was given are not counted, nor relevant ones that no channel found: the gate loses neither.
    Raises `Rejected` where the run is not done, or has no judged score on a scale that is gated.
    """
    scale, relevant, irrelevant, unanswerable, left_out = _scores(run)
    to_reject = np.concatenate([irrelevant, unanswerable])
    cut = _current_cut(run, scale, configuration_of(_settings(run)))
    # Rounded, so that a score of .3 is in the bin that begins at .3.
    edges, cuts = (np.linspace(0.0, 1.0, count).round(4) for count in (BINS + 1, CURVE_POINTS))
    return Calibration(
        score_scale=scale,
        setting=SETTING_OF_SCALE[scale],
        bins=tuple(edges.tolist()),
        relevant=tuple(histogram(relevant, edges)),
        irrelevant=tuple(histogram(irrelevant, edges)),
        unanswerable=tuple(histogram(unanswerable, edges)),
        current=figures_at(cut, relevant, to_reject),
        suggestion=suggest_cut(relevant, to_reject),
        curve=tuple(cut_curve(cuts, relevant, to_reject)),
        left_out=left_out,
    )


def save_cut(principal: Principal, run: EvalRun, *, name: str, cut: float) -> RetrievalProfile:
    """Saves a cut, of the run's scale, 0 to 1, over the settings that a run was made under, as a draft.

    The run comes with its set, knowledge base and profile. The name is that of the profile that gets a new version, or
    of a new one, which is the knowledge base's own. Raises as `calibrate` and `create_version`.
    """
    scale, *_rest = _scores(run)
    settings = {key: value for key, value in _settings(run).items() if key != "score_threshold"}
    settings[SETTING_OF_SCALE[scale]] = cut
    if configuration_of(settings).score_threshold is not None:
        settings["score_threshold"] = None  # the environment's would win over the cut of the scale
    words = _("Cut of %(scale)s at %(cut)s, by run %(run)d over “%(set)s”.")
    is_same = name.strip() == run.profile.name
    return create_version(
        principal,
        name,
        settings,
        description=words % {"scale": scale.value, "cut": f"{cut:g}", "run": run.pk, "set": run.eval_set.name},
        knowledge_base=run.profile.knowledge_base if is_same else run.eval_set.knowledge_base,
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


def _scores(run: EvalRun) -> tuple[ScoreScale, Array, Array, Array, int]:
    """The scores of one run before the gate.

    Returns their scale; those of relevant and of irrelevant results, and the best of each query without an answer, each
    of shape (n,); and how many queries are left out, because their scores are of another scale.
    """
    require_done(run)
    scored = EvalRunQuery.objects.filter(run=run).exclude(score_scale="")
    rows = scored.only("answerable", "best_score", "score_scale", "judged")
    scale = _common_scale(row.score_scale for row in rows)
    own = [row for row in rows if row.score_scale == scale]
    judged = [(score, grade) for row in own if row.answerable for score, grade in row.judged if score is not None]
    relevant = np.array([score for score, grade in judged if grade > 0])
    if not relevant.size:
        raise Rejected(
            "nothing_relevant", _("No result of this run is judged relevant: judge some, and run the set again.")
        )
    irrelevant = np.array([score for score, grade in judged if grade <= 0])
    unanswerable = np.array([row.best_score for row in own if not row.answerable and row.best_score is not None])
    return scale, relevant, irrelevant, unanswerable, len(rows) - len(own)


def _common_scale(scales: Iterable[str]) -> ScoreScale:
    """The scale that most queries were scored on; where a reranker failed meanwhile, some were on another."""
    counts = Counter(scales).most_common(1)
    if not counts:
        raise Rejected("nothing_found", _("This run found nothing: upload documents, and run the set again."))
    scale = ScoreScale(counts[0][0])
    if scale not in SETTING_OF_SCALE:
        raise Rejected(
            "scale_not_gated",
            _("The scores of this run are sums over ranks, which no threshold can cut: switch a reranker on."),
        )
    return scale
