import numpy as np
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from kb.base.db.transactions import Purpose, try_lock
from kb.index import vector_index as index_memory
from kb.index.pgvector import PgVectorStore
from kb.index.vector_index import VectorSpace, maintain_vector_indexes
from kb.models import ChunkEmbedding, KnowledgeBase
from kb.tasks import sweep_vector_indexes
from tests.factories import make_kb
from tests.kb.index.searching import at_once, sql
from tests.kb.index.vectors import MODEL, add_chunks, add_vectors, clustered

pytestmark = pytest.mark.django_db(transaction=True)

FEW, DIMENSION = 40, 8


@pytest.fixture(autouse=True)
def _small_threshold(settings):
    settings.VECTOR_INDEX_MIN_ROWS = FEW
    yield
    KnowledgeBase.objects.all().delete()
    ChunkEmbedding.objects.all().delete()
    maintain_vector_indexes()


@pytest.fixture
def kb():
    return make_kb()


def fill(kb, count=FEW + 1, **options):
    chunk_ids = add_chunks(kb, count)
    add_vectors(kb, chunk_ids, clustered(count, dimension=DIMENSION), **options)
    return chunk_ids


def stored():
    """By name, the index's own id, and whether it is finished."""
    found = rows(
        "SELECT c.relname, c.oid, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " WHERE c.relname LIKE 'hnsw%'"
    )
    return {name: (oid, is_valid) for name, oid, is_valid in found}


def indexes():
    """Name, whether it is finished."""
    return {name: is_valid for name, (_oid, is_valid) in stored().items()}


def maintained(kb=None):
    """Names of the indexes that are made and of those that go; one that is made again is among both."""
    before = stored()
    assert maintain_vector_indexes(kb and kb.pk)
    after = stored()
    created = [name for name, (oid, _) in after.items() if name not in before or before[name][0] != oid]
    return created, [name for name, (oid, _) in before.items() if name not in after or after[name][0] != oid]


def definition(name):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_indexdef(%s::regclass)", [name])
        return cursor.fetchone()[0]


def test_many_vectors_get_an_index_of_their_own(kb):
    fill(kb)

    [name], _ = maintained(kb)

    assert indexes() == {name: True}
    assert f"knowledge_base_id = {kb.pk}" in definition(name)
    assert f"halfvec({DIMENSION})" in definition(name)


def test_few_vectors_get_none(kb):
    fill(kb, FEW)

    assert maintained(kb) == ([], [])
    assert indexes() == {}


def test_each_kind_gets_its_own(kb):
    chunk_ids = fill(kb)
    add_vectors(kb, chunk_ids, clustered(len(chunk_ids), dimension=DIMENSION), kind="keywords")

    assert len(maintained(kb)[0]) == 2


def test_an_index_that_is_there_stays(kb):
    fill(kb)
    maintain_vector_indexes(kb.pk)

    assert maintained(kb) == ([], [])


