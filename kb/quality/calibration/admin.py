"""Where to cut the gate: how relevant results scored in a run, and how what should not pass did."""

import json
from itertools import pairwise
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _

from kb.access.models import Principal
from kb.base.errors import Rejected, ServiceError
from kb.profiles.admin.choices import profile_url, setting_label
from kb.profiles.models import RetrievalProfile
from kb.quality.calibration.services import Calibration, calibrate, save_cut
from kb.quality.compare.admin.page import named_runs
from kb.quality.models import EvalRun, EvalSet
from kb.quality.runs.admin.report import chart_options, percentage, three_decimals
from kb.web.admin.scoped import principal
from kb.web.admin.site import AdminPage, admin_page
from retrieval.errors import InvalidConfiguration
from retrieval.eval.calibration import Cut

RUNS_OFFERED = 100
COLOURS = {
    "relevant": "var(--color-green-500)",
    "irrelevant": "var(--color-orange-400)",
    "unanswerable": "var(--color-red-400)",
}
CUT_COLOURS = {"current": "#64748b", "suggestion": "var(--color-primary-500)"}


@admin_page("calibration/", name="calibration")
class CalibrationView(AdminPage):
    template_name = "quality/calibration/page.html"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        caller = principal(request)
        if asked := request.GET.get("run"):
            return self._show_run(caller, named_runs(caller, {"run": asked})["run"])
        return self._show({"runs": _offered(caller)})

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        caller = principal(request)
        run = named_runs(caller, {"run": request.POST.get("run", "")})["run"]
        given = {"name": request.POST.get("name", ""), "cut": request.POST.get("cut", "")}
        try:
            saved = save_cut(caller, run, name=given["name"], cut=_number(given["cut"]))
        except (ServiceError, InvalidConfiguration) as error:
            return self._show_run(caller, run, {**given, "error": str(error)}, status=400)
        message = _("Saved as the draft %(profile)s: compare it with the one in force, then publish it.")
        messages.success(request, message % {"profile": saved})
        return HttpResponseRedirect(profile_url(saved) or f"{reverse('admin:calibration')}?run={run.pk}")

    def _show_run(
        self, caller: Principal, run: EvalRun, given: dict[str, Any] | None = None, status: int = 200
    ) -> HttpResponse:
        try:
            calibration = calibrate(run)
        except Rejected as error:
            return self._show({"run": run, "refusal": str(error), "runs": _offered(caller)}, status=400)
        is_own = RetrievalProfile.objects.editable_by(caller).filter(pk=run.profile_id).exists()
        kinds = zip(calibration.relevant, calibration.irrelevant, calibration.unanswerable, strict=True)
        bins = [
            {"bin": f"{low:g}–{high:g}", "counts": counts}
            for (low, high), counts in zip(pairwise(calibration.bins), kinds, strict=True)
            if any(counts)
        ]
        cuts = [
            {
                "kind": kind,
                "label": label,
                "cut": f"{figures.cut:g}",
                "precision": percentage(figures.precision),
                "recall": percentage(figures.recall),
                "f1": three_decimals(figures.f1),
                "note": _("everything passes") if figures.cut == 0 else "",
            }
            for kind, label, figures in _cuts(calibration)
        ]
        context = {
            "run": run,
            "calibration": calibration,
            "setting": setting_label(calibration.setting),
            "counts": {kind: sum(getattr(calibration, kind)) for kind in COLOURS},
            "bins": bins,
            "cuts": cuts,
            "histogram": histogram_chart(calibration),
            "curve": curve_chart(calibration),
            "may_save": EvalSet.objects.editable_by(caller).filter(pk=run.eval_set_id).exists(),
            # The run's profile where the caller may change it, else a new one of the knowledge base.
            "name": run.profile.name if is_own else f"{run.profile.name}-{run.eval_set.knowledge_base.name}"[:80],
            "cut": f"{calibration.suggestion.cut:g}" if calibration.suggestion else "",
        }
        return self._show({**context, **(given or {})}, status=status)

    def _show(self, context: dict[str, Any], status: int = 200) -> HttpResponse:
        context = {"title": _("Calibrate the gate"), **context}
        return self.render_to_response(self.get_context_data(**context), status=status)


