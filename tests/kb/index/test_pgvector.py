import numpy as np
import pytest

from kb.index import pgvector
from kb.index.pgvector import PgVectorStore
from kb.models import Chunk
from tests.factories import make_kb
from tests.kb.index.vectors import MODEL, add_chunks, add_vectors, unit

pytestmark = pytest.mark.django_db

QUERY = np.array([1, 0, 0], dtype=np.float32)
NEAR, NEARER, FAR = [3, 4, 0], [4, 3, 0], [-1, 0, 0]


@pytest.fixture
def kb():
    return make_kb()


def add(kb, *vectors, **options):
    chunk_ids = add_chunks(kb, len(vectors))
    add_vectors(kb, chunk_ids, vectors, **options)
    return chunk_ids


def search(kb, k=10, *, model=MODEL, **options):
    chunk_ids, similarities = PgVectorStore().search(kb.pk, model, QUERY, k, **options)
    return chunk_ids.tolist(), similarities.tolist()


def test_the_nearest_come_first_with_their_cosine(kb):
    near, nearer, far = add(kb, NEAR, NEARER, FAR)

    found, similarities = search(kb)

    assert found == [nearer, near, far]
    assert similarities == pytest.approx([0.8, 0.6, -1.0], abs=1e-3)


def test_equally_near_ones_stand_in_the_order_of_their_ids(kb):
    chunk_ids = add(kb, *[NEAR] * 5)

    assert search(kb)[0] == chunk_ids
    assert search(kb, 2)[0] == chunk_ids[:2]


def test_other_bases_models_and_kinds_are_apart(kb):
    [mine] = add(kb, NEAR)
    add(make_kb(), NEAR)
    add(kb, NEAR, model="other")
    add(kb, NEAR, kind="keywords")

    assert search(kb)[0] == [mine]


def test_models_of_different_dimensions_lie_side_by_side(kb):
    [mine] = add(kb, NEAR)
    add(kb, [1, 0], model="other")

    assert search(kb)[0] == [mine]


def test_disabled_chunks_are_not_found(kb):
    off, on = add(kb, NEARER, NEAR)
    Chunk.objects.filter(pk=off).update(enabled=False)

    assert search(kb)[0] == [on]
    assert search(kb, only=np.array([off, on]))[0] == [on]


def test_only_the_chunks_asked_for_are_found(kb):
    _, nearer, far = add(kb, NEAR, NEARER, FAR)

    assert search(kb, only=np.array([nearer, far]))[0] == [nearer, far]
    assert search(kb, 1, only=np.array([far]))[0] == [far]


def test_many_chunks_asked_for_are_searched_by_the_same_rules(kb, monkeypatch):
    monkeypatch.setattr(pgvector, "MAX_EXACT", 1)
    _, nearer, far = add(kb, NEAR, NEARER, FAR)

    assert search(kb, 1, only=np.array([nearer, far]))[0] == [nearer]
    assert search(kb, only=np.array([nearer, far]))[0] == [nearer, far]


def test_among_no_chunks_nothing_is_found_without_asking(kb, django_assert_num_queries):
    add(kb, NEAR)

    with django_assert_num_queries(0):
        assert search(kb, only=np.array([], dtype=np.int64)) == ([], [])
        assert search(kb, 0) == ([], [])


def test_a_chunk_with_several_questions_is_found_once_with_the_best(kb):
    first, second = add_chunks(kb, 2)
    for ordinal, vector in enumerate([FAR, NEARER, NEAR]):
        add_vectors(kb, [first], [vector], kind="question", ordinal=ordinal)
    add_vectors(kb, [second], [NEAR], kind="question")

    found, similarities = search(kb, kind="question")

    assert found == [first, second]
    assert similarities == pytest.approx([0.8, 0.6], abs=1e-3)
    assert search(kb, kind="question", only=np.array([first]))[0] == [first]


def test_many_questions_of_one_chunk_leave_room_for_the_others(kb):
    first, second = add_chunks(kb, 2)
    for ordinal in range(3 * pgvector.QUESTIONS_READ):
        add_vectors(kb, [first], [NEARER], kind="question", ordinal=ordinal)
    add_vectors(kb, [second], [NEAR], kind="question")

    assert search(kb, 2, kind="question")[0] == [first, second]


def test_a_vector_without_direction_is_not_found(kb):
    _, near = add(kb, [0, 0, 0], NEAR)

    assert search(kb) == ([near], pytest.approx([0.6], abs=1e-3))


def test_as_many_as_wanted_come_back_beyond_what_an_index_reads_at_once(kb):
    chunk_ids = add(kb, *unit(np.random.default_rng(1).standard_normal((200, 3))))

    assert set(search(kb, 200)[0]) == set(chunk_ids)


def similarities(kb, *chunk_ids, **options):
    wanted = np.array(chunk_ids, dtype=np.int64)
    return PgVectorStore().similarities(kb.pk, MODEL, QUERY, wanted, **options).tolist()


def test_similarities_stand_in_the_order_of_the_chunks_asked_for(kb):
    near, nearer, far = add(kb, NEAR, NEARER, FAR)

    assert similarities(kb, far, near, nearer, near) == pytest.approx([-1.0, 0.6, 0.8, 0.6], abs=1e-3)


def test_a_chunk_without_such_a_vector_has_no_similarity(kb):
    [near] = add(kb, NEAR)
    [zero] = add(kb, [0, 0, 0])
    [elsewhere] = add(make_kb(), NEAR)
    [keywords] = add(kb, NEAR, kind="keywords")

    found = similarities(kb, near, zero, elsewhere, keywords, keywords + 1_000)

    assert np.isnan(found).tolist() == [False, True, True, True, True]


def test_the_similarity_of_questions_is_that_of_the_best(kb):
    [chunk_id] = add_chunks(kb, 1)
    for ordinal, vector in enumerate([FAR, NEARER, NEAR]):
        add_vectors(kb, [chunk_id], [vector], kind="question", ordinal=ordinal)

    assert similarities(kb, chunk_id, kind="question") == pytest.approx([0.8], abs=1e-3)


def test_similarities_of_nothing_ask_nothing(kb, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert similarities(kb) == []
