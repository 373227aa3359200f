import math
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st
from rank_bm25 import BM25Okapi

from retrieval.bm25 import FORMAT, OkapiIndex, okapi_idf, okapi_parameters, require_dependencies
from retrieval.errors import DependencyMissing, RetrievalError
from retrieval.postings import count_postings, hash_terms

CORPUS = [
    ["知识", "库", "检索"],
    ["检索", "检索", "速度", "很", "快"],
    ["天气", "很", "好"],
    ["知识", "图谱", "知识", "推理"],
    ["缓存", "失效"],
]

documents = st.lists(st.sampled_from("abcdefgh"), max_size=12)
corpora = st.lists(documents, min_size=1, max_size=25).filter(any)
queries = st.lists(st.sampled_from("abcdefghxy"), min_size=1, max_size=6)


def build(corpus, chunk_ids=None):
    chunk_ids = range(10, 10 + len(corpus)) if chunk_ids is None else chunk_ids
    counted = [count_postings(tokens) for tokens in corpus]
    return OkapiIndex.build(
        (chunk_id, postings.terms_bytes, postings.frequencies_bytes, postings.length)
        for chunk_id, postings in zip(chunk_ids, counted, strict=True)
    )


def everything(index, query):
    ids, scores = index.search(hash_terms(query), max(index.chunk_count, 1))
    return dict(zip(ids.tolist(), scores.tolist(), strict=True))


@given(corpus=corpora, query=queries)
def test_scores_are_the_librarys_where_its_idf_is_positive(corpus, query):
    oracle = BM25Okapi(corpus)
    assume(all(oracle.idf.get(term, 1.0) > 1e-9 for term in query))
    index = build(corpus)

    expected = oracle.get_scores(query)

    ids = index.chunk_ids
    np.testing.assert_allclose(index.score(hash_terms(query), ids), expected, rtol=1e-4)
    found = everything(index, query)
    np.testing.assert_allclose([found.get(chunk_id, 0.0) for chunk_id in ids.tolist()], expected, rtol=1e-4)


@given(corpus=corpora, query=queries)
def test_a_chunk_is_found_exactly_when_it_holds_a_query_term_and_then_scores_above_zero(corpus, query):
    index = build(corpus)

    found = everything(index, query)

    assert set(found) == {10 + place for place, tokens in enumerate(corpus) if set(tokens) & set(query)}
    assert all(score > 0 for score in found.values())


@given(corpus=corpora, query=queries, k=st.integers(1, 30), data=st.data())
def test_top_k_is_the_head_of_the_full_order_with_ties_by_chunk_id(corpus, query, k, data):
    index = build(corpus + corpus)
    only = data.draw(st.none() | st.lists(st.integers(5, 70), unique=True).map(sorted))
    ordered = sorted(everything(index, query).items(), key=lambda item: (-item[1], item[0]))

    ids, scores = index.search(hash_terms(query), k, None if only is None else np.array(only, dtype=np.int64))

    expected = [item for item in ordered if only is None or item[0] in only][:k]
    assert list(zip(ids.tolist(), scores.tolist(), strict=True)) == expected


def test_the_head_of_a_large_corpus_is_that_of_its_full_order():
    draw = np.random.default_rng(7)
    index = build([list(draw.choice(list("abcdefgh"), draw.integers(1, 20))) for _ in range(1_000)])
    for query in ("a", "ab", "hgf", "bdfh"):
        ordered = sorted(everything(index, query).items(), key=lambda item: (-item[1], item[0]))

        ids, scores = index.search(hash_terms(query), 10)

        assert list(zip(ids.tolist(), scores.tolist(), strict=True)) == ordered[:10]


@given(corpus=corpora, query=queries)
def test_contributions_add_up_to_the_score(corpus, query):
    index = build(corpus)
    terms = hash_terms(query)

    contributions = index.contributions(terms, index.chunk_ids)

    assert contributions.shape == (len(corpus), len(query))
    found = everything(index, query)
    expected = [found.get(i, 0.0) for i in index.chunk_ids.tolist()]
    np.testing.assert_allclose(contributions.sum(axis=1), expected, rtol=1e-6)


