"""A/B: two profiles or unsaved settings side by side for one query, and two runs on one evaluation set."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.utils.translation import gettext as _, gettext_lazy
from django.views.decorators.http import require_POST
from unfold.widgets import SELECT_CLASSES

from kb.access.models import Principal
from kb.access.services.rate_limits import GENERAL
from kb.base.errors import Rejected
from kb.quality.compare.admin.results import SHARED, name_at, shown, shown_runs
from kb.quality.compare.services import InvalidSide, compare_runs, compare_searches
from kb.quality.debug.admin.form import (
    CUTS_WITHOUT_RERANKER,
    FILTERS,
    SETTINGS,
    WEIGHTS,
    SearchForm,
    SearchPage,
    inherited_settings,
    open_search_page,
    with_current,
)
from kb.quality.models import EvalRun, EvalSet
from kb.quality.runs.admin.pages import UNFINISHED, SetForm, compare_url, is_unfinished, polled, progress_of, standstill
from kb.quality.runs.services.runs import cancel_run, start_run
from kb.search.admin.labels import notices
from kb.web.admin.current import remember_knowledge_base
from kb.web.admin.fields import text_input
from kb.web.admin.navigation import Section, add_tab
from kb.web.admin.scoped import principal, reporting, reporting_in, row_id, row_ids
from kb.web.admin.site import AdminPage, admin_page
from retrieval.errors import NoChannelAvailable

SIDES = ("a", "b")
# What an evaluation sets itself, so that all stages are measured to the same depth and before the gate.
ONLY_OF_A_SEARCH = ("top_k", "threshold", "rerank", "neighbours")


class SideForm(SearchForm):
    """The form of search debug, of which two stand on one page; their prefixes are "a" and "b"."""

    def add_prefix(self, field_name: str) -> str:
        return name_at(field_name, str(self.prefix))

    @property
    def shared_fields(self) -> list[forms.BoundField]:
        """Those that are folded away; the query and the knowledge bases are not."""
        return [self[name] for name in (*FILTERS, "budget")]

    @property
    def are_shared_unfolded(self) -> bool:
        return any(field.value() or field.errors for field in self.shared_fields)

    @property
    def setting_fields(self) -> list[forms.BoundField]:
        return [self[name] for name in (*(each for each in SETTINGS if each not in WEIGHTS), *WEIGHTS)]

    @property
    def run_fields(self) -> list[forms.BoundField]:
        """The settings that an evaluation run may have, too."""
        return [self[name] for name in SETTINGS if name not in ONLY_OF_A_SEARCH]

    @property
    def has_faulty_settings(self) -> bool:
        return any(self[name].errors for name in SETTINGS)

    @property
    def unsaved(self) -> list[str]:
        return self.given_as_text(SETTINGS)

    @property
    def run_overrides(self) -> dict[str, Any]:
        """The settings that an evaluation run takes, of a valid form."""
        left_out = {*(SETTINGS[name] for name in ONLY_OF_A_SEARCH), *CUTS_WITHOUT_RERANKER}
        return {name: value for name, value in self.overrides.items() if name not in left_out}


def open_sides(principal: Principal, given: QueryDict, kbs: Sequence[str]) -> tuple[SearchPage, dict[str, SideForm]]:
    """What both sides choose from, and their forms, filled from a URL; four queries. Raises as `open_search_page`."""
    given = given.copy()
    given.setlist("kb", list(kbs))  # of the chosen evaluation set, whatever the URL says
    asked = {side: {"kb": kbs, "profile": given.get(f"{side}_profile", "")} for side in SIDES}
    pages = {side: open_search_page(principal, QueryDict(urlencode(asked[side], doseq=True))) for side in SIDES}
    is_bound = bool(kbs) or any((name in SHARED or name.partition("_")[0] in SIDES) for name in given)
    forms_of = {
        side: SideForm(
            given if is_bound else None,
            list(page.bases.values()),
            list(page.profiles.values()),
            inherited_settings(page.inheritable, [str(kb.pk) for kb in page.chosen], given.get(f"{side}_profile", "")),
            side,
        )
        for side, page in pages.items()
    }
    forms_of[SIDES[0]].focus_query()
    return pages[SIDES[0]], forms_of


def views(current: str) -> list[dict[str, Any]]:
    """The two comparisons as tabs; `current` is the name of a page."""
    titles = {"compare": _("Compare searches"), "compare_runs": _("Compare runs")}
    return [
        {"title": title, "url": reverse(f"admin:{name}"), "is_active": name == current}
        for name, title in titles.items()
    ]


def swapped(given: QueryDict) -> str:
    """The same comparison with the sides exchanged, as a query string."""
    other = {"a_": "b_", "b_": "a_"}
    exchanged = {other.get(name[:2], name[:2]) + name[2:]: values for name, values in given.lists()}
    return urlencode(exchanged, doseq=True)


def same_sides(a: SideForm, b: SideForm) -> str:
    """A sentence where both sides ask for the same; blank where they differ."""
    asked = [(form["profile"].value() or "", form.overrides) for form in (a, b)]
    if asked[0] != asked[1]:
        return ""
    return _("Both sides are the same: choose another profile on one of them, or change a setting.")


class PairForm(SetForm):
    """What both runs have in common."""

    limit = forms.IntegerField(
        label=gettext_lazy("Only the first queries"),
        required=False,
        min_value=1,
        max_value=10_000_000,
        widget=text_input(inputmode="numeric"),
    )

    @property
    def kbs(self) -> list[str]:
        """The knowledge base of the chosen set, which says what empty fields inherit."""
        return [str(self.chosen_set.knowledge_base_id)] if self.chosen_set else []


@admin_page("compare/runs/start/", name="compare_start")
class StartPairView(AdminPage):
    """The page. The URL may fill it in: `eval_set`, and both sides by the names of the page that compares one query."""

    template_name = "quality/compare/start.html"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        caller = principal(request)
        form = PairForm(principal=caller, initial={"eval_set": request.GET.get("eval_set", "")})
        page, sides = open_sides(caller, request.GET, form.kbs)
        return self._show(form, page, sides)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        caller = principal(request)
        form = PairForm(request.POST, principal=caller)
        page, sides = open_sides(caller, request.POST, form.kbs)
        if all([form.is_valid(), *(side.is_valid() for side in sides.values())]):
            if message := same_sides(*sides.values()):
                form.add_error(None, message)
            else:
                with reporting_in(form):
                    return HttpResponseRedirect(compare_url(*_start(caller, form, sides.values())))
        return self._show(form, page, sides, status=400)

    def _show(self, form: PairForm, page: SearchPage, sides: dict[str, SideForm], status: int = 200) -> HttpResponse:
        of_kbs = page.inheritable["kbs"]
        chosen = {str(kb.pk) for kb in page.chosen} or set(of_kbs)
        context = self.get_context_data(
            form=form,
            sides=tuple(sides.values()),
            # What empty fields stand for; the page's script reads it.
            inheritable={**page.inheritable, "kbs": {pk: each for pk, each in of_kbs.items() if pk in chosen}},
            title=_("Compare two profiles on a set"),
            views=views("compare_runs"),
        )
        return self.render_to_response(context, status=status)


@transaction.atomic  # both, or neither
def _start(caller: Principal, form: PairForm, sides: Iterable[SideForm]) -> list[EvalRun]:
    return [
        start_run(
            caller,
            form.cleaned_data["eval_set"],
            profile=side.profile_choice.profile if side.profile_choice else None,
            overrides=side.run_overrides,
            limit=form.cleaned_data["limit"],
        )
        for side in sides
    ]


@admin_page("compare/", name="compare")
class CompareView(AdminPage):
    """The page. Its URL holds the query and both sides, so it can be shared."""

    template_name = "quality/compare/page.html"
    rate_limit_kind = GENERAL

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        caller, given = principal(request), with_current(request)
        page, sides = open_sides(caller, given, given.getlist("kb"))
        a, b = sides.values()
        # The sides alone, for the page that compares them on a whole set.
        of_sides = urlencode([(name, value) for name, value in request.GET.items() if name.startswith(("a_", "b_"))])
        context: dict[str, Any] = {
            **page.context,
            "form": a,
            "sides": (a, b),
            "title": _("A/B comparison"),
            "views": views("compare"),
            "swap_url": f"?{swapped(request.GET)}",
            "start_url": f"{reverse('admin:compare_start')}?{of_sides}",
        }
        status = 200
        if a.asks and b.asks:
            if len(page.chosen) == 1:
                remember_knowledge_base(request, page.chosen[0])
            try:
                comparison = compare_searches(caller, a.request(), b.request())
                context |= {"comparison": shown(comparison, page.bases), "same_sides": same_sides(a, b)}
            except InvalidSide as error:
                sides[error.side].reject(error)
                status = 400
            except NoChannelAvailable as error:
                context["outage"] = notices(error.degradations, (), page.bases)
                status = 503
        elif a.errors or b.errors:
            status = 400
        return self.render_to_response(self.get_context_data(**context), status=status)


RUNS_OFFERED = 200
OFFERED = (EvalRun.Status.DONE, *UNFINISHED)


@admin_page("compare/runs/", name="compare_runs")
class CompareRunsView(AdminPage):
    """The page: the URL names the runs, `a` before and `b` after."""

    template_name = "quality/compare/runs.html"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        caller = principal(request)
        runs = sides_named(request)
        a, b = (runs.get(side) for side in SIDES)
        context: dict[str, Any] = {"title": _("Compare runs"), "a": a, "b": b, "views": views("compare_runs")}
        context["select_classes"] = " ".join(SELECT_CLASSES)
        status = 200
        if a is None or b is None:
            context["sets"] = _offered(caller, runs.values())
        elif is_unfinished(a) or is_unfinished(b):
            context |= live_context((a, b), ask_workers=False)
            context["may_cancel"] = EvalSet.objects.editable_by(caller).filter(pk=a.eval_set_id).exists()
        else:
            try:
                comparison = compare_runs(a, b)
                context |= {"comparison": comparison, "shown": shown_runs(comparison, a, b, request.GET)}
                context["swap_url"] = compare_url(b, a)
            except Rejected as error:
                context |= {"refusal": str(error), "sets": _offered(caller, [b])}
                status = 400
        return self.render_to_response(self.get_context_data(**context), status=status)


def sides_named(request: HttpRequest) -> dict[str, EvalRun]:
    """The runs that a URL or a form names, by "a" and "b"; raises as `named_runs`."""
    given = request.POST if request.method == "POST" else request.GET
    return named_runs(principal(request), {side: given[side] for side in SIDES if given.get(side)})


def named_runs(caller: Principal, asked: Mapping[str, str]) -> dict[str, EvalRun]:
    """The runs of the numbers asked for, with sets and profiles; Http404 where one does not exist for this user."""
    rows: QuerySet[Any] = EvalRun.objects.visible_to(caller)
    related = ("eval_set__knowledge_base", "profile__knowledge_base", "created_by")
    found = rows.select_related(*related).in_bulk(row_ids(asked.values()))
    for number in asked.values():
        if row_id(number) not in found:
            raise Http404(_("There is no evaluation run with the number %(run)s.") % {"run": number})
    return {name: found[row_id(number)] for name, number in asked.items()}


def _offered(caller: Principal, chosen: Iterable[EvalRun]) -> list[tuple[EvalSet, list[EvalRun]]]:
    """The newest runs that can be compared, by set; where one is chosen already, those of its set."""
    runs = EvalRun.objects.visible_to(caller).filter(status__in=OFFERED)
    if sets := {run.eval_set_id for run in chosen}:
        runs = runs.filter(eval_set__in=sets)
    newest = runs.select_related("eval_set__knowledge_base", "profile").without_documents()
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


@admin_page("compare/runs/live/", name="compare_live")
def live_view(request: HttpRequest) -> HttpResponse:
    """How far both runs are, for a page that polls; once both have ended, the page is loaded again."""
    runs = _both(request)
    context = live_context(runs, ask_workers=True)
    return polled(request, "quality/compare/live.html", context, goes_on=any(is_unfinished(run) for run in runs))


@admin_page("compare/runs/cancel/", name="compare_cancel")
@require_POST
def cancel_view(request: HttpRequest) -> HttpResponse:
    runs = _both(request)
    with reporting(request):
        for run in runs:
            if is_unfinished(run):
                cancel_run(principal(request), run)
        messages.success(request, _("The runs are being cancelled."))
    return HttpResponseRedirect(compare_url(*runs))


def _both(request: HttpRequest) -> list[EvalRun]:
    runs = sides_named(request)
    if len(runs) < 2:
        raise Http404(_("Name two runs, “a” and “b”."))
    return list(runs.values())


add_tab(Section.TEST, gettext_lazy("A/B comparison"), "compare", order=30, covers=("compare_",))
