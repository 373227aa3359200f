"""Ranks far below what a search reads, against a full sort."""

import numpy as np
import pytest

from kb.index.pgvector import exact_place
from tests.factories import make_kb
from tests.kb.index.searching import sql
from tests.kb.index.vectors import MODEL, add_chunks, add_vectors, clustered

pytestmark = pytest.mark.django_db

DIMENSION = 64


@pytest.fixture
def kb():
    return make_kb()


def similarities(vectors, query):
    """As halves multiply."""
    halves = vectors.astype(np.float16).astype(np.float64)
    wanted = query.astype(np.float16).astype(np.float64)
    return halves @ wanted / np.linalg.norm(halves, axis=1) / np.linalg.norm(wanted)


@pytest.fixture
def vectors():
    return clustered(200, dimension=DIMENSION)


@pytest.fixture
def ids(kb, vectors):
    ids = add_chunks(kb, len(vectors))
    add_vectors(kb, ids, vectors)
    return ids


@pytest.mark.parametrize("row", [0, 7, 199])
def test_it_is_the_place_in_a_full_sort(kb, ids, vectors, row):
    cosines = similarities(vectors, vectors[3])

    found = exact_place(kb.pk, MODEL, vectors[3], ids[row])

    assert found.rank == 1 + (cosines > cosines[row]).sum()
    assert found.similarity == pytest.approx(cosines[row], abs=1e-3)
    assert (found.total, found.is_indexed) == (200, False)


def test_only_chunks_that_pass_the_filters_and_are_enabled_count(kb, ids, vectors):
    nearest = np.argsort(-similarities(vectors, vectors[3]), kind="stable")
    sql("UPDATE kb_chunkembedding SET enabled = false WHERE chunk_id = %s", ids[nearest[0]])
    passing = np.sort(np.array(ids)[nearest[1:50:2]])

    found = exact_place(kb.pk, MODEL, vectors[3], ids[nearest[49]], only=passing)

    assert (found.rank, found.total) == (25, 25)


def test_a_chunk_without_a_vector_has_no_rank(kb, ids, vectors):
    (bare,) = add_chunks(kb, 1)

    found = exact_place(kb.pk, MODEL, vectors[3], bare)

    assert (found.rank, found.similarity, found.total) == (None, None, 200)


def test_a_vector_of_length_0_has_no_rank_and_takes_none(kb, ids, vectors):
    (empty,) = add_chunks(kb, 1)
    add_vectors(kb, [empty], [np.zeros(DIMENSION)])

    assert exact_place(kb.pk, MODEL, vectors[3], empty).rank is None
    assert exact_place(kb.pk, MODEL, vectors[3], ids[0]).total == 200


def test_the_vector_of_keywords_has_its_share(kb, ids, vectors):
    add_vectors(kb, ids[:100], vectors[100:], kind="keywords")
    content = similarities(vectors, vectors[3])
    joined = np.concatenate([0.5 * content[:100] + 0.5 * content[100:], content[100:]])

    found = exact_place(kb.pk, MODEL, vectors[3], ids[42], keyword_share=0.5)

    assert found.rank == 1 + (joined > joined[42]).sum()
    assert found.similarity == pytest.approx(joined[42], abs=1e-3)


def test_a_chunk_of_several_questions_counts_with_the_nearest(kb, ids, vectors):
    for ordinal, row in enumerate((150, 3)):
        add_vectors(kb, [ids[0]], [vectors[row]], kind="question", ordinal=ordinal)

    found = exact_place(kb.pk, MODEL, vectors[3], ids[0], kind="question")

    assert (found.rank, found.total) == (1, 1)
    assert found.similarity == pytest.approx(1.0, abs=1e-3)
