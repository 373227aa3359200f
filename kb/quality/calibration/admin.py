"""Where to cut the gate: how relevant results scored in a run, and how what should not pass did."""

import json
import math
from itertools import pairwise
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _, gettext_lazy, ngettext

from kb.access.models import Principal
from kb.base.errors import Rejected, ServiceError
from kb.profiles.admin.choices import profile_url, setting_label
from kb.quality.calibration.services import LEAST_SHARE, MOST_SHARE, SHARE, Calibration, GateCut, calibrate, save_cut
from kb.quality.compare.admin.page import named_runs
from kb.quality.models import EvalRun, EvalSet
from kb.quality.profiles.services import draft_place
from kb.quality.runs.admin.report import chart_options, percentage, three_decimals
from kb.web.admin.current import current_knowledge_base
from kb.web.admin.navigation import Section, add_tab
from kb.web.admin.scoped import principal
from kb.web.admin.site import AdminPage, admin_page
from retrieval.errors import InvalidConfiguration

RUNS_OFFERED = 100
COLOURS = {
    "relevant": "var(--color-green-500)",
    "irrelevant": "var(--color-orange-400)",
    "unanswerable": "var(--color-red-400)",
}
CUT_COLOURS = {"current": "#64748b", "keeps": "var(--color-primary-500)", "refuses": "#b91c1c", "best_f1": "#0f766e"}


@admin_page("calibration/", name="calibration")
class CalibrationView(AdminPage):
    """?run=ID&keep=PERCENT of the queries with an answer."""

    template_name = "quality/calibration/page.html"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        caller = principal(request)
        if asked := request.GET.get("run"):
            run = named_runs(caller, {"run": asked})["run"]
            return self._show_run(caller, run, request.GET.get("keep", ""), {})
        return self._show({"runs": self._offered(caller)})

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        caller = principal(request)
        run = named_runs(caller, {"run": request.POST.get("run", "")})["run"]
        name, is_confirmed = request.POST.get("name", ""), "confirm_shared" in request.POST
        try:
            cut = _number(request.POST.get("cut", ""))
            saved = save_cut(caller, run, cut=cut, name="" if is_confirmed else name, confirm_shared=is_confirmed)
        except (ServiceError, InvalidConfiguration) as error:
            given = {"name": name, "is_confirmed": is_confirmed, "error": str(error)}
            return self._show_run(caller, run, request.POST.get("keep", ""), given, status=400)
        message = _("Saved as the draft %(profile)s: compare it with the one in force, then publish it.")
        messages.success(request, message % {"profile": saved})
        return HttpResponseRedirect(profile_url(saved) or f"{reverse('admin:calibration')}?run={run.pk}")

    def _show_run(
        self, caller: Principal, run: EvalRun, keep: str, given: dict[str, Any], status: int = 200
    ) -> HttpResponse:
        try:
            calibration = calibrate(run, _number(keep) / 100 if keep else SHARE)
        except Rejected as error:
            if error.code == "share_out_of_range":
                return self._show_run(caller, run, "", {**given, "keep": keep, "share_error": str(error)}, status=400)
            return self._show({"run": run, "refusal": str(error), "runs": self._offered(caller)}, status=400)
        kinds = zip(calibration.relevant, calibration.irrelevant, calibration.unanswerable, strict=True)
        bins = [
            {"bin": f"{low:g}–{high:g}", "counts": counts}
            for (low, high), counts in zip(pairwise(calibration.bins), kinds, strict=True)
            if any(counts)
        ]
        context = {
            "run": run,
            "calibration": calibration,
            "setting": setting_label(calibration.setting),
            "counts": {kind: sum(getattr(calibration, kind)) for kind in COLOURS},
            "bins": bins,
            "cuts": {kind: _cut_row(calibration, kind) for kind in CUT_COLOURS},
            "histogram": histogram_chart(calibration),
            "curve": curve_chart(calibration),
            "keep": f"{100 * calibration.share:g}",
            "least": f"{100 * LEAST_SHARE:g}",
            "most": f"{100 * MOST_SHARE:g}",
        }
        if EvalSet.objects.editable_by(caller).filter(pk=run.eval_set_id).exists():
            place = draft_place(caller, run.eval_set.knowledge_base, run.profile)
            context |= {"draft_place": place, "name": place.name}
        return self._show({**context, **given}, status=status)

    def _offered(self, caller: Principal) -> list[EvalRun]:
        """Those of the current knowledge base first, the newest before the others."""
        runs = EvalRun.objects.visible_to(caller).filter(status=EvalRun.Status.DONE).without_documents()
        newest = list(runs.select_related("eval_set__knowledge_base", "profile")[:RUNS_OFFERED])
        current = current_knowledge_base(self.request)
        return sorted(newest, key=lambda run: current is not None and run.eval_set.knowledge_base_id != current.pk)

    def _show(self, context: dict[str, Any], status: int = 200) -> HttpResponse:
        context = {"title": _("Calibration"), **context}
        return self.render_to_response(self.get_context_data(**context), status=status)


