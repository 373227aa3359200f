"""Settings of a knowledge base fitted to the judgments of an evaluation set, and the draft profile that they make."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, cast

import msgspec
import numpy as np
from django.conf import settings
from django.utils import translation
from django.utils.translation import gettext as _, gettext_noop
from numpy.typing import NDArray
from typing_extensions import Doc

from kb.access.models import Principal
from kb.base.errors import NotAllowed, Rejected
from kb.base.messages import shown
from kb.base.shapes import as_values
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import SettingDifference
from kb.quality.calibration.services import SHARE
from kb.quality.models import EvalQuery, EvalRun, EvalRunQuery, EvalSet
from kb.quality.profiles.services import save_draft
from kb.quality.runs.services.report import MOST_LISTED, final_stage, require_done
from kb.quality.runs.services.run import BUDGET_S, DEPTH, MEASURING, Judged, Measurement, Observed, Tick, wiring_of
from kb.quality.runs.services.runs import start_run
from kb.search.services.search import UsedProfile
from kb.search.wiring import Wiring
from retrieval.config import RetrievalConfig
from retrieval.errors import message_of
from retrieval.eval.calibration import cut_that_keeps
from retrieval.eval.fitting import FITTED_TO, Found, Searches, choose, choose_out_of_fold, distance, folds_of, grid
from retrieval.eval.metrics import SEED, SIGNIFICANCE_LEVEL, StageMetrics, mean_intervals, paired_p_values, per_query
from retrieval.evidence import CHARACTERS
from retrieval.fusion import channel_weights
from retrieval.rerankers.overlap import OverlapReranker
from retrieval.selection import RELEVANCE, SETTING_OF_SCALE, ScoreScale

FOLDS = 5
MOST_FOLDS = 20
# With fewer judged queries no gain that settings can have is told from chance.
FEWEST_QUERIES = 20
# Of either kind; what is found for each of them is held in memory, some 100 KB.
MOST_QUERIES = 5_000
METRICS = tuple(StageMetrics.__annotations__)
# Each channel with the exact scores of what any of them found, and nothing that depends on the settings.
COLLECTING = {
    **MEASURING,
    "use_rerank": True,
    "rerankers": [OverlapReranker.name],
    "rerank_candidates": 500,
    "fusion": "weighted",
    "external": False,
}
QUESTION_WEIGHT = 0.4  # any but 0, by which they are searched
MODELS = frozenset({"cross_encoder", "http"})

Floats = NDArray[np.float64]


class Outcome(StrEnum):
    DRAFT = "draft"
    NOT_SAVED = "not_saved"
    TOO_FEW = "too_few"
    NO_GAIN = "no_gain"


SENTENCES = {
    Outcome.DRAFT: gettext_noop(
        "Fitted to %(queries)d judged queries of “%(set)s”: NDCG@10 %(before).3f becomes %(after).3f on queries that the "
        "settings were not fitted to (95%% interval of the gain %(low)+.3f to %(high)+.3f)."
    ),
    Outcome.NOT_SAVED: gettext_noop(
        "Fitted to %(queries)d judged queries of “%(set)s”: NDCG@10 %(before).3f becomes %(after).3f on queries that the "
        "settings were not fitted to (95%% interval of the gain %(low)+.3f to %(high)+.3f). No draft was saved: %(reason)s "
        "Save these settings by hand."
    ),
    Outcome.TOO_FEW: gettext_noop(
        "%(queries)d queries of “%(set)s” have a relevant passage, and fitting takes %(fewest)d: judge more results in "
        "the retrieval test, or import judgments. No draft was made."
    ),
    Outcome.NO_GAIN: gettext_noop(
        "No settings were found that are better by more than chance: NDCG@10 %(before).3f against %(after).3f on queries that "
        "they were not fitted to (95%% interval of the difference %(low)+.3f to %(high)+.3f), over %(queries)d queries. The "
        "present settings stay, and no draft was made; more judged queries would tell smaller differences."
    ),
}


@dataclass(frozen=True, slots=True)
class Gain:
    """The mean of a metric over queries, under the present settings and under those that the other folds chose."""

    before: float
    after: float
    difference: float
    low: Annotated[float, Doc("Of the difference, in 95 % of samples of queries: a percentile bootstrap.")]
    high: float
    p_value: Annotated[float, Doc("How often chance alone would make them differ by as much: a randomisation test.")]


@dataclass(frozen=True, slots=True)
class QueryGain:
    external_id: str
    text: str
    before: Annotated[float, Doc("NDCG@10.")]
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCut:
    """A cut of overlap that keeps 95 % of the answerable queries, and what it does to queries of other folds."""

    cut: float
    cut_before: float
    answerable: int
    kept: Annotated[float, Doc("Share of the answerable queries.")]
    kept_before: Annotated[float | None, Doc("At the cut in force; null: its scores are on another scale.")]
    unanswerable: int
    passed: Annotated[float | None, Doc("Share of the queries without an answer; null: there are none.")]
    passed_before: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Settings fitted to the judgments of a set: the response of GET /api/v1/eval-runs/{id}/fit/.

    All figures are out of fold: of each query under settings that were chosen by other queries.
    """

    run_id: int
    eval_set: str
    profile: Annotated[UsedProfile, Doc("That of the present settings.")]
    outcome: Annotated[Outcome, Doc("`draft`, or why there is none.")]
    text: Annotated[str, Doc("The outcome as a sentence.")] = ""
    queries: Annotated[int, Doc("With a relevant passage.")]
    drawn_from: Annotated[
        int | None, Doc(f"How many there are, of which {MOST_QUERIES} were drawn by chance; null: all are fitted to.")
    ] = None
    folds: int
    stage: Annotated[str, Doc("By which settings are measured: `fused` where nothing reranks, or a model does.")]
    metrics: Annotated[Mapping[str, Gain], Doc("By metric; empty with too few queries.")] = field(default_factory=dict)
    won: Annotated[tuple[QueryGain, ...], Doc(f"The {MOST_LISTED} with the largest difference.")] = ()
    lost: tuple[QueryGain, ...] = ()
    won_count: int = 0
    lost_count: int = 0
    settings: Annotated[tuple[SettingDifference, ...], Doc("What all queries together choose, where it differs.")] = ()
    cut: Annotated[FittedCut | None, Doc("null: no draft, too few queries, or scores without a cut.")] = None
    draft: Annotated[UsedProfile | None, Doc("A profile of the knowledge base’s own.")] = None
    reason: Annotated[
        str, Doc("Why no draft of the settings could be saved; blank: it was, or there is nothing to save.")
    ] = ""


