"""Search debug: why each result stands where it does. The URL holds the query and its settings, so it can be shared."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.admin import AdminSite
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.generic import TemplateView

from kb.admin.degradations import notices
from kb.admin.explain import explain
from kb.admin.explain_bases import is_empty
from kb.admin.search_form import SearchForm
from kb.admin.search_page import open_search_page
from kb.models import Document, KnowledgeBase, Principal
from kb.services.errors import NotVisible
from kb.services.search import search
from retrieval.errors import InvalidConfiguration, NoChannelAvailable


class SearchDebugView(TemplateView):
    """The page. Whoever may open the admin may open it; what it shows is what that user may see."""

    admin_site: AdminSite | None = None
    template_name = "admin/search_debug.html"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        principal = Principal(request.user)
        page = open_search_page(principal, request.GET)
        context: dict[str, Any] = {
            **page.context,
            "title": _("Search debug"),
            **(self.admin_site.each_context(request) if self.admin_site else {}),
        }
        form = page.form
        status = self._search(principal, form, page.bases, context)
        if not form.is_bound or not (form.asks or form.errors):
            context["example"] = _example(principal, page.chosen or list(page.bases.values()))
        return self.render_to_response(self.get_context_data(**context), status=status)

    def _search(
        self,
        principal: Principal,
        form: SearchForm,
        bases: Mapping[int, KnowledgeBase],
        context: dict[str, Any],
    ) -> int:
        """Runs the search, if the form asks for one, and puts what came out into the context; returns the HTTP status."""
        if not form.asks:
            return 400 if form.errors else 200
        try:
            outcome = search(principal, form.request())
        except InvalidConfiguration as error:
            form.reject(error)
            return 400
        except NotVisible as error:
            raise Http404(str(error)) from error
        except NoChannelAvailable as error:
            context["outage"] = notices(error.degradations, (), bases)
            return 503
        context["explanation"] = explain(outcome, bases, principal)
        return 200


def search_debug_urls(site: AdminSite) -> list[URLPattern]:
    """The page's route among those of an admin site; its name is `admin:search_debug`."""
    return [path("search-debug/", site.admin_view(SearchDebugView.as_view(admin_site=site)), name="search_debug")]


def _example(principal: Principal, bases: Sequence[KnowledgeBase]) -> dict[str, str] | None:
    """A query that finds something: the title of a document that is there."""
    ids = [kb.pk for kb in bases if not is_empty(kb)]
    document = (
        Document.objects.visible_to(principal)
        .filter(knowledge_base__in=ids, status=Document.Status.READY)
        .exclude(title="")
        .order_by("-pk")
        .first()
    )
    if document is None:
        return None
    query = QueryDict(mutable=True)
    query.update({"kb": document.knowledge_base_id, "q": document.title})
    return {"title": document.title, "url": f"?{query.urlencode()}"}
