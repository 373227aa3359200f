import pytest
from django.utils.translation import override

from kb.base.errors import NotAllowed, Rejected
from kb.models import Chunk, EvalRun, KnowledgeBase, Membership, RetrievalProfile
from kb.profiles.services import create_version
from kb.quality.calibration.services import calibrate, save_cut
from retrieval.errors import InvalidConfiguration
from retrieval.selection import overlap_cut
from tests.factories import make_document, make_kb, make_member, make_user, principal
from tests.kb.quality.runs.eval_runs import answered, make_run, make_set, unanswered

pytestmark = pytest.mark.django_db

JUDGED = [
    answered("a", judged=[[0.9, 2], [0.3, 0]]),
    answered("b", judged=[[0.8, 1]]),
    unanswered("none", 0.4),
]


@pytest.fixture
def owner():
    return make_user()


@pytest.fixture
def kb(owner):
    return make_kb(owner, "handbook")


@pytest.fixture
def eval_set(kb):
    return make_set(kb)


def built_in(name):
    return RetrievalProfile.objects.live(name)


def test_counts_relevant_irrelevant_and_unanswerable_scores_by_bin(eval_set):
    calibration = calibrate(make_run(eval_set, JUDGED))

    by_bin = {
        kind: [calibration.bins[place] for place, count in enumerate(getattr(calibration, kind)) if count]
        for kind in ("relevant", "irrelevant", "unanswerable")
    }
    assert by_bin == {"relevant": [0.8, 0.9], "irrelevant": [0.3], "unanswerable": [0.4]}


def test_suggests_the_cut_that_tells_them_apart(eval_set):
    best = calibrate(make_run(eval_set, JUDGED)).best_f1

    assert (best.cut, best.precision, best.recall, best.kept, best.passed) == (0.6, 1.0, 1.0, 1.0, 0.0)


def test_suggests_the_least_cut_that_no_query_without_an_answer_passes(eval_set):
    run = make_run(eval_set, [*JUDGED, answered("c", judged=[[0.35, 1]]), unanswered("void", None)])

    refuses = calibrate(run).refuses

    assert (refuses.cut, refuses.passed) == (0.401, 0.0)
    assert refuses.kept == pytest.approx(2 / 3)
    assert refuses.kept_at_least == pytest.approx(0.1354, abs=5e-5)  # 3p² - 2p³ = .05


# -- The promise -------------------------------------------------------------------------------------------------------


def answerable(count, *, found_nothing=0):
    scored = [answered(f"q{place}", judged=[[0.5 + place / 1000, 1]]) for place in range(count)]
    return [*scored, *(answered(f"void{place}", scale="") for place in range(found_nothing))]


def test_suggests_the_largest_cut_that_keeps_a_share_of_the_answerable(eval_set):
    calibration = calibrate(make_run(eval_set, answerable(100)), 0.9)

    assert calibration.keeps.cut == 0.509  # the tenth of a hundred: floor(101 x .1)
    assert (calibration.keeps.kept, calibration.answerable_count, calibration.share) == (0.91, 100, 0.9)
    assert calibration.keeps.kept_at_least == pytest.approx(0.8482, abs=5e-5)  # 91 or more of 100 in one case of 20


def test_a_query_is_kept_by_any_result_as_the_gate_of_a_run_has_it(eval_set):
    by_another_result = answered("other", judged=[[0.45, 1]], best_score=0.9)

    assert calibrate(make_run(eval_set, [*answerable(19), by_another_result])).keeps.cut == 0.5


def test_without_anything_to_reject_the_promise_alone_is_offered(eval_set):
    calibration = calibrate(make_run(eval_set, answerable(19)))

    assert (calibration.keeps.cut, calibration.keeps.passed) == (0.5, None)
    assert (calibration.refuses, calibration.best_f1) == (None, None)


def test_too_few_queries_promise_nothing(eval_set):
    calibration = calibrate(make_run(eval_set, answerable(18)))

    assert (calibration.keeps, calibration.answerable_count, calibration.answerable_needed) == (None, 18, 19)


def test_queries_that_find_nothing_are_lost_to_every_cut(eval_set):
    few, many = answerable(80, found_nothing=2), answerable(80, found_nothing=10)

    calibration = calibrate(make_run(eval_set, few))
    assert (calibration.answerable_count, calibration.nothing_found, calibration.keeps.cut) == (82, 2, 0.501)
    assert calibration.keeps.kept == pytest.approx(79 / 82)
    calibration = calibrate(make_run(eval_set, many))
    assert (calibration.nothing_found, calibration.keeps) == (10, None)


