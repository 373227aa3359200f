"""Settings fitted to the judgments of a set: what they gain, what becomes of them, and that searches rank as was reckoned."""

import itertools

import pytest

from kb.base.errors import NotAllowed, Rejected
from kb.models import EvalRun, Membership, Principal, RetrievalProfile
from kb.profiles.services import create_version, publish
from kb.quality.fitting import services
from kb.quality.fitting.services import FEWEST_QUERIES, Outcome, draft_of, fit_of, measurement, start_fit
from kb.quality.runs.services.run import DEPTH, MEASURING, wiring_of
from kb.quality.runs.services.runs import cancel_run, evaluate_as_run, execute_run, start_run
from kb.tasks import run_evaluation
from retrieval.eval.fitting import Searches
from retrieval.types import CutBy
from tests.factories import make_kb, make_member, make_user
from tests.kb.quality.fitting.fitted_sets import NAMES, make_judged_set, make_mixed_set, mislead

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("english")]

# The vectors lead, and the order of the fusion stays.
MISLED = {"vector_weight": 0.9, "keyword_weight": 0.1, "rerankers": []}


@pytest.fixture
def kb():
    return make_kb(language="en")


@pytest.fixture
def principal(kb):
    return Principal(kb.owner)


@pytest.fixture
def misled(kb):
    """A set whose vectors harm, under a shared profile by which they lead."""
    eval_set = make_judged_set(kb, unanswerable=3)
    mislead(kb)
    use(kb, RetrievalProfile.objects.create(name="misled", settings=MISLED, published=True))
    return eval_set


def use(kb, profile):
    kb.profile = profile
    kb.save()


def fitted(principal, eval_set, **options):
    run = evaluate_as_run(principal, eval_set, **{"folds": 3, "measure": measurement, **options})
    assert run.status == EvalRun.Status.DONE
    return run


# -- What is fitted ---------------------------------------------------------------------------------------------------------
def test_what_gains_becomes_a_draft_of_the_knowledge_bases_own(kb, principal, misled):
    run = fitted(principal, misled)

    fit = fit_of(run)
    assert (fit.outcome, fit.queries, fit.folds, fit.stage) == (Outcome.DRAFT, len(NAMES), 3, "fused")
    gain = fit.metrics["ndcg@10"]
    assert gain.before < 0.7
    assert gain.after > 0.95
    assert gain.difference == pytest.approx(gain.after - gain.before, abs=1e-4)
    assert 0 < gain.low < gain.difference < gain.high
    assert gain.p_value < 0.001
    assert list(fit.metrics) == ["recall@5", "recall@20", "hit_rate@1", "mrr@10", "ndcg@10"]
    assert (fit.won_count, fit.lost_count) == (len(fit.won), 0)
    assert fit.won[0].after > fit.won[0].before
    draft = draft_of(run)
    assert (draft.knowledge_base, draft.name, draft.published) == (kb, f"misled-{kb.name}", False)
    assert draft.settings != MISLED
    assert draft.settings == MISLED | {each.name: each.after for each in fit.settings}
    assert str(fit.queries) in draft.description  # in the language of the site
    kb.refresh_from_db()
    assert kb.profile.name == "misled"  # a draft changes no search


def test_a_search_under_the_draft_gains_what_was_reckoned(kb, principal, misled):
    before = fitted(principal, misled)
    publish(principal, draft_of(before), adopt=True)
    kb.refresh_from_db()

    after = evaluate_as_run(principal, misled)

    stages = [run.report["stages"][run.report["final_stage"]]["ndcg@10"] for run in (before, after)]
    gain = fit_of(before).metrics["ndcg@10"]
    assert stages[0] == pytest.approx(gain.before, abs=1e-4)
    assert stages[1] >= gain.after - 0.01


def test_a_profile_of_the_knowledge_bases_own_gets_a_further_version(kb, principal, misled):
    own = create_version(principal, "own", {**MISLED, "top_k": 7}, knowledge_base=kb)
    publish(principal, own, adopt=True)
    misled.refresh_from_db()

    draft = draft_of(fitted(principal, misled))

    assert (draft.name, draft.version, draft.settings["top_k"]) == ("own", 2, 7)


def test_without_a_gain_beyond_chance_there_is_no_draft(kb, principal):
    run = fitted(principal, make_judged_set(kb))

    fit = fit_of(run)
    assert fit.outcome is Outcome.NO_GAIN
    assert "No settings were found that are better by more than chance" in fit.text
    assert (fit.draft, draft_of(run), fit.cut) == (None, None, None)
    assert not RetrievalProfile.objects.filter(knowledge_base=kb).exists()


