from django.utils.translation import override

from kb.search.admin.explain.rows import FINAL, moves
from retrieval.types import Candidate


def test_the_way_goes_from_the_best_channel_over_fusion_and_reranker_to_the_final_rank():
    candidate = Candidate(1, 1, {"vector": 9, "bm25": 4, "fused": 6, "rerank": 3}, {})

    with override("en"):
        found = {stage: (move["places"], move["description"]) for stage, move in moves(candidate, 3).items()}

    assert found == {
        "fused": (-2, "down 2 places from rank 4 in “BM25”"),
        "rerank": (3, "up 3 places from rank 6 in “Fusion”"),
        FINAL: (0, "the same rank as in “Rerank”"),
    }


def test_a_result_moves_up_where_a_cap_cut_one_before_it():
    candidate = Candidate(1, 1, {"vector": 2, "fused": 2, "rerank": 2}, {})

    with override("en"):
        assert moves(candidate, 1)[FINAL]["description"] == "up 1 place from rank 2 in “Rerank”"


def test_without_a_reranker_the_final_rank_is_compared_with_the_fused_one():
    candidate = Candidate(1, 1, {"vector": 1, "fused": 2}, {})

    assert moves(candidate, 1)[FINAL]["places"] == 1


def test_a_candidate_that_was_cut_has_no_final_move():
    candidate = Candidate(1, 1, {"vector": 1, "fused": 30}, {})

    assert list(moves(candidate, None)) == ["fused"]