@pytest.mark.parametrize("share", [0, 1, 1.5, -1, float("nan")])
def test_a_share_that_no_cut_can_keep_is_refused(eval_set, share):
    with pytest.raises(Rejected, check=lambda error: error.code == "share_out_of_range"):
        calibrate(make_run(eval_set, JUDGED), share)


# -- The cut in force --------------------------------------------------------------------------------------------------


def test_a_query_without_an_answer_counts_by_its_best_score_alone(eval_set):
    run = make_run(eval_set, [answered("a", judged=[[0.9, 1]]), unanswered("none", 0.4) | {"judged": [[0.4, 0]]}])

    calibration = calibrate(run)

    assert (sum(calibration.irrelevant), sum(calibration.unanswerable)) == (0, 1)


def test_disabled_chunks_do_not_raise_the_cut_in_force(eval_set, kb):
    make_document(kb, *(f"第{number}章" for number in range(40)))
    Chunk.objects.filter(position__gt=0).update(enabled=False)

    assert calibrate(make_run(eval_set, JUDGED)).current.cut == overlap_cut(1)


@pytest.mark.parametrize(
    ("scale", "setting"),
    [("overlap", "overlap_threshold"), ("cosine", "cosine_threshold"), ("cross_encoder", "similarity_threshold")],
)
def test_names_the_setting_of_the_scale(eval_set, scale, setting):
    calibration = calibrate(make_run(eval_set, [answered("a", judged=[[0.9, 1]], scale=scale)]))

    assert (calibration.score_scale, calibration.setting) == (scale, setting)


def test_the_cut_in_force_is_that_of_the_run(eval_set):
    calibration = calibrate(make_run(eval_set, JUDGED, gate={"scale": "overlap", "cut": 0.85}))

    assert calibration.current.cut == 0.85
    assert (calibration.current.precision, calibration.current.recall) == (1.0, 0.5)


def test_an_explicit_threshold_of_the_profile_is_the_cut_in_force(eval_set):
    run = make_run(eval_set, JUDGED, gate={"scale": "overlap", "cut": 0.85}, overrides={"score_threshold": 0.2})

    assert calibrate(run).current.cut == 0.2


def test_without_a_measured_gate_the_scales_default_is_the_cut_in_force(eval_set):
    run = make_run(eval_set, JUDGED, overrides={"overlap_threshold": 0.7})

    assert calibrate(run).current.cut == 0.7


def test_without_anything_to_reject_there_is_no_suggestion(eval_set):
    calibration = calibrate(make_run(eval_set, [answered("a", judged=[[0.9, 1]])]))

    assert calibration.best_f1 is None
    assert calibration.current.precision == 1.0


def test_queries_on_another_scale_are_left_out_and_counted(eval_set):
    calibration = calibrate(make_run(eval_set, [*JUDGED, answered("c", judged=[[0.1, 1]], scale="cosine")]))

    assert (calibration.score_scale, calibration.left_out, sum(calibration.relevant)) == ("overlap", 1, 2)


@pytest.mark.parametrize(
    ("queries", "code"),
    [
        ([], "nothing_found"),
        ([answered("a", judged=[[0.9, 0]])], "nothing_relevant"),
        ([answered("a", judged=[[0.03, 1]], scale="rrf")], "scale_not_gated"),
    ],
)
def test_a_run_that_tells_nothing_of_a_cut_is_refused(eval_set, queries, code):
    with pytest.raises(Rejected) as refused:
        calibrate(make_run(eval_set, queries))
    assert refused.value.code == code


def test_a_run_that_is_not_done_is_refused(eval_set):
    with pytest.raises(Rejected, check=lambda error: error.code == "run_not_done"):
        calibrate(make_run(eval_set, JUDGED, status=EvalRun.Status.RUNNING))


# -- Saving ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(owner, kb):
    return create_version(principal(owner), "mine", {"fusion": "weighted"}, knowledge_base=kb)


def test_a_cut_becomes_a_draft_of_the_runs_profile(owner, eval_set, own):
    run = make_run(eval_set, JUDGED, profile=own, overrides={"rrf_k": 10})

    with override("en"):
        saved = save_cut(principal(owner), run, cut=0.6)

    assert (saved.name, saved.version, saved.published) == ("mine", 2, False)
    assert saved.settings == {"fusion": "weighted", "rrf_k": 10, "overlap_threshold": 0.6}
    assert f"run {run.pk}" in saved.description
    assert "keeps 100.0 % of 2 queries" in saved.description


def test_a_threshold_that_would_win_over_the_cut_is_not_kept(owner, eval_set, kb):
    profile = create_version(principal(owner), "mine", {"score_threshold": 0.1}, knowledge_base=kb)

    saved = save_cut(principal(owner), make_run(eval_set, JUDGED, profile=profile), cut=0.6)

    assert saved.settings == {"overlap_threshold": 0.6}