def test_too_few_queries_are_not_fitted_to(kb, principal):
    eval_set = make_judged_set(kb, names=NAMES[: FEWEST_QUERIES - 1])
    mislead(kb)

    fit = fit_of(fitted(principal, eval_set))

    assert (fit.outcome, fit.queries, fit.metrics, fit.settings) == (Outcome.TOO_FEW, FEWEST_QUERIES - 1, {}, ())
    assert f"fitting takes {FEWEST_QUERIES}: judge more" in fit.text
    assert not RetrievalProfile.objects.filter(knowledge_base=kb).exists()


def test_of_many_queries_some_are_drawn_and_only_their_candidates_are_kept(kb, principal, monkeypatch):
    monkeypatch.setattr(services, "MOST_QUERIES", 24)
    eval_set = make_judged_set(kb, unanswerable=30)
    mislead(kb)
    use(kb, RetrievalProfile.objects.create(name="misled", settings=MISLED, published=True))
    eval_set.refresh_from_db()
    collected, fits = [], []

    def collecting(wiring, query, judged, collect=services.collect):
        collected.append(query)
        return collect(wiring, query, judged)

    def measuring(*given):
        fits.append(measurement(*given))
        return fits[0]

    monkeypatch.setattr(services, "collect", collecting)
    fit = fit_of(fitted(principal, eval_set, measure=measuring))

    assert (fit.queries, fit.drawn_from, len(set(collected))) == (24, len(NAMES), 48)
    assert fit.text.endswith("The 24 queries were drawn by chance from 30.")
    assert fit.won_count + fit.lost_count <= 24
    assert not set(fits[0].found[False]) & {row.external_id for row in fits[0].rows if row.figures}


def test_the_cut_keeps_most_of_the_answerable_queries_of_other_folds(kb, principal, misled, monkeypatch):
    monkeypatch.setattr(services, "SHARE", 0.9)
    # A strict threshold, which would win over a cut of the scale.
    use(kb, RetrievalProfile.objects.create(name="strict", settings={**MISLED, "score_threshold": 0.9}))
    misled.refresh_from_db()

    fit = fit_of(fitted(principal, misled))

    changed = {each.name: each.after for each in fit.settings}
    assert fit.cut is not None
    assert changed["overlap_threshold"] == fit.cut.cut > 0
    assert changed["score_threshold"] is None
    assert (fit.cut.answerable, fit.cut.unanswerable) == (len(NAMES), 3)
    assert fit.cut.kept >= 0.8
    assert fit.cut.kept_before is None  # of a fused order
    assert fit.cut.passed == 0


def test_a_model_that_reranks_stays_and_the_fusion_before_it_is_fitted(kb, principal, misled, monkeypatch):
    monkeypatch.setattr(services, "MODELS", frozenset({"overlap"}))
    use(kb, RetrievalProfile.objects.create(name="model", settings={**MISLED, "rerankers": ["overlap"]}))
    misled.refresh_from_db()

    run = fitted(principal, misled)

    fit = fit_of(run)
    assert fit.stage == "fused"
    assert fit.metrics["ndcg@10"].before == pytest.approx(run.report["stages"]["fused"]["ndcg@10"], abs=1e-4)
    assert "rerankers" not in {each.name for each in fit.settings}
    assert fit.cut is None


def test_a_profile_without_reranking_is_compared_by_what_readers_get(kb, principal, misled):
    use(kb, RetrievalProfile.objects.create(name="vectors", settings={"use_rerank": False}))
    misled.refresh_from_db()

    run = fitted(principal, misled)

    fit = fit_of(run)
    assert fit.metrics["ndcg@10"].before == pytest.approx(run.report["stages"]["reranked"]["ndcg@10"], abs=1e-4)
    assert draft_of(run).settings["use_rerank"] is True


# -- As a search ranks ------------------------------------------------------------------------------------------------------
SETTINGS = [
    {"fusion": "rrf", "vector_weight": 0.6, "keyword_weight": 0.4},
    {"fusion": "rrf", "vector_weight": 0.0, "keyword_weight": 1.0},
    {"fusion": "weighted", "hybrid_vector_weight": 0.35, "hybrid_text_weight": 0.65},
    {"fusion": "weighted", "hybrid_vector_weight": 1.0, "hybrid_text_weight": 0.0},
]


