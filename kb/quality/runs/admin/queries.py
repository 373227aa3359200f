"""What a run measured of its single queries: the misses by the stage that lost them, and the table of all."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.core.paginator import Paginator
from django.db.models import Case, Count, F, FloatField, IntegerField, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.fields.json import KT
from django.db.models.functions import Cast
from django.db.models.lookups import Exact
from django.http import QueryDict
from django.utils.translation import gettext as _

from kb.content.models import Chunk
from kb.profiles.services import scorer_text
from kb.quality.debug.admin.judge import debug_url
from kb.quality.eval_sets.services.sets import anchored_chunks
from kb.quality.models import EvalRun, EvalRunQuery, Judgment
from kb.quality.runs.admin.report import (
    LATER_STAGES,
    LEADING,
    METRICS,
    SMALLEST_DIFFERENCE,
    STAGES,
    change_between,
    lost_label,
    metric_label,
    ranking_label,
    stage_before,
    three_decimals,
)
from kb.quality.runs.services.run import LOST_AT
from kb.quality.why_not.admin import why_not_url
from kb.search.services.search import SearchRequest
from kb.web.admin.scoped import Choice

MISSES_A_PAGE = 20
ROWS_A_PAGE = 50
MISSED = Q(answerable=True) & ~Q(lost_at="")


def tally_of(run: EvalRun) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    """Counts over all queries of a run, in one query to the database.

    By stage after the channels, how many queries it raised and how many it lowered, by the leading metric; and by the
    stage that lost them, in the order of the pipeline, how many were missed, without stages that lost none.
    """
    stages = (run.report or {}).get("stages") or {}
    gains = {
        f"{stage}_gain": _figure(stage, LEADING) - _figure(stage_before(stages, stage), LEADING)
        for stage in LATER_STAGES
    }
    counts = {f"lost_{stage}": Count("pk", filter=Q(lost_at=stage)) for stage in LOST_AT}
    for stage in LATER_STAGES:
        counts[f"{stage}_up"] = Count("pk", filter=Q(**{f"{stage}_gain__gt": SMALLEST_DIFFERENCE}))
        counts[f"{stage}_down"] = Count("pk", filter=Q(**{f"{stage}_gain__lt": -SMALLEST_DIFFERENCE}))
    found = EvalRunQuery.objects.filter(run=run, answerable=True).order_by().annotate(**gains).aggregate(**counts)
    return (
        {stage: (found[f"{stage}_up"], found[f"{stage}_down"]) for stage in LATER_STAGES},
        {stage: count for stage in LOST_AT if (count := found[f"lost_{stage}"])},
    )


def misses_of(run: EvalRun, lost: Mapping[str, int], asked: QueryDict) -> dict[str, Any]:
    """The queries without a relevant result, grouped by the stage that lost the last one; one query and two for links.

    The run comes with its profile and its set, `lost` from `tally_of`; the URL asks for a stage, `lost`, and a `page`.
    """
    chosen = asked.get("lost", "") if asked.get("lost") in lost else ""
    whens = [When(lost_at=stage, then=Value(place)) for place, stage in enumerate(LOST_AT)]
    rows = EvalRunQuery.objects.filter(MISSED, run=run).order_by(
        Case(*whens, default=Value(len(LOST_AT)), output_field=IntegerField()), "pk"
    )
    rows = rows.filter(lost_at=chosen) if chosen else rows
    total = sum(lost.values())
    paginator = Paginator(rows, MISSES_A_PAGE)
    paginator.count = lost[chosen] if chosen else total  # cached, so that they are not counted again
    page = paginator.get_page(asked.get("page"))
    stages = [Choice("", _("All"), here(asked, lost="", page=""), not chosen, total)]
    stages += [
        Choice(stage, lost_label(stage), here(asked, lost=stage, page=""), stage == chosen, count)
        for stage, count in lost.items()
    ]
    return {"total": total, "stages": stages, "page": page, "rows": query_rows(run, list(page.object_list), "reranked")}


def here(asked: QueryDict, **changes: str) -> str:
    """The same page with some parameters changed; a blank one goes."""
    query = asked.copy()
    for name, value in changes.items():
        query.pop(name, None)
        if value:
            query[name] = value
    return f"?{query.urlencode()}"


# -- The table of all queries --------------------------------------------------------------------------------------------
def table_of(run: EvalRun, asked: QueryDict) -> dict[str, Any]:
    """The queries of a run, which comes with its profile and its set, that a URL asks for.

    There `q` searches ids and texts, `show` chooses a kind, `stage` whose figures stand in the columns, `o` the order,
    with a minus for the largest first, and `page`.
    """
    stage, against = _shown_stage(run, asked)
    kinds, show, order = shown_kinds(run), asked.get("show", ""), asked.get("o", "")
    page = Paginator(asked_rows(run, asked), ROWS_A_PAGE).get_page(asked.get("page"))
    return {
        "page": page,
        "rows": query_rows(run, list(page.object_list), stage, against),
        "headings": _headings(asked, order, against),
        "shown": [(kind, label, kind == show) for kind, (label, _q) in kinds.items()],
        "stages": [(each, ranking_label(each), each == stage) for each in STAGES],
        "against": ranking_label(against),
        "q": asked.get("q", ""),
        "order": order,
        "csv_url": f"csv/{here(asked, page='')}",
    }


def _shown_stage(run: EvalRun, asked: QueryDict) -> tuple[str, str]:
    """The stage whose figures are shown, and the one that it is measured against, blank for a channel."""
    stage = asked.get("stage", "")
    stage = stage if stage in STAGES else "reranked"
    return stage, stage_before((run.report or {}).get("stages") or {}, stage)


def asked_rows(run: EvalRun, asked: QueryDict) -> QuerySet[EvalRunQuery]:
    """The queries that a URL asks for, in its order; arguments as `table_of`."""
    _label, condition = shown_kinds(run).get(asked.get("show", ""), ("", Q()))
    rows = EvalRunQuery.objects.filter(condition, run=run)
    if text := asked.get("q", "").strip():
        rows = rows.filter(Q(text__icontains=text) | Q(external_id__icontains=text))
    return _ordered(rows, asked.get("o", ""), *_shown_stage(run, asked))


def shown_kinds(run: EvalRun) -> dict[str, tuple[str, Q]]:
    kinds = {
        "": (_("All"), Q()),
        "found": (_("With a relevant result"), Q(answerable=True, lost_at="")),
        "missed": (_("Missed"), MISSED),
        "unanswerable": (_("Without an answer"), Q(answerable=False)),
    }
    if gate := (run.report or {}).get("gate"):
        kinds["false"] = (
            _("Without an answer, but above the threshold"),
            Q(answerable=False, best_score__gte=gate["cut"]),
        )
    return kinds


def _figure(stage: str, metric: str) -> Cast:
    return Cast(KT(f"figures__{stage}__{metric}"), FloatField())


def _ordered(rows: QuerySet[Any], order: str, stage: str, against: str) -> QuerySet[Any]:
    sortable: dict[str, Any] = {metric: _figure(stage, metric) for metric in METRICS}
    sortable |= {name: F(name) for name in ("best_score", "latency_ms", "external_id")}
    if against:
        sortable["change"] = _figure(stage, LEADING) - _figure(against, LEADING)
    by = sortable.get(order.removeprefix("-"))
    if by is None:
        return rows.order_by("pk")
    return rows.order_by(by.desc(nulls_last=True) if order.startswith("-") else by.asc(nulls_last=True), "pk")


def _headings(asked: QueryDict, order: str, against: str) -> list[dict[str, str]]:
    """The heads of the columns; a blank `url` means that one does not sort, `sorted` is what aria-sort says."""

    def heading(label: str, name: str) -> dict[str, str]:
        directions = {name: "ascending", f"-{name}": "descending"}
        url = here(asked, o=f"-{name}" if order == name else name, page="")
        return {"label": label, "url": url, "sorted": directions.get(order, "")}

    change = [heading(_("NDCG@10 against %(stage)s") % {"stage": ranking_label(against)}, "change")] if against else []
    return [
        heading(_("Query"), "external_id"),
        {"label": _("First relevant"), "url": "", "sorted": ""},
        *(heading(metric_label(metric), metric) for metric in METRICS),
        *change,
        heading(_("Best score"), "best_score"),
        heading(_("Milliseconds"), "latency_ms"),
    ]


# -- Rows ----------------------------------------------------------------------------------------------------------------
def query_rows(run: EvalRun, queries: Sequence[EvalRunQuery], stage: str, against: str = "") -> list[dict[str, Any]]:
    """Queries as the pages show them, with the figures of a stage, measured against another one where it is not blank.

    The run comes with its profile and its set. At most two queries to the database, for the relevant chunks.
    """
    chunks = relevant_chunks([query.query_id for query in queries if query.query_id and query.lost_at])
    kb_id, profile = run.eval_set.knowledge_base_id, run.profile
    given = {"profile": profile.name, "profile_version": profile.version, "overrides": run.overrides}
    rows = []
    for query in queries:
        search = SearchRequest(query=query.text, knowledge_base_ids=[kb_id], **given)
        chunk = chunks.get(query.query_id or 0)
        figures, before = query.figures.get(stage, {}), query.figures.get(against, {})
        ranks = [(each, ranking_label(each), str(query.first_relevant.get(each) or "–")) for each in STAGES]
        rows.append(
            {
                "query": query,
                "ranks": ranks if query.answerable else [],
                "figures": [(metric_label(each), three_decimals(figures.get(each))) for each in METRICS],
                "change": change_between(before.get(LEADING), figures.get(LEADING)),
                "best_score": three_decimals(query.best_score),
                "scale": scorer_text(query.score_scale),
                "latency": f"{query.latency_ms:.1f}",
                "lost_text": lost_label(query.lost_at),
                "debug_url": debug_url([kb_id], query.text, given),
                "why_url": why_not_url(search, chunk) if chunk else "",
            }
        )
    return rows


def relevant_chunks(query_ids: Iterable[int]) -> dict[int, int]:
    """A relevant chunk of each evaluation query that has one today, by the query's id; the best judged, as a rule.

    Passages that stand as they were judged are found by the database; the others, after another chunking, by
    `anchored_chunks`.
    """
    anchored = Chunk.objects.filter(Q(text=OuterRef("quote")) | Q(Exact(OuterRef("quote"), Value(""))))
    first = anchored.filter(document=OuterRef("document")).order_by("position").values("pk")[:1]
    judgments = list(
        Judgment.objects.filter(query__in=list(query_ids), grade__gt=0)
        .select_related("query__eval_set")
        .annotate(chunk_id=Subquery(first))
        .order_by("-grade", "pk")
    )
    found: dict[int, int] = {}
    for judgment in judgments:
        if judgment.chunk_id:
            found.setdefault(judgment.query_id, judgment.chunk_id)
    lost = [judgment for judgment in judgments if judgment.query_id not in found]
    matches = anchored_chunks(lost)
    for judgment in lost:
        if judgment.pk in matches:
            found.setdefault(judgment.query_id, matches[judgment.pk].pk)
    return found