def test_an_index_stays_while_half_of_the_vectors_are_left(kb):
    chunk_ids = fill(kb)
    maintain_vector_indexes(kb.pk)
    ChunkEmbedding.objects.filter(chunk__in=chunk_ids[: FEW // 2]).delete()

    assert maintained(kb) == ([], [])


def test_an_index_goes_when_few_vectors_are_left(kb):
    chunk_ids = fill(kb)
    maintain_vector_indexes(kb.pk)
    ChunkEmbedding.objects.filter(chunk__in=chunk_ids[: FEW // 2 + 1]).delete()

    assert len(maintained(kb)[1]) == 1
    assert indexes() == {}


def test_the_index_of_a_knowledge_base_that_is_gone_goes(kb):
    fill(kb)
    maintain_vector_indexes(kb.pk)
    kb.delete()

    sweep_vector_indexes()

    assert indexes() == {}


def test_the_index_follows_the_model(kb):
    fill(kb)
    [old], _ = maintained(kb)
    fill(kb, model="new")
    assert maintained(kb) == ([], [])
    KnowledgeBase.objects.filter(pk=kb.pk).update(embedding_model="new")

    created, dropped = maintained(kb)

    assert dropped == [old]
    assert indexes() == dict.fromkeys(created, True)


def test_one_knowledge_base_leaves_the_indexes_of_others_alone(kb):
    other = make_kb()
    fill(kb)
    fill(other)
    [mine], _ = maintained(kb)

    [theirs], _ = maintained(other)

    assert indexes() == {mine: True, theirs: True}


def test_what_a_killed_build_has_left_is_made_again(kb):
    fill(kb)
    [name], _ = maintained(kb)
    sql("UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", name)
    assert indexes() == {name: False}

    assert maintained(kb) == ([name], [name])
    assert indexes() == {name: True}


def test_nothing_is_done_while_another_process_is_at_it(kb):
    fill(kb)
    with try_lock(Purpose.VECTOR_INDEX, 0):
        [is_done] = at_once(1, lambda: maintain_vector_indexes(kb.pk))

    assert not is_done
    assert indexes() == {}


def test_an_index_that_cannot_be_made_does_not_keep_others_from_it(kb, caplog):
    odd, good = make_kb(), kb
    fill(odd, count=FEW)
    add_vectors(odd, add_chunks(odd, 1), [[1.0, 0.0]])
    fill(good)

    maintain_vector_indexes()

    [made] = [name for name, is_finished in indexes().items() if is_finished]
    assert made.startswith(f"hnsw_{good.pk}_")
    assert "was not made" in caplog.text


def test_the_time_limit_of_statements_comes_back(kb):
    def limit():
        with connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            return cursor.fetchone()[0]

    before = limit()
    fill(kb)
    maintain_vector_indexes(kb.pk)

    assert limit() == before


@pytest.fixture(scope="module")
def vectors():
    return clustered(5_000)


@pytest.fixture
def indexed(kb, vectors):
    """A knowledge base of some thousand vectors; chunk ids by the vectors' places."""
    chunk_ids = add_chunks(kb, len(vectors))
    add_vectors(kb, chunk_ids, vectors)
    assert maintained(kb)[0]
    sql("ANALYZE kb_chunkembedding")
    return np.array(chunk_ids)


def search(kb, query, k, **options):
    return PgVectorStore().search(kb.pk, MODEL, query, k, **options)[0].tolist()


def searches_in(asked):
    """The comparisons of vectors; once a minute a process reads beside them how deep to search."""
    return [query["sql"] for query in asked.captured_queries if "<=>" in query["sql"]]


def plan(searches):
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN " + searches[0])
        return "\n".join(line for (line,) in cursor.fetchall())


def test_a_search_goes_through_the_index_and_finds_nearly_all(kb, vectors, indexed):
    queries = vectors[::100] + 0.05
    shares = []
    for query in queries:
        with CaptureQueriesContext(connection) as asked:
            found = search(kb, query, 60)
        exact = indexed[np.argsort(-(vectors @ query), kind="stable")[:60]]
        shares.append(np.isin(found, exact).mean())
        assert len(found) == 60

    assert "Index Scan using hnsw_" in plan(searches_in(asked))
    assert len(searches_in(asked)) == 1
    assert np.mean(shares) >= 0.95


def test_more_than_the_index_reads_at_once_is_found_too(kb, vectors, indexed):
    assert len(search(kb, vectors[0], 500)) == 500


def test_a_filter_that_leaves_out_what_is_near_is_answered_exactly(kb, vectors, indexed, monkeypatch):
    monkeypatch.setattr("kb.index.pgvector.MAX_EXACT", 10)
    farthest = np.argsort(vectors @ vectors[0], kind="stable")[: len(vectors) // 2]
    with transaction.atomic():
        sql("SET LOCAL hnsw.max_scan_tuples = 200")
        sql("SET LOCAL enable_sort = off")  # else so few would be sorted rather than looked up in an index
        with CaptureQueriesContext(connection) as asked:
            found = search(kb, vectors[0], 25, only=np.sort(indexed[farthest]))
        assert "Index Scan using hnsw_" in plan(searches_in(asked))

    assert len(searches_in(asked)) == 2
    assert np.isin(found, indexed[farthest[::-1][:26]]).all()  # one more: neighbours in rank may be equally near
    assert len(found) == 25


@pytest.fixture
def build_settings():
    """What the session that builds an index has set, as the server notes it: memory in kB, parallel workers, time limit."""
    sql("CREATE TABLE build_settings (memory text, workers text, timeout text)")
    sql(
        "CREATE FUNCTION note_settings() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO build_settings"
        " SELECT (SELECT setting FROM pg_settings WHERE name = 'maintenance_work_mem'),"
        " current_setting('max_parallel_maintenance_workers'), current_setting('statement_timeout'); END $$"
    )
    sql(
        "CREATE EVENT TRIGGER note_settings ON ddl_command_start WHEN TAG IN ('CREATE INDEX') EXECUTE FUNCTION note_settings()"
    )
    yield lambda: rows("SELECT memory::bigint, workers::int, timeout FROM build_settings")
    sql("DROP EVENT TRIGGER note_settings")
    sql("DROP FUNCTION note_settings")
    sql("DROP TABLE build_settings")


def rows(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def test_a_build_has_memory_of_its_size_and_workers_for_its_session_only(kb, settings, build_settings):
    settings.INDEX_BUILD_MEMORY_BYTES, settings.INDEX_BUILD_WORKERS = 10 * 1024**3, 5
    fill(kb)
    before = rows("SHOW maintenance_work_mem"), rows("SHOW max_parallel_maintenance_workers")

    maintain_vector_indexes(kb.pk)

    assert build_settings() == [(VectorSpace(kb.pk, MODEL, "content", FEW + 1, DIMENSION).build_bytes // 1024, 5, "0")]
    assert (rows("SHOW maintenance_work_mem"), rows("SHOW max_parallel_maintenance_workers")) == before


def test_a_build_beyond_the_memory_that_it_may_take_says_which_setting_is_too_small(
    kb, settings, build_settings, caplog, monkeypatch
):
    settings.INDEX_BUILD_MEMORY_BYTES = 64 * 1024**2
    monkeypatch.setattr(index_memory, "SPARE_BYTES", 100 * 1024**2)
    fill(kb)

    assert maintained(kb)[0]

    assert [memory for memory, *_ in build_settings()] == [64 * 1024]
    assert "built slowly: set INDEX_BUILD_MEMORY_MB=101" in caplog.text


def test_where_shared_memory_is_short_one_process_builds(kb, settings, build_settings, caplog, monkeypatch):
    settings.INDEX_BUILD_MEMORY_BYTES, settings.INDEX_BUILD_WORKERS = 2**40, 2
    monkeypatch.setattr(index_memory, "SPARE_BYTES", 2**40)
    fill(kb)
    sql("ALTER TABLE kb_chunkembedding SET (parallel_workers = 2)")
    try:
        [name], _ = maintained(kb)
    finally:
        sql("ALTER TABLE kb_chunkembedding RESET (parallel_workers)")

    assert [workers for _, workers, _ in build_settings()] == [2, 0]
    assert "built again by one process" in caplog.text
    assert indexes() == {name: True}


def test_a_build_reports_its_progress_to_the_end(kb):
    fill(kb)
    told = []

    maintain_vector_indexes(kb.pk, lambda *progress: told.append(progress))

    assert told[-1] == (FEW + 1, FEW + 1)