def start_fit(principal: Principal, eval_set: EvalSet, *, folds: int = FOLDS) -> EvalRun:
    """Starts a run of the present profile that fits settings too; a worker carries it out.

    Raises as `start_run`, and `Rejected` where there are no such folds.
    """
    require_folds(folds)
    return start_run(principal, eval_set, folds=folds)


def require_folds(folds: int) -> None:
    if not 2 <= folds <= MOST_FOLDS:
        raise Rejected("folds", _("Give a number of folds from 2 to %(most)d."), most=MOST_FOLDS)


def measurement(principal: Principal, run: EvalRun) -> Measurement:
    return Measurement(principal, run) if run.folds is None else FittingMeasurement(principal, run)


def fit_of(run: EvalRun) -> Fit:
    """What a run that the caller may see has fitted, in the language in force; it comes with its set.

    Raises `Rejected` where it is not done, or has not fitted anything.
    """
    require_done(run)
    if run.folds is None:
        raise Rejected("not_fitted", _("This run has fitted no settings: start a fitting of its evaluation set."))
    fit = msgspec.convert(run.fit, Fit)
    metrics = {name: fit.metrics[name] for name in METRICS if fit.metrics}  # the database keeps no order of keys
    return dataclasses.replace(fit, metrics=metrics, text=sentence(fit))


def sentence(fit: Fit) -> str:
    gain = fit.metrics.get(FITTED_TO)
    figures = dataclasses.asdict(gain) if gain else {}
    about = {
        "queries": fit.queries,
        "set": fit.eval_set,
        "fewest": FEWEST_QUERIES,
        "reason": shown(fit.reason),
    }
    text = _(SENTENCES[fit.outcome]) % {**about, **figures}
    if fit.drawn_from is None:
        return text
    drawn = _("The %(queries)d queries were drawn by chance from %(all)d.") % {
        "queries": fit.queries,
        "all": fit.drawn_from,
    }
    return f"{text} {drawn}"