@given(corpus=corpora, query=queries)
def test_frequencies_are_counts(corpus, query):
    index = build(corpus)

    frequencies = index.frequencies(hash_terms(query), index.chunk_ids)

    assert frequencies.tolist() == [[Counter(tokens)[term] for term in query] for tokens in corpus]


def test_a_repeated_query_term_counts_repeatedly_as_in_the_library():
    index = build(CORPUS)

    once, twice = everything(index, ["天气"]), everything(index, ["天气", "天气"])

    assert twice[12] == pytest.approx(2 * once[12])
    assert twice[12] == pytest.approx(BM25Okapi(CORPUS).get_scores(["天气", "天气"])[2])


def test_equal_scores_at_the_cut_go_to_the_lower_chunk_ids_whatever_the_order_of_rows():
    chunk_ids = [50, 40, 30, 20, 10, 5]
    index = build([["a"], ["a"], ["a"], ["a"], ["a"], ["b"]], chunk_ids)

    ids, _ = index.search(hash_terms(["a"]), 3)

    assert ids.tolist() == [10, 20, 30]
    assert index.chunk_ids.tolist() == sorted(chunk_ids)


def test_fewer_than_k_chunks_of_a_large_corpus_are_all_found():
    index = build([["a"]] * 700 + [["a", "b"]] * 3 + [["a"]] * 300)

    ids, _ = index.search(hash_terms(["b"]), 10)

    assert ids.tolist() == [710, 711, 712]


def test_a_filtered_search_still_fills_k():
    index = build([["a", "a"], ["a"], ["a", "c"], ["b"], ["b"], ["b"], ["b"]])

    ids, scores = index.search(hash_terms(["a"]), 2, np.array([11, 12, 13, 14]))

    assert ids.tolist() == [11, 12]
    assert scores.tolist() == pytest.approx(index.score(hash_terms(["a"]), ids).tolist())


def test_an_unknown_query_term_changes_nothing():
    index = build(CORPUS)

    assert everything(index, ["检索", "没有"]) == everything(index, ["检索"])
    assert everything(index, ["没有"]) == {}


def test_a_query_without_terms_finds_nothing():
    ids, scores = build(CORPUS).search(hash_terms([]), 5)

    assert (ids.tolist(), scores.tolist()) == ([], [])


def test_chunks_outside_the_index_score_zero():
    index = build(CORPUS)
    outside = np.array([1, 99])

    assert index.score(hash_terms(["检索"]), outside).tolist() == [0.0, 0.0]
    assert index.frequencies(hash_terms(["检索"]), outside).tolist() == [[0], [0]]


def test_given_chunks_are_scored_in_the_order_asked():
    index = build(CORPUS)
    found = everything(index, ["检索"])

    scores = index.score(hash_terms(["检索"]), np.array([11, 99, 10]))

    assert scores.tolist() == pytest.approx([found[11], 0.0, found[10]])


def test_the_only_chunk_of_a_kb_scores_above_zero():
    assert BM25Okapi([["a", "b"]]).get_scores(["a"])[0] < 0

    assert everything(build([["a", "b"]]), ["a"])[10] > 0


def test_a_term_in_exactly_half_of_the_chunks_has_the_stated_floor():
    corpus = [["a"], ["a"], ["b"], ["c"]]
    assert BM25Okapi(corpus).idf["a"] == 0

    idf = build(corpus).idf(hash_terms(["a"]))

    assert idf[0] == pytest.approx(0.25 * math.log(2))


def test_a_term_in_all_chunks_has_the_stated_floor_when_the_librarys_is_not_positive():
    idf = build([["a"], ["a"]]).idf(hash_terms(["a"]))

    assert idf[0] == pytest.approx(0.25 * math.log(1 + 0.5 / 2.5))


