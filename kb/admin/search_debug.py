"""Search debug: why each result stands where it does. The URL holds the query and its settings, so it can be shared."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.contrib.admin import AdminSite
from django.db.models import Exists, OuterRef
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.views.generic import TemplateView

from kb.admin.degradations import notices
from kb.admin.explain import explain
from kb.admin.explain_bases import is_empty, upload_url
from kb.admin.search_form import SearchForm, inherited_settings, settings_in_words
from kb.models import Chunk, Document, KnowledgeBase, Principal, RetrievalProfile
from kb.services.errors import NotVisible
from kb.services.search import search
from retrieval.errors import InvalidConfiguration, NoChannelAvailable


class SearchDebugView(TemplateView):
    """The page. Whoever may open the admin may open it; what it shows is what that user may see."""

    admin_site: AdminSite | None = None
    template_name = "admin/search_debug.html"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        principal = Principal(request.user)
        bases = _visible_bases(principal)
        chosen = _chosen(request.GET.getlist("kb"), bases)
        profiles = list(RetrievalProfile.objects.order_by("name", "-version").distinct("name"))
        choice = {
            "kbs": {str(kb.pk): settings_in_words(kb.profile) for kb in bases.values()},
            "profiles": {profile.name: settings_in_words(profile) for profile in profiles},
        }
        inherited = inherited_settings(choice, [str(kb.pk) for kb in chosen], request.GET.get("profile", ""))
        is_bound = any(name in request.GET for name in SearchForm.base_fields)
        form = SearchForm(request.GET if is_bound else None, list(bases.values()), profiles, inherited)
        context: dict[str, Any] = {
            "form": form,
            "bases": bases,
            "inheritable": choice,
            "empty_bases": [{"name": kb.name, "url": upload_url(kb)} for kb in chosen if is_empty(kb)],
            "title": _("Search debug"),
            **(self.admin_site.each_context(request) if self.admin_site else {}),
        }
        status = self._search(principal, form, bases, context)
        if not form.is_bound or not (form.asks or form.errors):
            context["example"] = _example(principal, chosen or list(bases.values()))
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
        context["explanation"] = explain(outcome, bases)
        return 200


def search_debug_urls(site: AdminSite) -> list[URLPattern]:
    """The page's route among those of an admin site; its name is `admin:search_debug`."""
    return [path("search-debug/", site.admin_view(SearchDebugView.as_view(admin_site=site)), name="search_debug")]


def _visible_bases(principal: Principal) -> dict[int, KnowledgeBase]:
    bases = (
        KnowledgeBase.objects.visible_to(principal)
        .select_related("profile")
        .annotate(has_chunks=Exists(Chunk.objects.filter(knowledge_base=OuterRef("pk"))))
    )
    return {kb.pk: kb for kb in bases}


def _chosen(ids: Iterable[str], bases: Mapping[int, KnowledgeBase]) -> list[KnowledgeBase]:
    """The knowledge bases that the URL names.

    Raises:
        Http404: one of them does not exist for this user.
    """
    by_id = {str(pk): kb for pk, kb in bases.items()}
    try:
        return [by_id[each] for each in dict.fromkeys(ids)]
    except KeyError as error:
        raise Http404(_("There is no knowledge base with the id %(ids)s.") % {"ids": error.args[0]}) from error


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
