"""A copy that its server has lost: searches say so, and the next change fills it again."""

import numpy as np
import pytest

from kb.index.mirrors.registry import MirroredKeywordStore, MirroredVectorStore, mirror
from retrieval.errors import ChannelUnavailable, DegradationCode
from tests.factories import make_document, make_kb
from tests.kb.index.copies import apply, use
from tests.kb.index.vectors import MODEL, add_chunks, add_vectors

pytestmark = pytest.mark.django_db

QUERY = np.array([1, 0, 0], dtype=np.float32)


@pytest.fixture
def kb():
    return make_kb()


@pytest.fixture(params=["milvus", "chroma"])
def store(request):
    request.getfixturevalue(request.param)
    return request.param


def nearest(kb, store):
    return MirroredVectorStore(store).search(kb.pk, MODEL, QUERY, 5)[0].tolist()


def counted(kb, store):
    return sorted(mirror(store).counts(kb.pk).values())


def test_a_keyword_search_says_that_the_texts_were_lost(kb, milvus):
    use(kb, "milvus")
    make_document(kb, "合同的效力")
    apply(kb)
    keywords = MirroredKeywordStore("milvus", "zh")
    chunk_ids = keywords.search(kb.pk, "合同", 5)[0]
    mirror("milvus").drop(kb.pk)

    for ask in (lambda: keywords.search(kb.pk, "合同", 5), lambda: keywords.scores(kb.pk, "合同", chunk_ids)):
        with pytest.raises(ChannelUnavailable, match="page Store") as raised:
            ask()
        assert raised.value.code is DegradationCode.STORE_BEHIND


def test_a_vector_search_says_that_the_vectors_were_lost(kb, store):
    use(kb, store)
    add_vectors(kb, add_chunks(kb, 2), [QUERY, [0, 1, 0]])
    apply(kb)
    mirror(store).drop(kb.pk)

    with pytest.raises(ChannelUnavailable, match="page Store"):
        nearest(kb, store)


def test_where_nothing_was_taken_in_nothing_was_lost(kb, store):
    use(kb, store)
    assert nearest(kb, store) == []

    chunk_ids = add_chunks(kb, 1)
    add_vectors(kb, chunk_ids, [QUERY])

    assert nearest(kb, store) == chunk_ids


def test_a_base_without_texts_has_lost_none(kb, milvus):
    use(kb, "milvus")

    assert MirroredKeywordStore("milvus", "zh").search(kb.pk, "合同", 5)[0].size == 0


@pytest.mark.parametrize("model", [MODEL, "other"])
def test_the_next_change_fills_a_lost_copy_again(kb, store, model):
    use(kb, store)
    chunk_ids = add_chunks(kb, 3)
    add_vectors(kb, chunk_ids, [QUERY] * 3, model="other")
    add_vectors(kb, chunk_ids, [QUERY] * 3)
    apply(kb)
    before = counted(kb, store)
    mirror(store).drop(kb.pk)

    add_vectors(kb, chunk_ids[:1], [QUERY], model=model, ordinal=1)  # of one chunk, without its text
    apply(kb)

    assert counted(kb, store) == sorted([*before[:-1], before[-1] + 1])
