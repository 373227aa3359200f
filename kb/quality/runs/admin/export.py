"""What a run measured of each query, as a file for a spreadsheet."""

import csv
from collections.abc import Iterator
from typing import Any

from django.db.models import QuerySet
from django.http import StreamingHttpResponse

from kb.quality.models import EvalRun, EvalRunQuery
from kb.quality.runs.admin.report import METRICS, STAGES

ROWS_AT_ONCE = 500
BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
"""Without it a spreadsheet takes the file for one of another encoding."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
COLUMNS = (
    "id",
    "query",
    "answerable",
    "lost_at",
    *(f"{stage} first relevant" for stage in STAGES),
    *(f"{stage} {metric}" for stage in STAGES for metric in METRICS),
    "best_score",
    "score_scale",
    "milliseconds",
)


def csv_of(run: EvalRun, queries: QuerySet[EvalRunQuery]) -> StreamingHttpResponse:
    """The queries as CSV in UTF-8, one a row, in the names of `manage.py evaluate --json`."""
    response = StreamingHttpResponse(_lines(queries), content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = f'attachment; filename="evaluation-run-{run.pk}.csv"'
    return response


class _Line:
    """A file that gives back what is written to it."""

    def write(self, text: str) -> str:
        return text


def _lines(queries: QuerySet[EvalRunQuery]) -> Iterator[str]:
    writer: Any = csv.writer(_Line())
    yield BYTE_ORDER_MARK + writer.writerow(COLUMNS)
    for query in queries.iterator(chunk_size=ROWS_AT_ONCE):
        yield writer.writerow(_csv_row(query))


def _csv_row(query: EvalRunQuery) -> list[Any]:
    return [
        _as_text(query.external_id),
        _as_text(query.text),
        "yes" if query.answerable else "no",
        query.lost_at,
        *(query.first_relevant.get(stage, "") for stage in STAGES),
        *(query.figures.get(stage, {}).get(metric, "") for stage in STAGES for metric in METRICS),
        "" if query.best_score is None else query.best_score,
        query.score_scale,
        round(query.latency_ms, 2),
    ]


def _as_text(words: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{words}" if words.startswith(FORMULA) else words
