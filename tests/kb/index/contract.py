"""What every store of vectors and every store of keywords does, whatever it is made of.

A store's test is a subclass that names it. Each behaviour is tried twice: when the store has taken in every change, and
when it has not yet, which no caller may notice.
"""

import numpy as np
import pytest
from django.db import DatabaseError

from kb.index import pgvector
from kb.models import Chunk, ChunkEmbedding, KnowledgeBase
from tests.factories import make_document, make_kb
from tests.kb.index.copies import apply, collections_of, keywords_of, use, vectors_of
from tests.kb.index.vectors import MODEL, add_chunks, add_vectors, clustered, unit

QUERY = np.array([1, 0, 0], dtype=np.float32)
NEAR, NEARER, FAR = [3, 4, 0], [4, 3, 0], [-1, 0, 0]


def ids(*chunk_ids):
    return np.array(sorted(chunk_ids), dtype=np.int64)


@pytest.mark.django_db
class VectorStoreContract:
    store = "postgres"

    @pytest.fixture(params=["applied", "waiting"], autouse=True)
    def _when(self, request):
        self.applies = request.param == "applied"

    @pytest.fixture
    def kb(self):
        return self.new_kb()

    def new_kb(self):
        kb = make_kb()
        use(kb, self.store)
        return kb

    def settle(self, kb):
        if self.applies:
            apply(kb)

    def add(self, kb, *vectors, **options):
        chunk_ids = add_chunks(kb, len(vectors))
        add_vectors(kb, chunk_ids, vectors, **options)
        self.settle(kb)
        return chunk_ids

    def search(self, kb, k=10, *, vector=QUERY, model=MODEL, **options):
        chunk_ids, similarities = vectors_of(self.store).search(kb.pk, model, vector, k, **options)
        return chunk_ids.tolist(), similarities.tolist()

    # -- Order -------------------------------------------------------------------------------------------------------
    def test_the_nearest_come_first_with_their_cosine(self, kb):
        near, nearer, far = self.add(kb, NEAR, NEARER, FAR)

        found, similarities = self.search(kb)

        assert found == [nearer, near, far]
        assert similarities == pytest.approx([0.8, 0.6, -1.0], abs=1e-3)

    def test_equally_near_ones_stand_in_the_order_of_their_ids(self, kb):
        chunk_ids = self.add(kb, *[NEAR] * 5)

        assert self.search(kb)[0] == chunk_ids
        assert self.search(kb, 2)[0] == chunk_ids[:2]

    def test_as_good_as_all_that_an_exact_search_finds_is_found_with_the_same_cosines(self, kb):
        vectors = clustered(3_000 if self.applies else 600)  # many that wait are left to PostgreSQL
        chunk_ids = np.array(self.add(kb, *vectors))
        queries = unit(vectors[:40] + 0.2 * np.random.default_rng(7).standard_normal((40, vectors.shape[1])))

        recalls = []
        for query in queries.astype(np.float32):
            cosines = vectors @ query
            best = set(chunk_ids[np.argsort(-cosines)[:25]].tolist())
            found, similarities = self.search(kb, 25, vector=query)
            recalls.append(len(best.intersection(found)) / 25)
            known = dict(zip(chunk_ids.tolist(), cosines.tolist(), strict=True))
            assert similarities == pytest.approx([known[chunk_id] for chunk_id in found], abs=2e-3)

        assert np.mean(recalls) >= 0.98

    def test_more_than_there_are_brings_all(self, kb):
        chunk_ids = self.add(kb, *unit(np.random.default_rng(1).standard_normal((200, 3))))

        assert sorted(self.search(kb, 500)[0]) == chunk_ids

    def test_an_empty_base_has_nothing_to_find(self, kb):
        assert self.search(kb) == ([], [])
        assert self.search(kb, 0) == ([], [])

    # -- Apart -------------------------------------------------------------------------------------------------------
    def test_other_bases_models_and_kinds_are_apart(self, kb):
        [mine] = self.add(kb, NEAR)
        self.add(self.new_kb(), NEARER)
        self.add(kb, NEARER, model="other")
        self.add(kb, NEARER, kind="keywords")

        assert self.search(kb)[0] == [mine]

    def test_the_chunks_of_another_base_are_not_found_by_asking_for_them(self, kb):
        [mine] = self.add(kb, NEAR)
        [theirs] = self.add(self.new_kb(), NEARER)

        assert self.search(kb, only=ids(mine, theirs))[0] == [mine]

    def test_models_of_different_dimensions_lie_side_by_side(self, kb):
        [mine] = self.add(kb, NEAR)
        [other] = self.add(kb, [1, 0], model="other")

        assert self.search(kb)[0] == [mine]
        assert self.search(kb, model="other", vector=np.array([1, 0], dtype=np.float32))[0] == [other]

    def test_a_vector_of_another_dimension_is_an_error_and_no_empty_answer(self, kb):
        self.add(kb, NEAR)

        with pytest.raises(DatabaseError, match="dimensions"):
            self.search(kb, vector=np.array([1, 0], dtype=np.float32))

    # -- Filters -----------------------------------------------------------------------------------------------------
    def test_only_the_chunks_asked_for_are_found(self, kb):
        _, nearer, far = self.add(kb, NEAR, NEARER, FAR)

        assert self.search(kb, only=ids(nearer, far))[0] == [nearer, far]
        assert self.search(kb, 1, only=ids(far))[0] == [far]
        assert self.search(kb, only=ids()) == ([], [])

    def test_a_filter_of_many_chunks_never_finds_fewer_than_there_are(self, kb, monkeypatch):
        monkeypatch.setattr(pgvector, "MAX_EXACT", 100)
        from kb.index.mirrors import registry

        monkeypatch.setattr(registry, "MAX_EXACT", 100)
        nearest = unit(np.random.default_rng(2).standard_normal((400, 3)) * 0.05 + QUERY)
        farthest = unit(np.random.default_rng(3).standard_normal((150, 3)) * 0.05 - QUERY)
        chunk_ids = self.add(kb, *nearest, *farthest)
        wanted = ids(*chunk_ids[400:])

        found, _ = self.search(kb, 25, only=wanted)

        assert len(found) == 25
        assert set(found) <= set(wanted.tolist())

    # -- Changes -----------------------------------------------------------------------------------------------------
    def test_what_is_deleted_is_not_found_and_leaves_its_place_to_others(self, kb):
        chunk_ids = self.add(kb, *[NEARER] * 100, *[NEAR] * 3)
        Chunk.objects.filter(pk__in=chunk_ids[:100]).delete()
        self.settle(kb)

        assert self.search(kb, 3)[0] == chunk_ids[100:]

    def test_disabled_chunks_are_not_found_until_they_are_enabled_again(self, kb):
        off, on = self.add(kb, NEARER, NEAR)
        Chunk.objects.filter(pk=off).update(enabled=False)
        self.settle(kb)

        assert self.search(kb)[0] == [on]
        assert self.search(kb, only=ids(off, on))[0] == [on]

        Chunk.objects.filter(pk=off).update(enabled=True)
        self.settle(kb)

        assert self.search(kb)[0] == [off, on]

    def test_a_vector_that_changes_is_found_where_it_is_now(self, kb):
        first, second = self.add(kb, NEARER, NEAR)
        ChunkEmbedding.objects.filter(chunk=first).update(vector=FAR)
        self.settle(kb)

        assert self.search(kb)[0] == [second, first]
        assert self.search(kb)[1] == pytest.approx([0.6, -1.0], abs=1e-3)

    def test_a_vector_that_goes_is_not_found_while_its_chunk_stays(self, kb):
        first, second = self.add(kb, NEARER, NEAR)
        ChunkEmbedding.objects.filter(chunk=first).delete()
        self.settle(kb)

        assert self.search(kb)[0] == [second]

    def test_the_vectors_of_a_former_model_go(self, kb):
        [chunk_id] = self.add(kb, NEAR)
        add_vectors(kb, [chunk_id], [NEARER], model="other")
        self.settle(kb)
        ChunkEmbedding.objects.filter(model=MODEL).delete()
        self.settle(kb)

        assert self.search(kb)[0] == []
        assert self.search(kb, model="other")[0] == [chunk_id]

    def test_changes_that_are_taken_in_twice_do_no_harm(self, kb):
        chunk_ids = self.add(kb, NEAR, NEARER)
        use(kb, self.store)
        use(kb, self.store)

        assert self.search(kb)[0] == chunk_ids[::-1]

    def test_a_base_that_is_deleted_takes_its_vectors_along(self, kb):
        from kb.content.services import knowledge_base_delete

        self.add(kb, NEAR)
        kb_id = kb.pk
        knowledge_base_delete(KnowledgeBase.objects.get(pk=kb_id))
        kb.pk = kb_id
        apply(kb)

        assert self.search(kb) == ([], [])
        assert collections_of(kb) == set()

    # -- Kinds -------------------------------------------------------------------------------------------------------
    def test_a_chunk_with_several_questions_is_found_once_with_the_best(self, kb):
        first, second = add_chunks(kb, 2)
        for ordinal, vector in enumerate([FAR, NEARER, NEAR]):
            add_vectors(kb, [first], [vector], kind="question", ordinal=ordinal)
        add_vectors(kb, [second], [NEAR], kind="question")
        self.settle(kb)

        found, similarities = self.search(kb, kind="question")

        assert found == [first, second]
        assert similarities == pytest.approx([0.8, 0.6], abs=1e-3)

    def test_many_questions_of_one_chunk_leave_room_for_the_others(self, kb):
        first, second = add_chunks(kb, 2)
        for ordinal in range(100):
            add_vectors(kb, [first], [NEARER], kind="question", ordinal=ordinal)
        add_vectors(kb, [second], [NEAR], kind="question")
        self.settle(kb)

        assert self.search(kb, 2, kind="question")[0] == [first, second]

    def test_keywords_have_vectors_of_their_own(self, kb):
        [chunk_id] = self.add(kb, FAR)
        add_vectors(kb, [chunk_id], [NEARER], kind="keywords")
        self.settle(kb)

        assert self.search(kb, kind="keywords")[1] == pytest.approx([0.8], abs=1e-3)
        assert self.search(kb)[1] == pytest.approx([-1.0], abs=1e-3)

    # -- Edges -------------------------------------------------------------------------------------------------------
    def test_a_vector_without_direction_is_not_found(self, kb):
        _, near = self.add(kb, [0, 0, 0], NEAR)

        assert self.search(kb) == ([near], pytest.approx([0.6], abs=1e-3))

    def test_a_query_without_direction_finds_nothing(self, kb):
        self.add(kb, NEAR)

        assert self.search(kb, vector=np.zeros(3, dtype=np.float32)) == ([], [])

    def test_similarities_are_exact_and_in_the_order_asked_for(self, kb):
        near, nearer = self.add(kb, NEAR, NEARER)
        [theirs] = self.add(self.new_kb(), NEAR)

        wanted = np.array([nearer, theirs, near], dtype=np.int64)
        found = vectors_of(self.store).similarities(kb.pk, MODEL, QUERY, wanted)

        assert found.tolist() == pytest.approx([0.8, np.nan, 0.6], abs=1e-3, nan_ok=True)


