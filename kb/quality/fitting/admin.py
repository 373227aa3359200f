"""The button of an evaluation set that fits settings to its judgments, and what it has fitted, on the page of the run."""

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.utils.translation import gettext as _

from kb.profiles.admin.choices import changes_text, profile_url
from kb.quality.fitting.services import FEWEST_QUERIES, Fit, draft_of, fit_of, start_fit
from kb.quality.models import EvalRun, EvalSet
from kb.quality.runs.admin.report import change_between, metric_label, percentage, ranking_label, three_decimals
from kb.web.admin.scoped import principal, reporting
from kb.web.admin.site import add_part


def start_view(request: HttpRequest, eval_set: EvalSet) -> HttpResponse:
    with reporting(request):
        run = start_fit(principal(request), eval_set)
        return HttpResponseRedirect(reverse("admin:kb_evalrun_change", args=[run.pk]))
    return HttpResponseRedirect(reverse("admin:kb_evalset_change", args=[eval_set.pk]))


def pages(model_admin: Any) -> list[URLPattern]:
    return [model_admin.row_page("fit", start_view, "POST")]


def fitted(_request: HttpRequest, run: EvalRun) -> dict[str, Any]:
    """What the page of a run shows of its fitting; nothing where it fits none, or is not done."""
    if run.folds is None or run.status != EvalRun.Status.DONE:
        return {}
    fit, draft = fit_of(run), draft_of(run)
    return {
        "fit": fit,
        "fit_stage": ranking_label(fit.stage),
        "fit_metrics": [
            {
                "name": name,
                "label": metric_label(name),
                "before": three_decimals(gain.before),
                "after": three_decimals(gain.after),
                "change": change_between(gain.before, gain.after),
                "interval": f"{gain.low:+.3f} … {gain.high:+.3f}",
                "p_value": three_decimals(gain.p_value),
            }
            for name, gain in fit.metrics.items()
        ],
        "fit_changes": changes_text(fit.settings),
        "fit_cut": cut_text(fit),
        "fit_queries": [
            {
                "kind": kind,
                "label": label,
                "count": count,
                "rows": [(each, three_decimals(each.before), three_decimals(each.after)) for each in rows],
            }
            for kind, label, count, rows in (
                ("won", _("Queries won"), fit.won_count, fit.won),
                ("lost", _("Queries lost"), fit.lost_count, fit.lost),
            )
        ],
        "draft": draft,
        "draft_url": profile_url(draft) if draft else "",
    }


def cut_text(fit: Fit) -> str:
    if fit.cut is None:
        return ""
    kept = _("The threshold of word overlap at %(cut)s keeps %(kept)s of the %(count)d queries with an answer.")
    text = kept % {"cut": f"{fit.cut.cut:g}", "kept": percentage(fit.cut.kept), "count": fit.cut.answerable}
    if fit.cut.passed is None:
        return text
    passed = _("It lets %(passed)s of the %(count)d without an answer pass.")
    return f"{text} {passed % {'passed': percentage(fit.cut.passed), 'count': fit.cut.unanswerable}}"


add_part(EvalSet, pages=pages, context=lambda _request, _set: {"fewest_to_fit": FEWEST_QUERIES})
add_part(EvalRun, context=fitted)
