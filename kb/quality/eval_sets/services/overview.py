"""Evaluation sets and their queries with what lists show beside them; the counts are made by the database."""

from typing import Any

from django.db import models
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from kb.access.models.accounts import Principal
from kb.quality.models import EvalQuery, EvalRun, EvalSet, Judgment

RELEVANT = 1
"""The least grade of what is relevant, as in trec_eval."""


def eval_set_overview(principal: Principal) -> QuerySet[Any]:
    """Sets with `query_count`, `judged_count` (queries with judgments), `unanswerable_count` and `judgment_count`.

    Of the last run that is done: `last_run_id`, `last_run_at` and `last_figures`, those of the reranked stage.
    """
    queries = EvalQuery.objects.filter(eval_set=OuterRef("pk"))
    runs = EvalRun.objects.filter(eval_set=OuterRef("pk"), status=EvalRun.Status.DONE).order_by("-created_at", "-pk")
    rows: QuerySet[Any] = (
        EvalSet.objects.visible_to(principal)
        .select_related("knowledge_base")
        .annotate(
            query_count=_count(queries, "eval_set"),
            judged_count=_count(queries.filter(Exists(Judgment.objects.filter(query=OuterRef("pk")))), "eval_set"),
            unanswerable_count=_count(queries.filter(answerable=False), "eval_set"),
            judgment_count=_count(Judgment.objects.filter(query__eval_set=OuterRef("pk")), "query__eval_set"),
            last_run_id=Subquery(runs.values("pk")[:1]),
            last_run_at=Subquery(runs.values("finished_at")[:1]),
            last_figures=Subquery(runs.values("report__stages__reranked")[:1], output_field=models.JSONField()),
        )
    )
    return rows


def eval_query_overview(principal: Principal, eval_set: EvalSet) -> QuerySet[Any]:
    """The queries of a set with `judgment_count` and `relevant_count`."""
    rows: QuerySet[Any] = EvalQuery.objects.visible_to(principal).filter(eval_set=eval_set)
    relevant = Count("judgments", filter=Q(judgments__grade__gte=RELEVANT))
    counted: QuerySet[Any] = rows.annotate(judgment_count=Count("judgments"), relevant_count=relevant)
    return counted


def _count(rows: QuerySet[Any], path: str) -> Coalesce:
    """A subquery of its own for each count: two joined ones would multiply each other's rows."""
    groups = rows.order_by().annotate(group=F(path)).values("group")
    return Coalesce(Subquery(groups.annotate(rows=Count("pk")).values("rows")), 0)
