import pytest

from kb.base.errors import NotVisible, Rejected
from kb.base.shapes import as_values
from kb.models import Chunk, EvalRun, SearchLog
from kb.quality.compare.services import compare_runs, compare_searches, tied_queries
from kb.search.services.search import SearchRequest, UsedProfile
from tests.factories import make_document, make_kb, make_user, principal
from tests.kb.quality.runs.eval_runs import answered, draft, make_run, make_set, unanswered

pytestmark = pytest.mark.django_db


@pytest.fixture
def user():
    return make_user()


@pytest.fixture
def kb(user):
    return make_kb(user, language="en")


@pytest.fixture
def eval_set(kb):
    return make_set(kb)


# -- Runs --------------------------------------------------------------------------------------------------------------


def test_tells_each_stages_figures_and_how_they_moved(eval_set):
    before = make_run(eval_set, [answered("a", 0.2), answered("b", 0.4)])
    after = make_run(eval_set, [answered("a", 0.6), answered("b", 0.4)])

    stages = compare_runs(before, after).stages

    moved = stages["reranked"]["ndcg@10"]
    assert (moved.before, moved.after, moved.difference) == pytest.approx((0.3, 0.5, 0.2))
    assert list(stages) == ["bm25", "vector", "fused", "reranked"]
    assert (stages["bm25"]["recall@5"].difference, stages["bm25"]["recall@5"].p_value) == (0.0, 1.0)


def test_a_gain_of_every_query_is_significant_and_that_of_one_is_not(eval_set):
    names = [f"q{number}" for number in range(30)]
    before = make_run(eval_set, [answered(name, 0.5) for name in names])
    all_gain = make_run(eval_set, [answered(name, 0.6) for name in names])
    one_gains = make_run(eval_set, [answered(name, 0.9 if name == "q3" else 0.5) for name in names])

    assert compare_runs(before, all_gain).stages["reranked"]["ndcg@10"].p_value < 0.001
    assert compare_runs(before, one_gains).stages["reranked"]["ndcg@10"].p_value == 1.0


def test_lists_the_queries_won_and_lost_with_the_largest_difference_first(eval_set):
    before = make_run(eval_set, [answered("a", 0.5), answered("b", 0.5), answered("c", 0.5), answered("d", 0.5)])
    after = make_run(eval_set, [answered("a", 0.6), answered("b", 1.0), answered("c", 0.1), answered("d", 0.5)])

    comparison = compare_runs(before, after)

    assert [query.external_id for query in comparison.won] == ["b", "a"]
    assert [(query.external_id, query.difference) for query in comparison.lost] == [("c", pytest.approx(-0.4))]
    assert ([query.external_id for query in tied_queries(before, after)], comparison.tied) == (["d"], 1)


def test_a_lost_query_names_the_stage_that_lost_it(eval_set):
    before = make_run(eval_set, [answered("a", 1.0)])
    after = make_run(eval_set, [answered("a", 0.0, lost_at="fusion")])

    (lost,) = compare_runs(before, after).lost

    assert (lost.lost_at_before, lost.lost_at_after) == ("", "fusion")


def test_counts_queries_that_only_one_run_has_and_leaves_them_out(eval_set):
    before = make_run(eval_set, [answered("a", 0.5), answered("gone", 0.0)])
    after = make_run(eval_set, [answered("a", 0.5), answered("new", 1.0), answered("newer", 1.0)])

    comparison = compare_runs(before, after)

    assert (comparison.queries, comparison.only_before, comparison.only_after) == (1, 1, 2)
    assert comparison.stages["reranked"]["ndcg@10"].difference == 0.0


def test_queries_without_an_answer_are_told_by_the_gate_alone(eval_set):
    queries = [answered("a"), unanswered("none", 0.7)]
    gates = [
        {"scale": "overlap", "cut": 0.6, "false_answer_rate": rate, "unanswerable_passed": rate, "unanswerable": 1}
        for rate in (1.0, 0.0)
    ]
    before, after = (make_run(eval_set, queries, gate=gate) for gate in gates)

    comparison = compare_runs(before, after)

    assert comparison.queries == 1
    assert comparison.gate["false_answer_rate"].difference == -1.0
    assert list(comparison.gate) == ["cut", "false_answer_rate"]


def test_gates_of_different_scales_are_not_compared(eval_set):
    gates = [{"scale": scale, "cut": 0.6, "auroc": 0.9} for scale in ("overlap", "cosine")]
    before, after = (make_run(eval_set, [answered("a")], gate=gate) for gate in gates)

    assert compare_runs(before, after).gate == {}


def test_tells_the_settings_the_models_and_the_content_that_differ(eval_set):
    before = make_run(eval_set, [answered("a")])
    after = make_run(
        eval_set,
        [answered("a")],
        configuration={"fusion": "weighted", "top_k": 20},
        model_ids={"embedding": "hashing", "reranker": "bge"},
        kb_version=2,
    )

    comparison = compare_runs(before, after)

    assert [(each.name, each.before, each.after) for each in comparison.settings] == [("fusion", "rrf", "weighted")]
    assert [(each.name, each.before, each.after) for each in comparison.models] == [("reranker", None, "bge")]
    assert not comparison.same_content


def test_a_reranker_that_was_to_be_asked_and_did_not_answer_is_no_difference(eval_set):
    models = {"embedding": "hashing", "reranker": "bge"}
    runs = [
        make_run(eval_set, [answered("a")], model_ids=ids, report={"rerankers": ["overlap"]})
        for ids in (models, {"embedding": "hashing"})
    ]
    assert compare_runs(*runs).models == ()


