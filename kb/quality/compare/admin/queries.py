"""The queries that two runs differ in: a page of those won, lost or left as they were."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.core.paginator import Page, Paginator
from django.http import QueryDict
from django.urls import reverse
from django.utils.translation import gettext as _

from kb.quality.compare.admin.sides import of_side
from kb.quality.compare.services import Comparison, QueryDifference
from kb.quality.debug.admin.form import parameters_of
from kb.quality.debug.admin.log import debug_url
from kb.quality.models import EvalRun
from kb.quality.runs.admin.report import lost_label, signed, three_decimals
from kb.web.admin.rows import Choice

ROWS_A_PAGE = 20


@dataclass(frozen=True, slots=True)
class QueryRow:
    """A query of both runs.

    Attributes:
        lost: what lost its relevant passages, in each run that lost them.
    """

    external_id: str
    text: str
    before: str
    after: str
    difference: str
    direction: str
    lost: str
    debug_url: str
    compare_url: str


@dataclass(frozen=True, slots=True)
class QueryList:
    """A page of the queries won, lost or left as they were."""

    choices: tuple[Choice, ...]
    page: Page[Any]
    rows: tuple[QueryRow, ...]
    previous_url: str
    next_url: str


def query_list(comparison: Comparison, asked: QueryDict) -> QueryList:
    lists = {
        "lost": (_("Lost"), comparison.lost),
        "won": (_("Won"), comparison.won),
        "tied": (_("Unchanged"), comparison.tied),
    }
    first = next((name for name, (_label, queries) in lists.items() if queries), "lost")
    chosen = asked.get("list", "")
    chosen = chosen if chosen in lists else first
    page = Paginator(lists[chosen][1], ROWS_A_PAGE).get_page(asked.get("page"))
    return QueryList(
        choices=tuple(
            Choice(name, label, here(asked, list=name, page=""), name == chosen, len(queries))
            for name, (label, queries) in lists.items()
        ),
        page=page,
        rows=tuple(query_rows(comparison.before, comparison.after, list(page.object_list))),
        previous_url=here(asked, page=str(page.previous_page_number())) if page.has_previous() else "",
        next_url=here(asked, page=str(page.next_page_number())) if page.has_next() else "",
    )


def query_rows(before: EvalRun, after: EvalRun, queries: Sequence[QueryDifference]) -> list[QueryRow]:
    """Rows with links to Search debug, under the second run's settings, and to both sides by side."""
    kb_id = after.eval_set.knowledge_base_id
    of_a, of_b = _parameters(before), _parameters(after)
    sides = {**of_side(parameters_of(of_a), "a"), **of_side(parameters_of(of_b), "b")}
    return [
        QueryRow(
            external_id=query.external_id,
            text=query.text,
            before=three_decimals(query.before),
            after=three_decimals(query.after),
            difference=signed(query.difference),
            direction="up" if query.difference > 0 else "down" if query.difference < 0 else "same",
            lost=_lost_in_words(query),
            debug_url=debug_url([kb_id], query.text, of_b),
            compare_url=f"{reverse('admin:compare')}?{urlencode({'kb': kb_id, 'q': query.text, **sides})}",
        )
        for query in queries
    ]


def _parameters(run: EvalRun) -> dict[str, Any]:
    return {"profile": run.profile.name, "profile_version": run.profile.version, "overrides": run.overrides}


def _lost_in_words(query: QueryDifference) -> str:
    if query.lost_at_before and query.lost_at_before == query.lost_at_after:
        return _("A and B: %(what)s") % {"what": lost_label(query.lost_at_after)}
    told = [(_("A: %(what)s"), query.lost_at_before), (_("B: %(what)s"), query.lost_at_after)]
    return _("; ").join(words % {"what": lost_label(stage)} for words, stage in told if stage)


def here(asked: QueryDict, **changes: str) -> str:
    """The same page with some parameters changed; a blank one goes."""
    query = asked.copy()
    for name, value in changes.items():
        query.pop(name, None)
        if value:
            query[name] = value
    return f"?{query.urlencode()}"