def draft_of(run: EvalRun) -> RetrievalProfile | None:
    """The draft that a run has made, if it is still there."""
    draft = run.fit.get("draft")
    own = RetrievalProfile.objects.filter(knowledge_base=run.eval_set.knowledge_base_id)
    return own.filter(name=draft["name"], version=draft["version"]).first() if draft else None


class FittingMeasurement(Measurement):
    """Measures the present profile, collects what every channel finds, and fits settings to the judgments."""

    fit: Fit

    def __init__(self, principal: Principal, run: EvalRun) -> None:
        super().__init__(principal, run)
        self.principal = principal
        searched = wiring_of(principal, run, **COLLECTING, question_weight=QUESTION_WEIGHT)
        self.has_questions = any(each.name == "question" for each in searched.pipeline.scopes[0].channels)
        # By whether questions are searched: without them the candidates are others.
        self.collecting = {self.has_questions: searched}
        if self.has_questions:
            self.collecting[False] = wiring_of(principal, run, **COLLECTING, question_weight=0)
        self.drawn = _drawn([each.external_id for each in self.queries if each.answerable])
        self.drawn |= _drawn([each.external_id for each in self.queries if not each.answerable])
        # Likewise, by the query's id in the set; each is dropped once its rankings are reckoned with.
        self.found: dict[bool, dict[str, Found]] = {asks: {} for asks in self.collecting}

    def measure(self, query: EvalQuery) -> Observed:
        observed = super().measure(query)
        if query.external_id in self.drawn:
            judged = self.judged.get(query.pk) or Judged()
            for asks, wiring in self.collecting.items():
                self.found[asks][query.external_id] = collect(wiring, query.text, judged)
        return observed

    def run(self, tick: Tick) -> None:
        super().run(tick)
        self.fit = self._fit(tick)

    def conclude(self) -> dict[str, Any]:
        fit = self.fit
        if fit.outcome is Outcome.DRAFT:
            try:
                fit = dataclasses.replace(fit, draft=UsedProfile.of(self._draft()))
            except (NotAllowed, Rejected) as error:
                fit = dataclasses.replace(fit, outcome=Outcome.NOT_SAVED, reason=message_of(error))
        return {"fit": as_values(fit)}

    def _draft(self) -> RetrievalProfile:
        run, profile = self.eval_run, self.wiring.profile
        with translation.override(settings.LANGUAGE_CODE):
            description = sentence(self.fit)
        fitted = {each.name: each.after for each in self.fit.settings}
        return save_draft(
            self.principal,
            run.eval_set.knowledge_base,
            profile,
            {**profile.settings, **run.overrides, **fitted},
            description=description,
        )

    # -- Fitting ---------------------------------------------------------------------------------------------------------
    def _fit(self, tick: Tick) -> Fit:
        judged = [row for row in self.rows if row.figures]
        rows = [row for row in judged if row.external_id in self.drawn]
        is_reranked_by_model = self.config.use_rerank and not MODELS.isdisjoint(self.rerankers)
        stage = "fused" if is_reranked_by_model else final_stage(self)
        fit = Fit(
            run_id=self.eval_run.pk,
            eval_set=self.eval_run.eval_set.name,
            profile=UsedProfile.of(self.wiring.profile),
            outcome=Outcome.TOO_FEW,
            queries=len(rows),
            drawn_from=len(judged) if len(judged) > len(rows) else None,
            folds=self.eval_run.folds or FOLDS,
            stage=stage,
        )
        if len(rows) < FEWEST_QUERIES:
            return fit
        searches = self._searches(rows)
        tried = [{}, *grid(questions=self.has_questions, rerankers=() if is_reranked_by_model else self._chains())]
        configs = [self._config(each, fused=is_reranked_by_model) for each in tried]
        figures = np.empty((len(tried), len(rows)))
        figures[0] = [row.figures[stage][FITTED_TO] for row in rows]
        for place, config in enumerate(configs[1:], start=1):
            figures[place] = searches[self._asks(config)].ndcg(config)
            tick(0)
        distances = np.array([distance(each, configs[0], questions=self.has_questions) for each in configs])
        folds = folds_of(len(rows), fit.folds)
        chosen, best = choose_out_of_fold(figures, distances, folds), choose(figures, distances)
        before = [row.figures[stage] for row in rows]
        after = self._out_of_fold(rows, before, searches, [configs[each] if each else None for each in chosen], folds)
        fit = dataclasses.replace(fit, **_compared(rows, before, after))
        gain = fit.metrics[FITTED_TO]
        is_gain = bool(best) and gain.low > 0 and gain.p_value < SIGNIFICANCE_LEVEL
        is_cut = is_gain and OverlapReranker.name in configs[best].rerankers
        cut = self._cut(rows, searches, configs[best], folds) if is_cut else None
        return dataclasses.replace(
            fit,
            outcome=Outcome.DRAFT if is_gain else Outcome.NO_GAIN,
            settings=tuple(self._differences(tried[best], cut)),
            cut=cut,
        )

    def _searches(self, rows: Sequence[EvalRunQuery]) -> dict[bool, Searches]:
        """Of the queries of rows, by whether questions are searched; what was found for them is dropped."""
        return {asks: Searches([found.pop(row.external_id) for row in rows]) for asks, found in self.found.items()}

    def _asks(self, config: RetrievalConfig) -> bool:
        return self.has_questions and config.question_weight > 0

    def _chains(self) -> list[tuple[str, ...]]:
        """The chain with `overlap`, and the one without, by which the fused order stays."""
        models = tuple(name for name in self.config.rerankers if name in MODELS)
        cosine = tuple(name for name in self.config.rerankers if name not in (*models, OverlapReranker.name))
        chains = [(*models, OverlapReranker.name, *cosine)] if self.wiring.pipeline.scopes[0].tokenizer else []
        # A model that is there and has not answered leaves another order.
        return chains if any(link.name in MODELS for link in self.wiring.links) else [*chains, models]

    def _config(self, tried: Mapping[str, Any], *, fused: bool) -> RetrievalConfig:
        config = self.config.override({"use_rerank": True, **tried})
        if fused:
            config = config.override({"rerankers": (), "rerank_candidates": max(config.rerank_candidates, DEPTH)})
        return config

    def _out_of_fold(
        self,
        rows: Sequence[EvalRunQuery],
        before: Sequence[Mapping[str, float]],
        searches: Mapping[bool, Searches],
        chosen: Sequence[RetrievalConfig | None],
        folds: NDArray[np.int64],
    ) -> list[Mapping[str, float]]:
        """Each query's figures under what the other folds chose, None being the present settings."""
        found: dict[str, list[str]] = {}
        grades = {}
        for fold, config in enumerate(chosen):
            if config is not None:
                of_queries = searches[self._asks(config)]
                rankings = of_queries.rankings(config, DEPTH)
                for row in np.flatnonzero(folds == fold).tolist():
                    name = rows[row].external_id
                    found[name], grades[name] = rankings[row], of_queries.grades[row]
        figures = cast("dict[str, dict[str, float]]", per_query(grades, found))
        return [figures.get(row.external_id, own) for row, own in zip(rows, before, strict=True)]

    def _cut(
        self,
        rows: Sequence[EvalRunQuery],
        searches: Mapping[bool, Searches],
        config: RetrievalConfig,
        folds: NDArray[np.int64],
    ) -> FittedCut | None:
        asks, scale = self._asks(config), ScoreScale.OVERLAP
        best = searches[asks].best(config)
        cut = cut_that_keeps(SHARE, best)
        cuts = [cut_that_keeps(SHARE, best[folds != fold]) for fold in range(int(folds.max()) + 1)]
        if cut is None or None in cuts:
            return None
        unanswerable = [row for row in self.rows if not row.answerable and row.external_id in self.drawn]
        others = self._searches(unanswerable)[asks].best(config)
        at, elsewhere = np.array(cuts, dtype=np.float64), folds_of(len(unanswerable), int(folds.max()) + 1)
        cut_before = self.cut(scale)
        return FittedCut(
            cut=cut,
            cut_before=cut_before,
            answerable=len(rows),
            kept=_share(best >= at[folds]) or 0.0,
            kept_before=_passing(rows, scale, cut_before),
            unanswerable=len(unanswerable),
            passed=_share(others >= at[elsewhere]),
            passed_before=_passing(unanswerable, scale, cut_before),
        )

    def _differences(self, tried: Mapping[str, Any], cut: FittedCut | None) -> Iterator[SettingDifference]:
        fitted = dict(tried)
        if tried and not self.config.use_rerank:
            fitted["use_rerank"] = True
        if cut is not None:
            fitted[SETTING_OF_SCALE[ScoreScale.OVERLAP]] = cut.cut
            fitted["score_threshold"] = None  # an explicit one would win over the cut of the scale
        for name, after in fitted.items():
            before = getattr(self.config, name)
            if before != after:
                yield SettingDifference(name, before, after)