def test_a_threshold_of_the_environment_is_overruled(owner, eval_set, own, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "score_threshold": 0.3}

    saved = save_cut(principal(owner), make_run(eval_set, JUDGED, profile=own), cut=0.6)

    assert saved.settings["score_threshold"] is None


def test_a_new_name_makes_a_profile_of_the_knowledge_base(owner, kb, eval_set):
    saved = save_cut(principal(owner), make_run(eval_set, JUDGED), cut=0.6, name="stricter")

    assert (saved.name, saved.version, saved.knowledge_base) == ("stricter", 1, kb)


def test_a_shared_profile_is_copied_for_the_knowledge_base(owner, kb, eval_set):
    run = make_run(eval_set, JUDGED, profile=built_in("balanced"))

    first, second = (save_cut(principal(owner), run, cut=cut) for cut in (0.6, 0.7))

    assert (first.name, first.version, first.knowledge_base, first.published) == ("balanced-handbook", 1, kb, False)
    assert first.settings == {**run.profile.settings, "overlap_threshold": 0.6}
    assert (second.name, second.version) == ("balanced-handbook", 2)


def test_a_copy_has_a_name_that_profiles_take(owner):
    kb = make_kb(owner, "r&d/lab @" + "x" * 60)
    run = make_run(make_set(kb), JUDGED, profile=built_in("balanced"))

    assert save_cut(principal(owner), run, cut=0.6).name == "balanced-r&d-lab -" + "x" * 31


def test_a_profile_of_another_knowledge_base_is_copied(owner, kb, eval_set):
    elsewhere = create_version(principal(owner), "theirs", {"rrf_k": 10}, knowledge_base=make_kb(owner, "elsewhere"))

    saved = save_cut(principal(owner), make_run(eval_set, JUDGED, profile=elsewhere), cut=0.6)

    assert (saved.name, saved.knowledge_base) == ("theirs-handbook", kb)
    assert saved.settings == {"rrf_k": 10, "overlap_threshold": 0.6}


def test_a_shared_profile_is_not_a_curators_to_change(owner, eval_set):
    run = make_run(eval_set, JUDGED)

    for target in ({"name": run.profile.name}, {"confirm_shared": True}):
        with pytest.raises(NotAllowed):
            save_cut(principal(owner), run, cut=0.6, **target)


def test_who_may_change_a_shared_profile_confirms_whose_search_it_is(eval_set, kb):
    superuser = principal(make_user(superuser=True))
    others = [make_kb(name=name) for name in ("Legal", "Sales")]
    run = make_run(eval_set, JUDGED)
    assert {each.profile for each in others} == {run.profile}

    with pytest.raises(Rejected, check=lambda error: error.code == "profile_shared") as refused, override("en"):
        save_cut(superuser, run, cut=0.6, name=run.profile.name)
    assert "Legal, Sales." in str(refused.value)
    assert "handbook" not in str(refused.value)
    assert not RetrievalProfile.objects.filter(name=run.profile.name, version=2).exists()

    saved = save_cut(superuser, run, cut=0.6, confirm_shared=True)
    assert (saved.name, saved.version, saved.knowledge_base) == (run.profile.name, 2, None)


def test_a_shared_profile_that_nobody_else_searches_by_needs_no_confirmation(eval_set):
    run = make_run(eval_set, JUDGED, profile=built_in("weighted"))

    saved = save_cut(principal(make_user(superuser=True)), run, cut=0.6, name="weighted")

    assert (saved.version, saved.knowledge_base) == (2, None)


def test_of_those_that_share_a_profile_the_unseen_are_counted_only(owner, kb, eval_set, own):
    secret = make_kb(name="Secret")
    KnowledgeBase.objects.filter(pk__in=[secret.pk, make_kb(owner, "Second").pk]).update(profile=own)
    run = make_run(eval_set, JUDGED, profile=own)

    assert save_cut(principal(owner), run, cut=0.6).name == "mine-handbook"
    with pytest.raises(Rejected) as refused, override("en"):
        save_cut(principal(owner), run, cut=0.6, name="mine")
    assert "Second, and 1 that you may not see." in str(refused.value)


def test_a_viewer_saves_nothing(kb, eval_set, own):
    viewer = make_member(kb, Membership.Role.VIEWER)

    with pytest.raises(NotAllowed):
        save_cut(principal(viewer), make_run(eval_set, JUDGED, profile=own), cut=0.6)


def test_a_cut_out_of_range_is_refused(owner, eval_set, own):
    with pytest.raises(InvalidConfiguration):
        save_cut(principal(owner), make_run(eval_set, JUDGED, profile=own), cut=1.5)