def _number(text: str) -> float:
    """NaN, which is out of every range, for what is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


# -- What the page shows -----------------------------------------------------------------------------------------------
def _cut_label(calibration: Calibration, kind: str) -> str:
    return {
        "current": _("In force"),
        "keeps": _("Keeps %(share)s%% of the answerable") % {"share": f"{100 * calibration.share:g}"},
        "refuses": _("No false answer"),
        "best_f1": _("Best F1"),
    }[kind]


def _cut_row(calibration: Calibration, kind: str) -> dict[str, str]:
    """A cut with what it does; where there is none, the reason and what helps."""
    figures: GateCut | None = getattr(calibration, kind)
    if figures is None:
        return {"label": _cut_label(calibration, kind), "reason": _reason(calibration, kind)}
    return {
        "label": _cut_label(calibration, kind),
        "cut": f"{figures.cut:g}",
        "value": str(figures.cut),
        "kept": percentage(figures.kept),
        # Rounded down, since it is promised.
        "kept_at_least": percentage(math.floor(1000 * figures.kept_at_least) / 1000),
        "passed": percentage(figures.passed),
        "precision": percentage(figures.precision),
        "recall": percentage(figures.recall),
        "f1": three_decimals(figures.f1),
        "note": _("everything passes") if figures.cut == 0 else "",
    }


def _reason(calibration: Calibration, kind: str) -> str:
    if kind == "best_f1":
        return _(
            "Nothing is to be rejected: judge some results irrelevant, or mark queries of the set as unanswerable, and run "
            "it again."
        )
    if kind == "refuses" and not calibration.unanswerable_count:
        return _("The run has no query without an answer: mark queries of the set as unanswerable, and run it again.")
    if kind == "refuses":
        return _("A query without an answer scores 1, and no threshold is higher: look whether it has an answer.")
    if calibration.answerable_count < calibration.answerable_needed:
        message = ngettext(
            "It takes %(needed)d query with an answer to promise this, and the run has %(count)d: add some to the set "
            "and run it again, or promise less.",
            "It takes %(needed)d queries with an answer to promise this, and the run has %(count)d: add some to the set "
            "and run it again, or promise less.",
            calibration.answerable_needed,
        )
        return message % {"needed": calibration.answerable_needed, "count": calibration.answerable_count}
    message = ngettext(
        "No threshold keeps so many: %(count)d query with an answer finds nothing at all. See at which stage it "
        "was lost, or promise less.",
        "No threshold keeps so many: %(count)d queries with an answer find nothing at all. See at which stage "
        "they were lost, or promise less.",
        calibration.nothing_found,
    )
    return message % {"count": calibration.nothing_found}


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
            "label": f"{_cut_label(calibration, kind)}: {figures.cut:g}",
            "data": [{"x": float(f"{figures.cut:g}"), "y": y} for y in (0, height)],
            "borderColor": colour,
            "backgroundColor": colour,
            "borderWidth": 2,
            "borderDash": [5, 4] if kind == "current" else [],
            "pointRadius": 0,
            "pointStyle": "line",
        }
        for kind, colour in CUT_COLOURS.items()
        if (figures := getattr(calibration, kind))
    ]


add_tab(Section.QUALITY, gettext_lazy("Calibration"), "calibration", order=40)