def test_a_term_in_most_chunks_keeps_the_librarys_own_floor_when_that_is_positive():
    corpus = [["a", str(number)] for number in range(20)]
    oracle = BM25Okapi(corpus).idf["a"]
    assert oracle > 0

    assert build(corpus).idf(hash_terms(["a"]))[0] == pytest.approx(oracle)


def test_an_unknown_term_has_the_idf_of_a_term_in_no_chunk():
    index = build(CORPUS)

    unknown, rare = index.idf(hash_terms(["没有", "天气"]))

    assert unknown == pytest.approx(math.log(5.5 / 0.5))
    assert unknown > rare > 0


def test_idf_of_no_terms_is_empty():
    assert okapi_idf(np.array([], dtype=np.int64), 5).shape == (0,)


def test_parameters_are_the_librarys_defaults():
    oracle = BM25Okapi(CORPUS)

    parameters = okapi_parameters()

    assert (parameters.k1, parameters.b, parameters.epsilon) == (oracle.k1, oracle.b, oracle.epsilon)


def test_an_empty_kb_finds_nothing():
    index = OkapiIndex.build([])

    assert (index.chunk_count, index.posting_count) == (0, 0)
    assert everything(index, ["a"]) == {}
    assert index.score(hash_terms(["a"]), np.array([1])).tolist() == [0.0]
    assert index.idf(hash_terms(["a"]))[0] > 0


def test_a_chunk_without_terms_is_counted_and_never_found():
    index = build([["a"], [], ["b"]])

    assert index.chunk_count == 3
    assert set(everything(index, ["a", "b"])) == {10, 12}


def test_a_kb_whose_chunks_hold_no_terms_finds_nothing():
    assert everything(build([[], []]), ["a"]) == {}


def test_sizes_are_reported():
    index = build(CORPUS)

    assert index.posting_count == sum(len(set(tokens)) for tokens in CORPUS)
    assert index.nbytes >= 8 * index.posting_count


def test_k_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        build(CORPUS).search(hash_terms(["a"]), 0)


def test_damaged_postings_are_refused_and_named():
    with pytest.raises(RetrievalError, match="chunk 7"):
        OkapiIndex.build([(3, b"12345678", b"1234", 1), (7, b"12345678", b"", 1)])


@given(corpus=st.lists(documents, max_size=10), query=queries)
def test_an_index_survives_its_state(corpus, query):
    index = build(corpus)

    read = OkapiIndex.from_state(index.state())

    assert everything(read, query) == everything(index, query)
    assert read.chunk_ids.tolist() == index.chunk_ids.tolist()


def test_state_holds_builtin_types_only():
    state = build(CORPUS).state()

    assert state.pop("format") == FORMAT
    for dtype, shape, data in state.values():
        assert (type(dtype), type(shape), {type(size) for size in shape}, type(data)) == (str, tuple, {int}, bytes)


@pytest.mark.parametrize(
    "change",
    [{"format": FORMAT - 1}, {"terms": None}, {"terms": ("<u8", (1,), b"")}, {"terms": ("<u4", (1,), b"1234")},
     {"terms": ("<u8", (1,), "text")}],
)  # fmt: skip
def test_a_state_of_another_shape_is_refused(change):
    with pytest.raises(ValueError, match=r"format|terms|reshape"):
        OkapiIndex.from_state(build(CORPUS).state() | change)


@pytest.mark.parametrize("state", [None, {}, [1]])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match=f"format {FORMAT}"):
        OkapiIndex.from_state(state)


def test_a_state_without_an_array_is_refused():
    state = build(CORPUS).state()
    del state["indptr"]

    with pytest.raises(ValueError, match="indptr"):
        OkapiIndex.from_state(state)


def test_installed_dependencies_are_accepted():
    require_dependencies()


@pytest.mark.parametrize("module", ["rank_bm25", "jieba", "Stemmer"])
def test_a_missing_dependency_is_reported(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(DependencyMissing, match=module):
        require_dependencies()
