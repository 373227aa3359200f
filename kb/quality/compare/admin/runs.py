"""Two runs of one evaluation set, compared: their choice, their progress while they run, and what has changed."""

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from kb.access.models import Principal
from kb.base.errors import Rejected, ServiceError
from kb.quality.compare.admin.results import shown_runs
from kb.quality.compare.services import compare_runs
from kb.quality.models import EvalRun, EvalSet
from kb.quality.runs.admin.pages import UNFINISHED, compare_url, is_unfinished, progress_of, standstill
from kb.quality.runs.services.runs import cancel_run
from kb.web.admin.scoped import principal, row_id
from kb.web.admin.site import AdminPage, page

RUNS_OFFERED = 200
OFFERED = (EvalRun.Status.DONE, *UNFINISHED)


@page("compare/runs/", name="compare_runs")
class CompareRunsView(AdminPage):
    """The page: the URL names the runs, `a` before and `b` after."""

    template_name = "quality/compare/runs.html"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        caller = principal(request)
        runs = named_runs(caller, request)
        context: dict[str, Any] = {
            "title": _("Compare runs"),
            "a": runs.get("a"),
            "b": runs.get("b"),
        }
        status = 200
        if len(runs) < 2:
            context["sets"] = _offered(caller, runs.values())
        elif any(is_unfinished(run) for run in runs.values()):
            context |= live_context(list(runs.values()), ask_workers=False)
            context["may_cancel"] = EvalSet.objects.editable_by(caller).filter(pk=runs["a"].eval_set_id).exists()
        else:
            status = self._compare(request, runs["a"], runs["b"], context)
        return self.render_to_response(self.get_context_data(**context), status=status)

    def _compare(self, request: HttpRequest, a: EvalRun, b: EvalRun, context: dict[str, Any]) -> int:
        try:
            comparison = compare_runs(a, b)
        except Rejected as error:
            context["refusal"] = str(error)
            context["sets"] = _offered(principal(request), [b])
            return 400
        context["swap_url"] = compare_url(b, a)
        context["comparison"] = comparison
        context["shown"] = shown_runs(comparison, a, b, request.GET)
        return 200


def named_runs(caller: Principal, request: HttpRequest) -> dict[str, EvalRun]:
    """The runs that a URL or a form names, by "a" and "b", each with its set and profile.

    Raises:
        Http404: one of them does not exist for this user.
    """
    given = request.POST if request.method == "POST" else request.GET
    asked = {name: given[name] for name in ("a", "b") if given.get(name)}
    ids = {name: pk for name, value in asked.items() if (pk := row_id(value)) is not None}
    rows = EvalRun.objects.visible_to(caller).select_related("eval_set__knowledge_base", "profile", "created_by")
    found = {row.pk: row for row in rows.filter(pk__in=ids.values())} if ids else {}
    if missing := [value for name, value in asked.items() if ids.get(name) not in found]:
        raise Http404(_("There is no evaluation run with the number %(run)s.") % {"run": missing[0]})
    return {name: found[pk] for name, pk in ids.items()}


def _offered(caller: Principal, chosen: Iterable[EvalRun]) -> list[tuple[EvalSet, list[EvalRun]]]:
    """The newest runs that can be compared, by set; where one is chosen already, those of its set."""
    runs = EvalRun.objects.visible_to(caller).filter(status__in=OFFERED)
    if sets := {run.eval_set_id for run in chosen}:
        runs = runs.filter(eval_set__in=sets)
    newest = runs.select_related("eval_set__knowledge_base", "profile").defer("report", "configuration")
    by_set: dict[int, tuple[EvalSet, list[EvalRun]]] = {}
    for run in newest.order_by("-created_at", "-pk")[:RUNS_OFFERED]:
        by_set.setdefault(run.eval_set_id, (run.eval_set, []))[1].append(run)
    return list(by_set.values())


# -- While they run ----------------------------------------------------------------------------------------------------
def live_context(runs: Sequence[EvalRun], *, ask_workers: bool) -> dict[str, Any]:
    """What the polled part of the page shows."""
    return {
        "live": [
            {"letter": letter, "run": run, "progress": progress_of(run)} for letter, run in zip("AB", runs, strict=True)
        ],
        "standstill": next(filter(None, (standstill(run, ask_workers=ask_workers) for run in runs)), ""),
        "live_url": f"{reverse('admin:compare_live')}?{urlencode({'a': runs[0].pk, 'b': runs[1].pk})}",
    }


@page("compare/runs/live/", name="compare_live")
def live_view(request: HttpRequest) -> HttpResponse:
    """How far both runs are, for a page that polls; once both have ended, the page is loaded again."""
    runs = _both(request)
    response = render(request, "quality/compare/live.html", live_context(runs, ask_workers=True))
    if not any(is_unfinished(run) for run in runs):
        response.headers["HX-Refresh"] = "true"
    return response


@page("compare/runs/cancel/", name="compare_cancel")
@require_POST
def cancel_view(request: HttpRequest) -> HttpResponse:
    runs = _both(request)
    try:
        for run in runs:
            if is_unfinished(run):
                cancel_run(principal(request), run)
    except ServiceError as error:
        messages.error(request, str(error))
    else:
        messages.success(request, _("The runs are being cancelled."))
    return HttpResponseRedirect(compare_url(*runs))


def _both(request: HttpRequest) -> tuple[EvalRun, EvalRun]:
    runs = named_runs(principal(request), request)
    if len(runs) < 2:
        raise Http404(_("Name two runs, “a” and “b”."))
    return runs["a"], runs["b"]