def test_where_no_reranker_has_answered_the_fusion_made_the_results(eval_set):
    before = make_run(eval_set, [answered("a", 0.7)])
    after = make_run(eval_set, [answered("a", 0.0)], report={"final_stage": "fused"})

    comparison = compare_runs(before, after)

    assert comparison.stages["reranked"]["ndcg@10"].after == 0.5
    assert [query.after for query in comparison.lost] == [0.5]


def test_runs_of_different_sets_are_refused_with_their_names(kb, eval_set):
    other = make_run(make_set(kb, "others"), [answered("a")])

    with pytest.raises(Rejected, check=lambda error: "questions" in str(error) and "others" in str(error)) as refused:
        compare_runs(make_run(eval_set, [answered("a")]), other)
    assert refused.value.code == "different_sets"


@pytest.mark.parametrize("status", [each for each in EvalRun.Status if each != EvalRun.Status.DONE])
def test_a_run_that_is_not_done_is_refused(eval_set, status):
    done, other = make_run(eval_set, [answered("a")]), make_run(eval_set, [answered("a")], status=status)

    with pytest.raises(Rejected, check=lambda error: error.code == "run_not_done"):
        compare_runs(done, other)


def test_runs_without_a_common_query_are_refused(eval_set):
    with pytest.raises(Rejected, check=lambda error: error.code == "no_common_queries"):
        compare_runs(make_run(eval_set, [answered("a")]), make_run(eval_set, [answered("b")]))


def test_runs_over_unanswerable_queries_alone_have_no_stages(eval_set):
    queries = [unanswered("none", 0.7)]

    assert compare_runs(make_run(eval_set, queries), make_run(eval_set, queries)).stages == {}


def test_reads_both_runs_in_two_queries(eval_set, django_assert_num_queries):
    before, after = (make_run(eval_set, [answered(f"q{n}") for n in range(40)]) for _ in range(2))

    with django_assert_num_queries(2):
        compare_runs(before, after)


# -- Searches ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def documents(kb):
    make_document(kb, "Annual leave is five days.", "Annual leave is taken in summer.", title="Leave")
    make_document(kb, "Hotels are booked by the office.", title="Hotels")
    return list(Chunk.objects.filter(knowledge_base=kb).order_by("pk").values_list("pk", flat=True))


def request(kb, query="annual leave summer", **overrides):
    settings = {"score_threshold": 0.0, **overrides}
    return SearchRequest(query=query, knowledge_base_ids=[kb.pk], overrides=settings)


def test_the_same_search_twice_is_identical(user, kb, documents):
    comparison = compare_searches(principal(user), request(kb), request(kb))

    assert comparison.response.identical
    assert comparison.response.settings == ()
    assert all(result.moved == 0 for result in comparison.response.results)


def test_tells_the_ranks_of_every_result_of_either(user, kb, documents):
    comparison = compare_searches(principal(user), request(kb), request(kb, top_k=1))

    ranks = [(result.rank.a, result.rank.b) for result in comparison.response.results]
    assert ranks == [(1, 1), (2, None), (3, None)]
    assert [result.cut_by.b for result in comparison.response.results] == ["", "top_k", "top_k"]
    assert not comparison.response.identical


def test_a_result_that_only_the_other_side_has_names_what_lost_it(user, kb, documents):
    comparison = compare_searches(principal(user), request(kb, score_threshold=0.99), request(kb, top_k=1))

    (result,) = comparison.response.results
    assert (result.rank.a, result.rank.b, result.moved) == (None, 1, None)
    assert result.cut_by.a == "gate"


def test_movement_counts_places_up_from_a_to_b(user):
    kb = make_kb(user, language="en")
    make_document(kb, "Annual leave, annual leave.", title="Leave")
    make_document(kb, "In summer " + "any department grants what its rules call " * 4 + "annual leave.", title="Rules")
    make_document(kb, "summer summer summer", title="Sun")
    by_words, by_vectors = request(kb), request(kb, use_rerank=False)

    results = compare_searches(principal(user), by_words, by_vectors).response.results

    assert [(each.rank.a, each.rank.b, each.moved) for each in results] == [(1, 1, 0), (2, 3, -1), (3, 2, 1)]


def test_names_the_settings_that_differ(user, kb, documents):
    comparison = compare_searches(principal(user), request(kb), request(kb, fusion="weighted"))

    assert [(each.name, each.before, each.after) for each in comparison.response.settings] == [
        ("fusion", "rrf", "weighted")
    ]


def test_a_side_may_name_a_draft(user, kb, documents):
    version = draft(kb.profile, top_k=1)
    b = SearchRequest(
        query="annual leave",
        knowledge_base_ids=[kb.pk],
        profile=version.name,
        profile_version=version.version,
        overrides={"score_threshold": 0.0},
    )

    comparison = compare_searches(principal(user), request(kb, "annual leave"), b)

    assert comparison.response.b.profile == UsedProfile.of(version)
    assert sum(result.rank.b is not None for result in comparison.response.results) == 1


def test_neither_search_is_logged(user, kb, documents):
    compare_searches(principal(user), request(kb), request(kb, top_k=1))

    assert not SearchLog.objects.exists()


def test_each_side_tells_its_times_and_degradations(user, kb, documents):
    sides = as_values(compare_searches(principal(user), request(kb), request(kb)).response)

    for side in (sides["a"], sides["b"]):
        assert side["timings_ms"]["total"] > 0
        assert [each["code"] for each in side["degraded"]] == ["hashing_embedder"]


def test_another_users_knowledge_base_does_not_exist(kb, documents):
    with pytest.raises(NotVisible):
        compare_searches(principal(make_user()), request(kb), request(kb))
