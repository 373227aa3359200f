import numpy as np
import pytest

from kb.base.db.transactions import Purpose, try_lock
from kb.base.findings import State
from kb.index import vector_index as index_memory
from kb.index.vector_index import maintain_vector_indexes
from kb.models import Chunk, ChunkEmbedding, ChunkPostings, KnowledgeBase
from kb.operations.services.health import indexes as health_indexes
from kb.operations.services.health.indexes import BYTES_A_CHUNK, BYTES_A_POSTING, SPARE
from retrieval.bm25 import OkapiIndex
from tests.factories import make_document, make_kb
from tests.kb.index.vectors import build_under_way

pytestmark = pytest.mark.django_db


def test_postings_of_the_current_tokenizer_are_in_order():
    make_document(make_kb(), "保修 24 个月")
    assert health_indexes.postings().state is State.OK


def test_postings_of_another_tokenizer_are_degraded():
    kb = make_kb(name="old")
    KnowledgeBase.objects.filter(pk=kb.pk).update(tokenizer_id="another")
    finding = health_indexes.postings()
    assert finding.state is State.DEGRADED
    assert "'old'" in finding.detail
    assert "--bm25" in finding.remedy


def test_chunks_without_postings_are_degraded():
    document = make_document(make_kb(name="half"), "保修", "退货")
    document.chunks.first().postings.all().delete()
    assert "'half'" in health_indexes.postings().detail


def test_chunks_that_full_text_cannot_find_are_degraded():
    make_document(make_kb(name="new"), "保修")
    old = make_document(make_kb(name="old"), "保修")
    assert health_indexes.lexemes().state is State.OK
    ChunkPostings.objects.filter(chunk__document=old).update(lexemes=[])
    finding = health_indexes.lexemes()
    assert finding.state is State.DEGRADED
    assert "'old'" in finding.detail
    assert "'new'" not in finding.detail
    assert "reindex" in finding.remedy


def test_a_text_without_words_lacks_nothing_for_full_text():
    make_document(make_kb(), "!?")
    assert health_indexes.lexemes().state is State.OK


def test_postings_are_not_looked_at_without_a_tokenizer(monkeypatch):
    monkeypatch.setattr(health_indexes, "tokenizer", lambda tokenizer_id: None)
    assert health_indexes.postings().state is State.DEGRADED


@pytest.mark.parametrize(("megabytes", "state"), [(0, State.DEGRADED), (1, State.OK)])
def test_a_keyword_index_that_no_process_can_keep_is_degraded(settings, megabytes, state):
    settings.BM25_MEMORY_BYTES = megabytes * 1024**2
    make_document(make_kb(name="large"), "保修 24 个月")
    finding = health_indexes.keyword_memory()
    assert finding.state is state
    assert ("'large'" in finding.detail) == (state is State.DEGRADED)
    assert ("BM25_MEMORY_MB=1 or more" in finding.remedy) == (state is State.DEGRADED)


def test_what_searches_do_not_use_takes_no_memory(settings):
    settings.BM25_MEMORY_BYTES = 0
    make_document(make_kb(), "保修 24 个月")
    ChunkPostings.objects.update(tokenizer_id="older")
    make_document(make_kb(), "退货")
    Chunk.objects.update(enabled=False)
    assert health_indexes.keyword_memory().state is State.OK


def test_the_memory_of_an_index_is_known_from_its_postings():
    chunks, terms = 2_000, 100
    random = np.random.default_rng(4)
    rows = (
        (chunk, np.sort(random.choice(5_000, terms, replace=False)).astype("<u8").tobytes(), counts.tobytes(), 150)
        for chunk, counts in enumerate(random.integers(1, 300, (chunks, terms)).astype("<u4"))
    )
    least = BYTES_A_POSTING * chunks * terms + BYTES_A_CHUNK * chunks
    assert least < OkapiIndex.build(rows).nbytes < SPARE * least


@pytest.fixture
def _index_from_two_vectors(settings):
    settings.VECTOR_INDEX_MIN_ROWS = 1
    yield
    KnowledgeBase.objects.all().delete()
    ChunkEmbedding.objects.all().delete()
    maintain_vector_indexes()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_index_from_two_vectors")
def test_vectors_beyond_the_limit_without_a_finished_index_are_degraded():
    make_document(make_kb(name="large"), "保修", "退货")
    make_document(make_kb(name="small"), "保修")
    finding = health_indexes.vector_indexes()
    assert finding.state is State.DEGRADED
    assert "'large'" in finding.detail
    assert "'small'" not in finding.detail
    assert "manage.py serve" in finding.remedy
    maintain_vector_indexes()
    assert health_indexes.vector_indexes().state is State.OK


@pytest.mark.django_db(transaction=True)
def test_an_index_that_is_due_and_one_that_is_being_built_are_told_apart(settings):
    settings.VECTOR_INDEX_MIN_ROWS = 1
    kb = make_kb(name="statutes")
    make_document(kb, "保修", "退货")
    finding = health_indexes.vector_indexes()
    assert (finding.state, "due for 'statutes'" in finding.detail) == (State.DEGRADED, True)
    assert "manage.py serve" in finding.remedy
    with build_under_way(kb):
        finding = health_indexes.vector_indexes()
        assert "being built for 'statutes' (0 of 2 vectors)" in finding.detail
        assert finding.remedy == ""
    assert health_indexes.vector_indexes().state is State.OK
    kb.delete()
    maintain_vector_indexes()


def test_a_build_that_lacks_memory_names_the_setting(settings, monkeypatch):
    settings.VECTOR_INDEX_MIN_ROWS, settings.INDEX_BUILD_MEMORY_BYTES = 1, 64 * 1024**2
    monkeypatch.setattr(index_memory, "SPARE_BYTES", 100 * 1024**2)
    make_document(make_kb(), "保修", "退货")
    assert "INDEX_BUILD_MEMORY_MB=101" in health_indexes.vector_indexes().remedy


def test_that_vectors_are_read_into_memory_is_said(settings):
    assert health_indexes.page_cache().state is State.OK
    with try_lock(Purpose.PAGE_CACHE, 0):
        assert "being read into memory" in health_indexes.page_cache().detail
    settings.WARM_UP_BYTES = 0
    assert "WARM_UP_MB=0" in health_indexes.page_cache().detail