def _drawn(query_ids: Sequence[str]) -> set[str]:
    """At most `MOST_QUERIES` of them, by chance, the same each time."""
    places = np.random.default_rng(SEED).permutation(len(query_ids))[:MOST_QUERIES]
    return {query_ids[place] for place in places.tolist()}


def collect(wiring: Wiring, query: str, judged: Judged) -> Found:
    """What the channels of one knowledge base find for a query."""
    result = wiring.run(query, latency_budget=BUDGET_S)
    candidates = sorted(result.candidates, key=lambda each: each.chunk_id)
    known = channel_weights(wiring.config)
    answered = [span.stage for span in result.spans if span.stage in known and "found" in span.detail]
    if CHARACTERS in answered:
        answered.remove("bm25")  # which counts in these
    return Found(
        chunk_ids=np.array([each.chunk_id for each in candidates], dtype=np.int64),
        ranks={name: np.array([each.ranks.get(name, 0) for each in candidates], dtype=np.int16) for name in answered},
        scores={name: np.array([each.scores.get(name, np.nan) for each in candidates]) for name in answered},
        # 0 where no tokenizer is available: `overlap` is not tried then.
        covered=np.array([each.scores.get(RELEVANCE, 0.0) for each in candidates]),
        equal=np.array([bool(each.question) for each in candidates], dtype=np.bool_),
        units=[judged.units(each.chunk_id, each.passage.document_id if each.passage else 0) for each in candidates],
        grades=judged.grades,
    )