@pytest.mark.parametrize(("language", "questions"), [("en", False), ("en", True), ("zh", True)])
def test_searches_rank_as_was_reckoned(language, questions):
    kb = make_kb(language=language)
    principal = Principal(kb.owner)
    eval_set = make_mixed_set(kb, questions=questions)
    run = EvalRun(eval_set=eval_set, profile=kb.profile, overrides={}, folds=2, query_limit=None, embedding_model="")
    fitting = measurement(principal, run)
    rows = fitting.queries
    for row in rows:
        fitting.measure(row)
    kinds = (False, True) if questions else (False,)
    searches = {kind: Searches([fitting.found[kind][row.external_id] for row in rows]) for kind in kinds}

    chains = [["overlap"], []]
    weights = [0.0, 0.4] if questions else [0.4]
    for tried, chain, weight in itertools.product(SETTINGS, chains, weights):
        given = {**tried, "rerankers": chain, "question_weight": weight, "rerank_candidates": 22}
        wiring = wiring_of(principal, run, **MEASURING, **given)
        config = fitting.config.override(given)
        reckoned = searches[questions and weight > 0].rankings(config, DEPTH)
        for row, units in zip(rows, reckoned, strict=True):
            candidates = wiring.pipeline.run(row.text, wiring.config).candidates
            found = [str(each.passage.document_id) for each in candidates if each.cut_by != CutBy.FUSION]
            assert units == list(dict.fromkeys(found))[:DEPTH], (given, row.text)


# -- Who, and how -----------------------------------------------------------------------------------------------------------
def test_a_worker_fits_what_was_started(principal, misled):
    run = start_fit(principal, misled, folds=2)

    run_evaluation(run.pk)

    run.refresh_from_db()
    assert (run.status, run.folds, fit_of(run).outcome) == (EvalRun.Status.DONE, 2, Outcome.DRAFT)


def test_an_ordinary_run_fits_nothing(principal, misled):
    run = start_run(principal, misled)
    run_evaluation(run.pk)
    run.refresh_from_db()

    with pytest.raises(Rejected, match="fitted no settings"):
        fit_of(run)


def test_a_fit_that_is_not_done_cannot_be_read(principal, misled):
    with pytest.raises(Rejected, match="not done"):
        fit_of(start_fit(principal, misled))


@pytest.mark.parametrize("folds", [0, 1, 21])
def test_folds_are_counted_from_two(principal, misled, folds):
    with pytest.raises(Rejected, match="from 2 to 20"):
        start_fit(principal, misled, folds=folds)


def test_a_viewer_cannot_start_one(kb, misled):
    viewer = make_member(kb, Membership.Role.VIEWER, make_user())

    with pytest.raises(NotAllowed):
        start_fit(Principal(viewer), misled)


def test_one_that_is_cancelled_makes_no_draft(kb, principal, misled):
    run = start_fit(principal, misled)
    cancel_run(principal, run)

    execute_run(run.pk, measurement)

    run.refresh_from_db()
    assert (run.status, run.fit) == (EvalRun.Status.CANCELLED, {})
    assert not RetrievalProfile.objects.filter(knowledge_base=kb).exists()


def test_one_whose_run_was_ended_meanwhile_leaves_no_draft(kb, principal, misled, monkeypatch):
    run = start_fit(principal, misled)
    conclude = services.FittingMeasurement.conclude

    def ended_meanwhile(self):
        fields = conclude(self)
        EvalRun.objects.filter(pk=run.pk).update(status=EvalRun.Status.CANCELLED, lease=None)
        return fields

    monkeypatch.setattr(services.FittingMeasurement, "conclude", ended_meanwhile)
    execute_run(run.pk, measurement)

    assert not RetrievalProfile.objects.filter(knowledge_base=kb).exists()


def test_a_draft_that_cannot_be_saved_leaves_the_fit_and_the_reason(kb, principal, misled, monkeypatch):
    def refuse(*_args, **_more):
        raise Rejected("profile_name_taken", "There is a profile of that name elsewhere.")

    monkeypatch.setattr(services, "save_draft", refuse)
    run = start_fit(principal, misled)

    execute_run(run.pk, measurement)

    run.refresh_from_db()
    fit = fit_of(run)
    assert (run.status, fit.outcome, fit.draft, draft_of(run)) == (EvalRun.Status.DONE, Outcome.NOT_SAVED, None, None)
    assert fit.settings
    assert "No draft was saved: There is a profile of that name elsewhere." in fit.text


def test_one_whose_name_a_shared_profile_has_gets_a_number(kb, principal, misled):
    taken = f"misled-{kb.name}"
    RetrievalProfile.objects.create(name=taken, published=True)

    drafts = [draft_of(fitted(principal, misled)) for _ in range(2)]

    assert [(each.name, each.version) for each in drafts] == [(f"{taken}-2", 1), (f"{taken}-2", 2)]
    assert {each.knowledge_base for each in drafts} == {kb}


def test_a_draft_that_was_deleted_is_no_longer_shown(principal, misled):
    run = fitted(principal, misled)
    draft_of(run).delete()

    assert fit_of(run).draft is not None
    assert draft_of(run) is None
