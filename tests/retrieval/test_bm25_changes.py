"""An index with changes is the index of what is there now."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from retrieval.bm25 import OkapiIndex
from retrieval.character_counts import CharacterCounter, query_codes
from retrieval.errors import RetrievalError
from retrieval.postings import count_postings, hash_terms

documents = st.lists(st.sampled_from("abcdefgh"), max_size=8)
new_documents = st.lists(st.sampled_from("efghijkl"), max_size=8)
queries = st.lists(st.sampled_from("abcdefghijklxy"), min_size=1, max_size=6)
corpora = st.dictionaries(st.integers(1, 40), documents, max_size=25)
# None: deleted, or never there.
edits = st.dictionaries(st.integers(1, 50), st.none() | new_documents, max_size=15)

BASE = {10: ["知识", "库"], 20: ["检索", "速度"], 30: ["检索", "检索", "库"], 40: ["缓存"], 50: ["图谱"]}


def rows(corpus):
    counted = {chunk_id: count_postings(tokens) for chunk_id, tokens in corpus.items()}
    return [(key, found.terms_bytes, found.frequencies_bytes, found.length) for key, found in counted.items()]


def build(corpus):
    return OkapiIndex.build(rows(corpus))


def change(index, changes):
    changed = np.array(sorted(changes), dtype=np.int64)
    return index.with_changes(changed, rows({key: tokens for key, tokens in changes.items() if tokens is not None}))


def after(corpus, changes):
    return {key: tokens for key, tokens in (corpus | changes).items() if tokens is not None}


def ranking(index, query, k=100, only=None):
    ids, scores = index.search(hash_terms(query), k, only)
    return ids.tolist(), scores.tolist()


@given(corpus=corpora, changes=edits, query=queries, k=st.integers(1, 30), data=st.data())
def test_the_ranking_is_that_of_a_full_build(corpus, changes, query, k, data):
    only = data.draw(st.none() | st.lists(st.integers(1, 50), unique=True).map(sorted))
    only = None if only is None else np.array(only, dtype=np.int64)
    full = build(after(corpus, changes))

    ids, scores = ranking(change(build(corpus), changes), query, k, only)

    expected_ids, expected_scores = ranking(full, query, k, only)
    assert ids == expected_ids
    assert scores == pytest.approx(expected_scores, rel=1e-9, abs=0)


def test_the_ranking_in_a_large_kb_is_that_of_a_full_build():
    draw = np.random.default_rng(11)
    words = [f"t{rank}" for rank in range(200)]
    shares = 1 / np.arange(1, 201)

    def documents_of(chunk_ids):
        return {key: draw.choice(words, draw.integers(1, 30), p=shares / shares.sum()).tolist() for key in chunk_ids}

    corpus = documents_of(range(3_000))
    changes = documents_of(range(2_900, 3_100)) | dict.fromkeys(range(1_000, 1_050))
    full, changed = build(after(corpus, changes)), change(build(corpus), changes)
    only = np.arange(500, 3_100, 2)
    for query in (words[:3], words[5:50:5], words[150:]):
        for chunk_ids in (None, only):
            assert ranking(changed, query, 10, chunk_ids) == ranking(full, query, 10, chunk_ids)


@given(corpus=corpora, changes=edits, query=queries)
def test_given_chunks_score_as_in_a_full_build(corpus, changes, query):
    terms, chunk_ids = hash_terms(query), np.arange(60)[::-1]
    full, changed = build(after(corpus, changes)), change(build(corpus), changes)

    assert changed.score(terms, chunk_ids) == pytest.approx(full.score(terms, chunk_ids), rel=1e-9, abs=0)
    assert changed.contributions(terms, chunk_ids) == pytest.approx(full.contributions(terms, chunk_ids), rel=1e-9)
    assert changed.frequencies(terms, chunk_ids).tolist() == full.frequencies(terms, chunk_ids).tolist()
    assert changed.idf(terms) == pytest.approx(full.idf(terms), rel=1e-9, abs=0)


@given(corpus=corpora, changes=edits)
def test_counts_are_those_of_a_full_build(corpus, changes):
    full, changed = build(after(corpus, changes)), change(build(corpus), changes)

    assert changed.chunk_ids.tolist() == full.chunk_ids.tolist()
    assert (changed.chunk_count, changed.posting_count) == (full.chunk_count, full.posting_count)
    assert (changed.changed_count, full.changed_count) == (len(changes), 0)


@given(corpus=corpora, first=edits, second=edits, query=queries)
def test_changes_are_always_those_of_the_base(corpus, first, second, query):
    base = build(corpus)

    again = change(change(base, first), second)

    assert again.base is base
    assert ranking(again, query) == ranking(change(base, second), query)


def test_an_index_without_changes_is_its_own_base():
    index = build(BASE)

    assert index.base is index


def test_equal_scores_go_to_the_lower_chunk_ids_of_base_and_changes_together():
    index = change(build({10: ["a"], 20: ["a"], 30: ["a"], 40: ["b"]}), {15: ["a"], 20: ["c"], 35: ["a"]})

    assert ranking(index, ["a"], 3)[0] == [10, 15, 30]


def test_everything_can_be_deleted():
    index = change(build(BASE), dict.fromkeys(BASE))

    assert ranking(index, ["检索"]) == ([], [])
    assert (index.chunk_count, index.posting_count, index.chunk_ids.tolist()) == (0, 0, [])


def test_an_empty_kb_takes_its_first_chunks_as_changes():
    index = change(build({}), BASE)

    assert ranking(index, ["检索"]) == ranking(build(BASE), ["检索"])


def test_no_change_at_all_leaves_the_ranking():
    assert ranking(change(build(BASE), {}), ["检索", "库"]) == ranking(build(BASE), ["检索", "库"])


def test_the_base_is_not_touched():
    base = build(BASE)
    before = ranking(base, ["检索", "库"])

    change(base, {20: ["天气"], 30: None, 60: ["检索"]})

    assert ranking(base, ["检索", "库"]) == before


def test_sizes_count_the_base_once():
    base = build(BASE)
    changed = change(base, {60: ["检索"]})

    assert base.nbytes < changed.nbytes < base.nbytes + build({60: ["检索"]}).nbytes + base.nbytes


def test_only_a_base_has_a_state():
    index = change(build(BASE), {60: ["检索"]})

    with pytest.raises(ValueError, match="store its base"):
        index.state()
    assert ranking(OkapiIndex.from_state(index.base.state()), ["检索"]) == ranking(build(BASE), ["检索"])


def test_postings_of_an_unnamed_chunk_are_refused():
    with pytest.raises(ValueError, match="not among the changed"):
        build(BASE).with_changes(np.array([20]), rows({30: ["检索"]}))


def test_damaged_postings_are_refused_and_named():
    with pytest.raises(RetrievalError, match="chunk 60"):
        build(BASE).with_changes(np.array([60]), [(60, b"12345678", b"", 1)])


# -- Other rows over an index that may have changes --------------------------------------------------------------------
added = st.dictionaries(st.integers(1, 50), new_documents, max_size=5)


@given(corpus=corpora, changes=edits, further=added, query=queries)
def test_further_rows_over_changes_rank_as_a_full_build(corpus, changes, further, query):
    index = change(build(corpus), changes)
    former = ranking(index, query)

    ids, scores = ranking(index.with_rows(rows(further)), query)

    expected_ids, expected_scores = ranking(build(after(corpus, changes) | further), query)
    assert ids == expected_ids
    assert scores == pytest.approx(expected_scores, rel=1e-9, abs=0)
    assert ranking(index, query) == former


def test_characters_count_further_texts_with_those_that_changes_added():
    counter, whole = CharacterCounter(), CharacterCounter()
    counter.add("保修期为两年")
    for text in ("保修期为两年", "免费维修", "两年保修"):
        whole.add(text)
    codes = query_codes("保修两年", ("保修", "两年"))

    counts = counter.counts().with_added(["免费维修"]).with_texts(["两年保修"])

    assert counts.most(codes).tolist() == whole.counts().most(codes).tolist()
    assert counts.chunk_count == 3