def _compared(
    rows: Sequence[EvalRunQuery], before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """Metrics, queries won and lost: fields of `Fit`."""
    first, second = (np.array([[each[name] for name in METRICS] for each in side]) for side in (before, after))
    low, high = mean_intervals(second - first).round(4).tolist()
    p_values = paired_p_values(first, second).round(4).tolist()
    means = [side.mean(axis=0) for side in (first, second, second - first)]
    columns = zip(*(mean.round(4).tolist() for mean in means), low, high, p_values, strict=True)
    queries = sorted(
        (
            QueryGain(row.external_id, row.text, round(old[FITTED_TO], 4), round(new[FITTED_TO], 4))
            for row, old, new in zip(rows, before, after, strict=True)
        ),
        key=lambda each: each.before - each.after,
    )
    won = [each for each in queries if each.after > each.before]
    lost = [each for each in reversed(queries) if each.after < each.before]
    return {
        "metrics": {name: Gain(*column) for name, column in zip(METRICS, columns, strict=True)},
        "won": tuple(won[:MOST_LISTED]),
        "lost": tuple(lost[:MOST_LISTED]),
        "won_count": len(won),
        "lost_count": len(lost),
    }


def _share(passes: NDArray[np.bool_]) -> float | None:
    return round(float(passes.mean()), 4) if passes.size else None


def _passing(rows: Sequence[EvalRunQuery], scale: ScoreScale, cut: float) -> float | None:
    """The share of queries whose best score reaches a cut; None where there are none, or another scale was used."""
    if any(row.score_scale not in ("", scale) for row in rows):
        return None
    return _share(np.array([row.best_score is not None and row.best_score >= cut for row in rows], dtype=np.bool_))
