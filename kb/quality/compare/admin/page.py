"""A/B: two profiles, or unsaved settings, side by side for one query, and started together on an evaluation set."""

from collections.abc import Mapping, Sized
from typing import Any, cast
from urllib.parse import urlencode

from django import forms
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.widgets import INPUT_CLASSES, SELECT_CLASSES

from kb.access.models import KnowledgeBase, Principal
from kb.access.services.rate_limits import GENERAL
from kb.base.errors import NotVisible, ServiceError
from kb.quality.compare.admin.results import shown
from kb.quality.compare.admin.sides import SideForm, open_sides, same_sides, swapped
from kb.quality.compare.services import InvalidSide, compare_searches
from kb.quality.debug.admin.form import SearchPage
from kb.quality.models import EvalQuery, EvalSet
from kb.quality.runs.admin.form import SetField
from kb.quality.runs.admin.pages import compare_url
from kb.quality.runs.services.runs import start_run
from kb.search.admin.labels import notices
from kb.web.admin.scoped import count_of, principal, row_id
from kb.web.admin.site import AdminPage
from kb.web.admin.site import page as admin_page
from retrieval.errors import InvalidConfiguration, NoChannelAvailable


class PairForm(forms.Form):
    """What both runs have in common."""

    eval_set = SetField(
        queryset=EvalSet.objects.none(),
        label=gettext_lazy("Evaluation set"),
        empty_label=gettext_lazy("Choose a set"),
        widget=forms.Select({"class": " ".join(SELECT_CLASSES)}),
    )
    limit = forms.IntegerField(
        label=gettext_lazy("Only the first queries"),
        required=False,
        min_value=1,
        max_value=10_000_000,
        widget=forms.TextInput({"class": " ".join(INPUT_CLASSES), "inputmode": "numeric", "autocomplete": "off"}),
    )

    def __init__(self, *args: Any, caller: Principal, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        sets = EvalSet.objects.editable_by(caller).select_related("knowledge_base").order_by("name", "pk")
        cast(SetField, self.fields["eval_set"]).queryset = sets.annotate(query_count=count_of(EvalQuery, "eval_set"))

    @property
    def chosen_set(self) -> EvalSet | None:
        sets = cast(SetField, self.fields["eval_set"]).queryset
        return None if sets is None else sets.filter(pk=row_id(str(self["eval_set"].value() or ""))).first()

    @property
    def has_sets(self) -> bool:
        """Whether there is any set that the user may run; counted by the choices that the page shows anyway."""
        return len(cast(Sized, cast(SetField, self.fields["eval_set"]).choices)) > 1


@admin_page("compare/runs/start/", name="compare_start")
class StartPairView(AdminPage):
    """The page. The URL may fill it in: `eval_set`, and both sides by the names of the page that compares one query."""

    template_name = "quality/compare/start.html"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        caller = principal(request)
        form = PairForm(caller=caller, initial={"eval_set": request.GET.get("eval_set", "")})
        page, sides = open_sides(caller, _with_base(request.GET, form))
        return self._show(form, page, sides)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        caller = principal(request)
        form = PairForm(request.POST, caller=caller)
        page, sides = open_sides(caller, _with_base(request.POST, form))
        if not all([form.is_valid(), *(side.is_valid() for side in sides.values())]):
            return self._show(form, page, sides, status=400)
        if message := same_sides(*sides.values()):
            form.add_error(None, message)
            return self._show(form, page, sides, status=400)
        try:
            with transaction.atomic():  # both, or neither
                runs = [
                    start_run(
                        caller,
                        form.cleaned_data["eval_set"],
                        profile=side.profile_choice.profile if side.profile_choice else None,
                        overrides=side.run_overrides,
                        limit=form.cleaned_data["limit"],
                    )
                    for side in sides.values()
                ]
        except (ServiceError, InvalidConfiguration) as error:
            form.add_error(None, str(error))
            return self._show(form, page, sides, status=400)
        return HttpResponseRedirect(compare_url(*runs))

    def _show(self, form: PairForm, page: SearchPage, sides: dict[str, SideForm], status: int = 200) -> HttpResponse:
        of_kbs = page.inheritable["kbs"]
        chosen = {str(kb.pk) for kb in page.chosen} or set(of_kbs)
        context = self.get_context_data(
            form=form,
            sides=tuple(sides.values()),
            # What empty fields stand for; the page's script reads it.
            inheritable={**page.inheritable, "kbs": {pk: each for pk, each in of_kbs.items() if pk in chosen}},
            title=_("Compare two profiles on a set"),
        )
        return self.render_to_response(context, status=status)


def _with_base(given: QueryDict, form: PairForm) -> QueryDict:
    """The same, with the knowledge base of the chosen set, which says what empty fields inherit."""
    query = given.copy()
    query.pop("kb", None)
    if eval_set := form.chosen_set:
        query["kb"] = str(eval_set.knowledge_base_id)
    return query


@admin_page("compare/", name="compare")
class CompareView(AdminPage):
    """The page. Its URL holds the query and both sides, so it can be shared."""

    template_name = "quality/compare/page.html"
    rate_limit_kind = GENERAL

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        caller = principal(request)
        page, sides = open_sides(caller, request.GET)
        a, b = sides.values()
        # The sides alone, for the page that compares them on a whole set.
        of_sides = urlencode([(name, value) for name, value in request.GET.items() if name.startswith(("a_", "b_"))])
        context: dict[str, Any] = {
            **page.context,
            "form": a,
            "sides": (a, b),
            "title": _("Compare"),
            "swap_url": f"?{swapped(request.GET)}",
            "start_url": f"{reverse('admin:compare_start')}?{of_sides}",
        }
        status = self._compare(caller, a, b, page.bases, context)
        return self.render_to_response(self.get_context_data(**context), status=status)

    def _compare(
        self, caller: Principal, a: SideForm, b: SideForm, bases: Mapping[int, KnowledgeBase], context: dict[str, Any]
    ) -> int:
        """Runs both searches, if the forms ask for them, and puts what came out into the context; returns the status."""
        if not (a.asks and b.asks):
            return 400 if a.errors or b.errors else 200
        try:
            comparison = compare_searches(caller, a.request(), b.request())
        except InvalidSide as error:
            {"a": a, "b": b}[error.side].reject(error)
            return 400
        except NotVisible as error:
            raise Http404(str(error)) from error
        except NoChannelAvailable as error:
            context["outage"] = notices(error.degradations, (), bases)
            return 503
        context["comparison"] = shown(comparison, bases)
        context["same_sides"] = same_sides(a, b)
        return 200
