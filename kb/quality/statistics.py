"""How searches have gone lately, in figures."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from typing import cast

from django.core.cache import cache
from django.db import connection
from django.db.models import Count, QuerySet
from django.db.models.functions import TruncDate
from django.utils import timezone

from kb.access.models import Principal
from kb.base.metrics import cache_lookups
from kb.search.models import SearchLog
from kb.search.services.baseline import codes_beyond_usual

DAYS = 14
WEEK = 7
SAMPLE = 2_000  # the newest searches, whose stages are timed
SECONDS_KEPT = 60

_PERCENTILES = """
SELECT stage,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY milliseconds::double precision),
       percentile_cont(0.95) WITHIN GROUP (ORDER BY milliseconds::double precision),
       count(*)
FROM ({newest}) AS newest, jsonb_each_text(newest.timings) AS timed(stage, milliseconds)
GROUP BY stage
"""


# Which knowledge bases a caller sees, as ids, in order; None: all, and those that are deleted
Scope = tuple[int, ...] | None


def statistics_scope(principal: Principal, visible_ids: tuple[int, ...]) -> Scope:
    sees_all = principal.user.is_superuser and principal.kb_ids is None
    return None if sees_all else tuple(sorted(visible_ids))


def _seen(rows: "QuerySet[SearchLog]", scope: Scope) -> "QuerySet[SearchLog]":
    """As `visible_to` of rows that tell of searches, without another query for the ids."""
    if scope is None:
        return rows
    return rows.filter(knowledge_base_ids__contained_by=list(scope)).exclude(knowledge_base_ids=[])


@dataclass(frozen=True, slots=True)
class Day:
    """The searches of one day in the server's time zone; `nothing` and `gated` of them are without a result."""

    day: date
    searches: int = 0
    nothing: int = 0
    gated: int = 0

    @property
    def without_result(self) -> int:
        return self.nothing + self.gated


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What half of the searches take at most in a stage, and 95 of 100; milliseconds."""

    stage: str
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class TierHits:
    """The look-ups of one tier of a cache ("bm25", "hot_queries", "query_vectors") since the processes started."""

    cache: str
    tier: str
    hits: int
    misses: int

    @property
    def ratio(self) -> float:
        return self.hits / (self.hits + self.misses)


@dataclass(frozen=True, slots=True)
class SearchStatistics:
    """How searches went on the last `DAYS`, the oldest first.

    `degraded` did without more than their knowledge bases always do, `degradations` counts them by code, the most frequent
    first; a search may have several. `stages` are of `sampled` searches, the slowest at their 95th percentile first; `total` is of
    whole searches, and None before the first.
    """

    days: tuple[Day, ...]
    degraded: int
    degradations: Mapping[str, int]
    sampled: int
    stages: tuple[StageTimes, ...]
    total: StageTimes | None

    @property
    def searches(self) -> int:
        return sum(day.searches for day in self.days)


@dataclass(frozen=True, slots=True)
class Asked:
    """How many searches there were, and how many of them had a result."""

    count: int = 0
    answered: int = 0


@dataclass(frozen=True, slots=True)
class AnsweredStatistics:
    """The searches of the last `DAYS`, the oldest day first, and those of the last `WEEK` days by knowledge base.

    A search of several knowledge bases counts for each.
    """

    days: tuple[Day, ...]
    by_base: Mapping[int, Asked]

    @property
    def searches(self) -> int:
        return sum(day.searches for day in self.days)


def answered_statistics(scope: Scope) -> AnsweredStatistics:
    """How many questions had an answer lately, as far as a caller sees them; one query, and at most a minute old."""
    key = f"answered-statistics:{hashlib.sha256(repr(scope).encode()).hexdigest()}"
    return cast(AnsweredStatistics, cache.get_or_set(key, partial(_answered, scope), SECONDS_KEPT))


def _answered(scope: Scope) -> AnsweredStatistics:
    first, rows = _lately(scope)
    groups = (
        rows.annotate(day=TruncDate("created_at"))
        .order_by()
        .values_list("day", "outcome", "knowledge_base_ids")
        .annotate(count=Count("pk"))
    )
    days = {first + timedelta(days=number): Counter[str]() for number in range(DAYS)}
    searches, answered = Counter[int](), Counter[int]()
    for day, outcome, kb_ids, count in groups:
        days.setdefault(day, Counter())[outcome] += count
        if day > first + timedelta(days=DAYS - 1 - WEEK):
            searches.update(dict.fromkeys(kb_ids, count))
            answered.update(dict.fromkeys(kb_ids, count) if outcome == SearchLog.Outcome.FOUND else {})
    return AnsweredStatistics(_as_days(days), {kb_id: Asked(searches[kb_id], answered[kb_id]) for kb_id in searches})


def search_statistics(scope: Scope) -> SearchStatistics:
    """How the searches of the last days went, as far as a caller sees them; at most a minute old.

    Those that were answered from the cache of responses are not in the log, and so not counted.
    """
    # Two that see the same share an entry
    key = f"search-statistics:{hashlib.sha256(repr(scope).encode()).hexdigest()}"
    return cast(SearchStatistics, cache.get_or_set(key, partial(_measured, scope), SECONDS_KEPT))


def cache_hits() -> tuple[TierHits, ...]:
    key = "cache-hits"
    found: tuple[TierHits, ...] = cache.get(key, ())
    if not found:
        found = tuple(
            TierHits(name, tier, hits, misses)
            for name, tiers in cache_lookups().items()
            for tier, (hits, misses) in tiers.items()
            if hits + misses
        )
        cache.set(key, found, SECONDS_KEPT)
    return found


def _lately(scope: Scope) -> "tuple[date, QuerySet[SearchLog]]":
    """The first of the last `DAYS`, and the searches since."""
    first = timezone.localdate() - timedelta(days=DAYS - 1)
    begin = timezone.localtime().replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAYS - 1)
    return first, _seen(SearchLog.objects.filter(created_at__gte=begin), scope)


def _as_days(days: Mapping[date, Counter[str]]) -> tuple[Day, ...]:
    outcomes = SearchLog.Outcome
    return tuple(
        Day(day, counts.total(), counts[outcomes.NOTHING], counts[outcomes.GATED]) for day, counts in days.items()
    )


def _measured(scope: Scope) -> SearchStatistics:
    first, rows = _lately(scope)
    groups = (
        rows.annotate(day=TruncDate("created_at"), codes=codes_beyond_usual())
        .order_by()
        .values_list("day", "outcome", "codes")
        .annotate(count=Count("pk"))
    )
    days = {first + timedelta(days=number): Counter[str]() for number in range(DAYS)}
    degradations = Counter[str]()
    degraded = 0
    for day, outcome, found, count in groups:
        days.setdefault(day, Counter())[outcome] += count  # midnight may have passed meanwhile
        degraded += count if found else 0
        degradations.update(dict.fromkeys(found, count))
    sampled, stages = _stage_times(rows)
    return SearchStatistics(
        days=_as_days(days),
        degraded=degraded,
        degradations=dict(degradations.most_common()),
        sampled=sampled,
        stages=tuple(each for each in stages if each.stage != "total"),
        total=next((each for each in stages if each.stage == "total"), None),
    )


def _stage_times(rows: "QuerySet[SearchLog]") -> tuple[int, list[StageTimes]]:
    newest, parameters = rows.order_by("-created_at").values("timings")[:SAMPLE].query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(_PERCENTILES.format(newest=newest), parameters)
        found = cursor.fetchall()
    timed = sorted((StageTimes(stage, p50, p95) for stage, p50, p95, _ in found), key=lambda each: -each.p95)
    return max((count for *_, count in found), default=0), timed