STATUTE = (
    "当事人订立合同，应当具有相应的民事权利能力和民事行为能力。",
    "机动车发生交通事故造成人身伤亡的，由保险公司在责任限额内予以赔偿。",
    "合同的权利义务终止，不影响合同中结算和清理条款的效力。",
    "公民的住宅不受侵犯。",
)
ENGLISH = (
    "The lighthouse keeper lit the lamp every evening.",
    "A contract binds both parties once it is signed.",
    "Ships steer by the lighthouse on the northern cape.",
    "Bread is baked at dawn.",
)


@pytest.mark.django_db
class KeywordStoreContract:
    """Of a store of a subclass's name; PostgreSQL's is the knowledge base's own index."""

    store = "postgres"

    def new_kb(self, *texts, language="zh"):
        kb = make_kb(language=language)
        use(kb, self.store)
        document = make_document(kb, *texts)
        apply(kb)
        return kb, list(document.chunks.order_by("position").values_list("pk", flat=True))

    def search(self, kb, text, k=10, only=None):
        found = keywords_of(kb).search(kb.pk, text, k, only=only)
        assert found is not None
        return found[0].tolist(), found[1].tolist()

    def test_a_chunk_that_holds_more_of_the_words_stands_before_one_that_holds_fewer(self):
        kb, chunks = self.new_kb(*STATUTE)

        found, scores = self.search(kb, "合同终止效力")

        assert found[0] == chunks[2]
        assert chunks[0] in found
        assert chunks[3] not in found
        assert scores == sorted(scores, reverse=True)
        assert min(scores) > 0

    def test_english_words_are_found_whatever_their_case(self):
        kb, chunks = self.new_kb(*ENGLISH, language="en")

        assert sorted(self.search(kb, "LIGHTHOUSE")[0]) == [chunks[0], chunks[2]]
        assert self.search(kb, "contract signed")[0] == [chunks[1]]

    def test_words_that_no_chunk_holds_find_nothing(self):
        kb, _ = self.new_kb(*STATUTE)

        assert self.search(kb, "天体物理学") == ([], [])
        assert self.search(kb, "   ") == ([], [])

    def test_equal_texts_stand_in_the_order_of_their_ids(self):
        kb, chunks = self.new_kb(*["合同的效力"] * 4, *STATUTE)

        assert self.search(kb, "效力")[0][:4] == chunks[:4]

    def test_only_the_chunks_asked_for_are_found(self):
        kb, chunks = self.new_kb(*STATUTE)

        assert self.search(kb, "合同", only=ids(chunks[0], chunks[3]))[0] == [chunks[0]]
        assert self.search(kb, "合同", only=ids()) == ([], [])

    def test_a_filter_of_many_chunks_finds_as_many_as_there_are(self):
        kb, chunks = self.new_kb(*["合同的效力"] * 60)
        wanted = ids(*chunks[30:])

        assert self.search(kb, "合同", 30, only=wanted)[0] == chunks[30:]

    def test_other_bases_are_apart_and_do_not_change_scores(self):
        kb, chunks = self.new_kb(*STATUTE)
        before = self.search(kb, "合同")
        _, theirs = self.new_kb(*["合同的效力"] * 20)

        assert self.search(kb, "合同") == before
        assert self.search(kb, "合同", only=ids(*chunks, *theirs))[0] == before[0]

    def test_deleted_and_disabled_chunks_are_not_found(self):
        kb, chunks = self.new_kb(*STATUTE)
        Chunk.objects.filter(pk=chunks[0]).delete()
        Chunk.objects.filter(pk=chunks[2]).update(enabled=False)
        apply(kb)

        assert self.search(kb, "合同")[0] == []

    def test_a_text_that_changes_is_found_by_its_new_words(self):
        from kb.ingest.services.chunks import chunk_update

        kb, chunks = self.new_kb(*STATUTE)
        chunk = Chunk.objects.select_related("document", "knowledge_base").get(pk=chunks[3])
        chunk_update(chunk, text="仲裁裁决具有约束力。", enabled=True)
        apply(kb)

        assert self.search(kb, "仲裁")[0] == [chunks[3]]
        assert self.search(kb, "住宅")[0] == []

    def test_the_scores_of_chunks_are_those_of_the_search_and_else_zero(self):
        kb, chunks = self.new_kb(*STATUTE)
        found, scores = self.search(kb, "合同")

        known = keywords_of(kb).scores(kb.pk, "合同", np.array([*found, chunks[3]]))

        assert known.tolist() == pytest.approx([*scores, 0.0])
