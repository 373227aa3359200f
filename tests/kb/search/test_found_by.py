import pytest
from django.db import connection

from kb.models import Chunk, SearchLog
from kb.search.services.search import SearchRequest, search
from kb.search.services.search_log import searches_that_found
from tests.factories import make_document, make_kb, make_user, principal
from tests.kb.ingest.services.chunk_work.rows import chunks_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def kb():
    return make_kb()


@pytest.fixture
def document(kb):
    return make_document(kb, "苹果是红的。", "香蕉是黄的。", "橙子是橙的。", title="水果")


def searched(kb, query):
    outcome = search(principal(kb.owner), SearchRequest(query=query, knowledge_base_ids=[kb.pk], explain=True))
    return [hit.passage.chunk_id for hit in outcome.result.hits]


def test_the_newest_searches_that_returned_a_chunk_are_told_with_its_rank(kb, document):
    chunk = chunks_of(document)[1]
    ranks = [searched(kb, query).index(chunk.pk) + 1 for query in ("香蕉是什么颜色", "黄的是香蕉")]

    found = searches_that_found(principal(kb.owner), chunk)

    assert [(each["query"], each["rank"]) for each in found] == [("黄的是香蕉", ranks[1]), ("香蕉是什么颜色", ranks[0])]
    assert found[0]["profile"]
    assert found[0]["score"] is not None


def test_searches_that_did_not_return_it_are_not_told(kb, document):
    returned = searched(kb, "香蕉")
    others = Chunk.objects.filter(document=document).exclude(pk__in=returned)

    assert [searches_that_found(principal(kb.owner), chunk) for chunk in others] == [[]] * len(others)


def test_searches_of_bases_that_the_caller_may_not_see_are_not_told(kb, document):
    searched(kb, "香蕉")
    SearchLog.objects.update(knowledge_base_ids=[kb.pk, make_kb().pk])

    assert searches_that_found(principal(kb.owner), chunks_of(document)[1]) == []
    assert searches_that_found(principal(make_user()), chunks_of(document)[1]) == []


def test_a_log_of_100_000_searches_is_not_read_through(kb, document):
    chunk = chunks_of(document)[1]
    trace = """'{"request": {}, "results": [{"chunk_id": ' || 1000000 + n % 5000 || ', "score": 0.5}]}'"""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            INSERT INTO kb_searchlog (id, user_id, knowledge_base_ids, query, profile, profile_version, configuration,
                trace, degraded, result_count, outcome, duration_ms, timings, history, created_at)
            SELECT gen_random_uuid(), NULL, ARRAY[{kb.pk}]::bigint[], 'q' || n, 'default', 1, '{{}}', ({trace})::jsonb, '[]',
                1, 'found', 1, '{{}}', '[]', now() - n * interval '1 second' FROM generate_series(1, 100000) n
            """
        )
        cursor.execute(
            f"UPDATE kb_searchlog SET trace = jsonb_set(trace, '{{results,0,chunk_id}}', '{chunk.pk}') WHERE query = 'q77777'"
        )
        cursor.execute("ANALYZE kb_searchlog")
    with connection.execute_wrapper(_Explained()) as _:
        found = searches_that_found(principal(kb.owner), chunk)

    assert [each["query"] for each in found] == ["q77777"]
    assert "searchlog_by_result" in _Explained.plan
    assert "Seq Scan on kb_searchlog" not in _Explained.plan


class _Explained:
    """Keeps the plan of the statement that reads the log."""

    plan = ""

    def __call__(self, execute, sql, params, many, context):
        if "jsonb_path_query_array" in sql:
            with connection.connection.cursor() as cursor:
                rows = cursor.execute(f"EXPLAIN {sql}", params).fetchall()
            type(self).plan = "\n".join(row[0] for row in rows)
        return execute(sql, params, many, context)