def _number(cut: str) -> float:
    try:
        return float(cut)
    except ValueError as error:
        raise Rejected("not_a_number", _("The cut is not a number: give one from 0 to 1.")) from error


def _offered(caller: Principal) -> list[EvalRun]:
    runs = EvalRun.objects.visible_to(caller).filter(status=EvalRun.Status.DONE).defer("report", "configuration")
    return list(runs.select_related("eval_set__knowledge_base", "profile")[:RUNS_OFFERED])


# -- What the page shows -----------------------------------------------------------------------------------------------
def _cuts(calibration: Calibration) -> list[tuple[str, str, Cut]]:
    cuts = (("current", _("In force"), calibration.current), ("suggestion", _("Suggested"), calibration.suggestion))
    return [(kind, label, figures) for kind, label, figures in cuts if figures is not None]


X_AXIS = {"type": "linear", "min": 0, "max": 1, "grid": {"display": False}}


def histogram_chart(calibration: Calibration) -> dict[str, str]:
    """The scores of each kind as shares of that kind, with the cuts as upright lines, as JSON for Chart.js."""
    labels = {
        "relevant": _("relevant"),
        "irrelevant": _("irrelevant"),
        "unanswerable": _("best score of a query without an answer"),
    }
    centres = [round((low + high) / 2, 4) for low, high in pairwise(calibration.bins)]
    kinds = {kind: getattr(calibration, kind) for kind in labels}
    shares = {kind: [round(100 * each / sum(own), 2) for each in own] for kind, own in kinds.items() if any(own)}
    bars: list[dict[str, Any]] = [
        {
            "label": labels[kind],
            "data": [{"x": x, "y": y} for x, y in zip(centres, own, strict=True)],
            "backgroundColor": COLOURS[kind],
            "borderRadius": 2,
            "pointStyle": "rect",
        }
        for kind, own in shares.items()
    ]
    datasets = [*bars, *_cut_lines(calibration, max(map(max, shares.values()), default=0.0))]
    y_axis = {"min": 0, "title": {"display": True, "text": _("share of its kind, %"), "color": "#9ca3af"}}
    return {"data": json.dumps({"datasets": datasets}), "options": chart_options(X_AXIS, y_axis)}


def curve_chart(calibration: Calibration) -> dict[str, str]:
    """Precision, recall and F1 along the cuts, as JSON for Chart.js."""
    lines = {
        "precision": (_("precision"), "var(--color-orange-400)"),
        "recall": (_("recall"), "var(--color-green-500)"),
        "f1": (_("F1"), "var(--color-red-400)"),
    }
    curves: list[dict[str, Any]] = [
        {
            "label": label,
            "data": [{"x": each.cut, "y": round(getattr(each, name), 4)} for each in calibration.curve],
            "borderColor": colour,
            "backgroundColor": colour,
            "borderWidth": 2,
            "pointRadius": 0,
            "pointStyle": "line",
        }
        for name, (label, colour) in lines.items()
    ]
    return {
        "data": json.dumps({"datasets": [*curves, *_cut_lines(calibration, 1.0)]}),
        "options": chart_options(X_AXIS, {"min": 0, "max": 1, "stepSize": 0.2}),
    }


def _cut_lines(calibration: Calibration, height: float) -> list[dict[str, Any]]:
    return [
        {
            "type": "line",
            "label": f"{label}: {figures.cut:g}",
            "data": [{"x": float(f"{figures.cut:g}"), "y": y} for y in (0, height)],
            "borderColor": CUT_COLOURS[kind],
            "backgroundColor": CUT_COLOURS[kind],
            "borderWidth": 2,
            "borderDash": [5, 4] if kind == "current" else [],
            "pointRadius": 0,
            "pointStyle": "line",
        }
        for kind, label, figures in _cuts(calibration)
    ]
