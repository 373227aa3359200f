"""A/B: one query under two profiles, or under one profile and settings that are not saved, side by side."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin import AdminSite
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.views.generic import TemplateView

from kb.access.models import KnowledgeBase, Principal
from kb.access.services.rate_limits import GENERAL
from kb.base.errors import NotVisible
from kb.quality.calibration.admin import CalibrationView
from kb.quality.compare.admin.results import shown
from kb.quality.compare.admin.runs import CompareRunsView, cancel_view, live_view
from kb.quality.compare.admin.sides import SideForm, open_sides, same_sides, swapped
from kb.quality.compare.admin.start import StartPairView
from kb.quality.compare.services import InvalidSide, compare_searches
from kb.search.admin.labels import notices
from kb.web.admin.scoped import principal
from retrieval.errors import NoChannelAvailable


class CompareView(TemplateView):
    """The page. Its URL holds the query and both sides, so it can be shared."""

    admin_site: AdminSite | None = None
    template_name = "quality/compare/page.html"
    rate_limit_kind = GENERAL

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        caller = principal(request)
        page, sides = open_sides(caller, request.GET)
        a, b = sides.values()
        context: dict[str, Any] = {
            **page.context,
            "form": a,
            "sides": (a, b),
            "title": _("Compare"),
            "swap_url": f"?{swapped(request.GET)}",
            "start_url": f"{reverse('admin:compare_start')}?{_for_a_set(request.GET)}",
            **(self.admin_site.each_context(request) if self.admin_site else {}),
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


def _for_a_set(given: QueryDict) -> str:
    """The sides alone, for the page that compares them on a whole set."""
    return urlencode([(name, value) for name, value in given.items() if name.startswith(("a_", "b_"))])


def compare_urls(site: AdminSite) -> list[URLPattern]:
    """The routes of the pages that compare and calibrate, among those of an admin site."""

    def view(view_class: Any) -> Any:
        return site.admin_view(view_class.as_view(admin_site=site))

    return [
        path("compare/", view(CompareView), name="compare"),
        path("compare/runs/", view(CompareRunsView), name="compare_runs"),
        path("compare/runs/start/", view(StartPairView), name="compare_start"),
        path("compare/runs/live/", site.admin_view(live_view), name="compare_live"),
        path("compare/runs/cancel/", site.admin_view(cancel_view), name="compare_cancel"),
        path("calibration/", view(CalibrationView), name="calibration"),
    ]
