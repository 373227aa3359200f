import json
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.db import connection
from django.utils import timezone

from kb.models import KnowledgeBase, SearchLog
from kb.providers.embedding_models import generator
from kb.quality.statistics import DAYS, cache_hits, search_statistics, statistics_scope
from kb.search.services.search import SearchRequest, search
from tests.factories import make_kb, make_user, principal

pytestmark = pytest.mark.django_db

EVERYTHING = None
MANY_SEARCHES = """
INSERT INTO kb_searchlog (id, knowledge_base_ids, query, profile, profile_version, configuration, trace, degraded,
                          result_count, outcome, duration_ms, timings, history, created_at)
SELECT gen_random_uuid(), ARRAY[%(kb)s]::bigint[], 'query ' || number, 'default', 1, '{}', '{}',
       CASE number %% 4 WHEN 0 THEN '[{"stage": "vector", "code": "channel_timeout", "detail": "d"}]'::jsonb ELSE '[]' END,
       1, (ARRAY['found', 'found', 'found', 'gated', 'nothing'])[1 + number %% 5], number %% 100,
       jsonb_build_object('vector', number %% 100, 'bm25', 1, 'total', number %% 100 + 1), '[]',
       now() - number * interval '10 seconds'
FROM generate_series(1, %(count)s) AS number
"""


@pytest.fixture(autouse=True)
def _nothing_kept():
    cache.clear()
    yield
    cache.clear()


@pytest.fixture(autouse=True)
def _no_midnight(monkeypatch):
    """The day stays the same from a search to its count."""
    noon = timezone.now().replace(hour=12)
    monkeypatch.setattr(timezone, "now", lambda: noon)


@pytest.fixture
def kb():
    return make_kb()


def logged(*bases, days=0, **fields):
    return SearchLog.objects.create(
        knowledge_base_ids=[kb.pk for kb in bases],
        query="q",
        profile="default",
        profile_version=1,
        configuration={},
        trace={},
        result_count=0,
        duration_ms=1,
        created_at=timezone.localtime().replace(hour=0, minute=0, second=0) - timedelta(days=days),
        **fields,
    )


def degraded(*codes):
    return [{"stage": "s", "code": code, "detail": "d"} for code in codes]


def test_searches_are_counted_by_day_with_those_without_a_result(kb):
    for days, outcome in ((0, "found"), (0, "nothing"), (0, "gated"), (2, "nothing"), (DAYS, "found")):
        logged(kb, days=days, outcome=outcome)

    days = search_statistics(EVERYTHING).days

    assert len(days) == DAYS
    assert days[-1].day == timezone.localdate()
    assert (days[-1].searches, days[-1].nothing, days[-1].gated, days[-1].without_result) == (3, 1, 1, 2)
    assert (days[-3].searches, days[-3].nothing) == (1, 1)
    assert sum(day.searches for day in days) == 4


def test_a_day_is_one_of_the_servers_time_zone(kb, settings):
    settings.TIME_ZONE = "Asia/Shanghai"
    logged(kb, days=1)

    assert [day.searches for day in search_statistics(EVERYTHING).days[-2:]] == [1, 0]


def test_degradations_are_counted_once_a_search(kb):
    logged(kb, degraded=degraded("a", "a", "b"))
    logged(kb, degraded=degraded("a"))
    logged(kb)

    statistics = search_statistics(EVERYTHING)

    assert statistics.degraded == 2
    assert list(statistics.degradations.items()) == [("a", 2), ("b", 1)]


def test_what_a_knowledge_base_always_does_without_is_no_degradation(kb):
    logged(kb, degraded=degraded("hashing_embedder", "llm_not_configured"))
    logged(kb, degraded=degraded("hashing_embedder", "channel_timeout"))

    statistics = search_statistics(EVERYTHING)

    assert statistics.degraded == 1
    assert statistics.degradations == {"channel_timeout": 1}


def test_stages_are_timed_the_slowest_first(kb):
    for milliseconds in range(1, 22):
        logged(kb, timings={"vector": milliseconds, "bm25": 1.5, "total": 2 * milliseconds})
    logged(kb)  # of an earlier release, which kept no times

    statistics = search_statistics(EVERYTHING)

    assert [(each.stage, each.p50, each.p95) for each in statistics.stages] == [("vector", 11, 20), ("bm25", 1.5, 1.5)]
    assert (statistics.total.p50, statistics.total.p95) == (22, 40)
    assert statistics.sampled == 21


def test_no_searches_are_no_error(kb):
    statistics = search_statistics((kb.pk,))

    assert (statistics.searches, statistics.stages, statistics.total) == (0, (), None)


def test_only_what_the_caller_may_see_is_counted(kb):
    other = make_kb()
    for bases in ([kb], [other], [kb, other], []):
        logged(*bases)

    for user in (kb.owner, other.owner, make_user(), make_user(superuser=True)):
        caller = principal(user)
        ids = tuple(KnowledgeBase.objects.visible_to(caller).values_list("pk", flat=True))
        seen = search_statistics(statistics_scope(caller, ids)).searches
        assert seen == SearchLog.objects.visible_to(caller).count()


def test_a_key_of_a_superuser_is_bound_to_its_knowledge_bases(kb):
    logged(make_kb())
    caller = principal(make_user(superuser=True), kb_ids=frozenset({kb.pk}))

    assert search_statistics(statistics_scope(caller, (kb.pk,))).searches == 0


def test_figures_are_kept_for_a_while_apart_for_each_sight(kb, django_assert_num_queries):
    logged(kb)
    search_statistics((kb.pk,))

    with django_assert_num_queries(0):
        assert search_statistics((kb.pk,)).searches == 1
    assert search_statistics((kb.pk + 1_000,)).searches == 0


def test_a_hundred_thousand_searches_take_two_queries_along_the_index_of_times(kb, django_assert_num_queries):
    with connection.cursor() as cursor:
        cursor.execute(MANY_SEARCHES, {"kb": kb.pk, "count": 100_000})
        cursor.execute("ANALYZE kb_searchlog")
    generator()  # the rows of models, which a process reads every few seconds

    with django_assert_num_queries(2) as captured:
        statistics = search_statistics((kb.pk,))

    assert statistics.searches == 100_000
    assert statistics.degradations == {"channel_timeout": 25_000}
    assert sum(day.nothing for day in statistics.days) == 20_000
    assert statistics.sampled == 2_000
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (FORMAT JSON) " + captured[1]["sql"])
        plan = json.dumps(cursor.fetchone()[0])
    assert "Index Scan" in plan
    assert "Seq Scan" not in plan


def test_cache_hits_are_those_of_the_tiers_that_were_asked(kb):
    search(principal(kb.owner), SearchRequest(query="q", knowledge_base_ids=[kb.pk], log=False))

    tiers = {(each.cache, each.tier): each for each in cache_hits()}

    assert ("bm25", "process") in tiers
    assert all(0 <= each.ratio <= 1 for each in tiers.values())
