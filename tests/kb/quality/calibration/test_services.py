import pytest
from django.utils.translation import override

from kb.base.errors import NotAllowed, Rejected
from kb.models import Chunk, EvalRun, Membership
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


def test_counts_relevant_irrelevant_and_unanswerable_scores_by_bin(eval_set):
    calibration = calibrate(make_run(eval_set, JUDGED))

    by_bin = {
        kind: [calibration.bins[place] for place, count in enumerate(getattr(calibration, kind)) if count]
        for kind in ("relevant", "irrelevant", "unanswerable")
    }
    assert by_bin == {"relevant": [0.8, 0.9], "irrelevant": [0.3], "unanswerable": [0.4]}


def test_suggests_the_cut_that_tells_them_apart(eval_set):
    suggestion = calibrate(make_run(eval_set, JUDGED)).suggestion

    assert (suggestion.cut, suggestion.precision, suggestion.recall) == (0.6, 1.0, 1.0)


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

    assert calibration.suggestion is None
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
        saved = save_cut(principal(owner), run, name="mine", cut=0.6)

    assert (saved.name, saved.version, saved.published) == ("mine", 2, False)
    assert saved.settings == {"fusion": "weighted", "rrf_k": 10, "overlap_threshold": 0.6}
    assert f"run {run.pk}" in saved.description


def test_a_threshold_that_would_win_over_the_cut_is_not_kept(owner, eval_set, kb):
    profile = create_version(principal(owner), "mine", {"score_threshold": 0.1}, knowledge_base=kb)

    saved = save_cut(principal(owner), make_run(eval_set, JUDGED, profile=profile), name="mine", cut=0.6)

    assert saved.settings == {"overlap_threshold": 0.6}


def test_a_threshold_of_the_environment_is_overruled(owner, eval_set, own, settings):
    settings.RETRIEVAL = {**settings.RETRIEVAL, "score_threshold": 0.3}

    saved = save_cut(principal(owner), make_run(eval_set, JUDGED, profile=own), name="mine", cut=0.6)

    assert saved.settings["score_threshold"] is None


def test_a_new_name_makes_a_profile_of_the_knowledge_base(owner, kb, eval_set):
    saved = save_cut(principal(owner), make_run(eval_set, JUDGED), name="stricter", cut=0.6)

    assert (saved.name, saved.version, saved.knowledge_base) == ("stricter", 1, kb)


def test_a_shared_profile_is_not_a_curators_to_change(owner, eval_set):
    run = make_run(eval_set, JUDGED)

    with pytest.raises(NotAllowed):
        save_cut(principal(owner), run, name=run.profile.name, cut=0.6)


def test_a_viewer_saves_nothing(kb, eval_set, own):
    viewer = make_member(kb, Membership.Role.VIEWER)

    with pytest.raises(NotAllowed):
        save_cut(principal(viewer), make_run(eval_set, JUDGED, profile=own), name="mine", cut=0.6)


def test_a_cut_out_of_range_is_refused(owner, eval_set, own):
    with pytest.raises(InvalidConfiguration):
        save_cut(principal(owner), make_run(eval_set, JUDGED, profile=own), name="mine", cut=1.5)
