"""Search debug: why each result stands where it does. The URL holds the query and its settings, so it can be shared."""

from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.db.models import F
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _, gettext_lazy
from django.views.generic import TemplateView

from kb.access.models import KnowledgeBase, Principal
from kb.access.services.rate_limits import GENERAL
from kb.base.errors import NotAllowed, NotVisible, Rejected
from kb.content.models import Document
from kb.profiles.admin.choices import profile_url, profile_value, select, text_input
from kb.profiles.models import RetrievalProfile
from kb.profiles.services import DEFAULT, MAX_NAME_CHARACTERS, NOT_IN_NAMES, create_version, reference
from kb.quality.compare.admin.results import name_at
from kb.quality.debug.admin.form import SETTINGS, SearchPage, open_search_page, visible_bases
from kb.quality.debug.admin.judge import SESSION_KEY, debug_url, judging
from kb.quality.eval_sets.services.sets import DEFAULT_SET
from kb.search.admin.explain.explanation import explain
from kb.search.admin.labels import listed, notices
from kb.search.models import SearchLog
from kb.search.services.search import search
from kb.search.wiring import explicit_count
from kb.web.admin.scoped import principal as principal_of, signed_in
from kb.web.admin.site import AdminPage, admin_page
from retrieval.errors import InvalidConfiguration, NoChannelAvailable

SHARED = "shared"


class DraftForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("Name of the profile"),
        max_length=MAX_NAME_CHARACTERS,
        error_messages={"required": gettext_lazy("Give the profile a name.")},
        widget=text_input(),
    )
    place = forms.ChoiceField(label=gettext_lazy("For"), widget=select())
    description = forms.CharField(
        label=gettext_lazy("What is different"), required=False, max_length=2_000, widget=text_input()
    )

    def __init__(self, data: Mapping[str, Any] | None, places: Mapping[str, str], initial: Mapping[str, str]) -> None:
        super().__init__(data, prefix="draft", initial=dict(initial))
        cast(forms.ChoiceField, self.fields["place"]).choices = list(places.items())


def draft_form(principal: Principal, page: SearchPage, data: Mapping[str, Any] | None = None) -> DraftForm | None:
    """The form that saves a page's settings; None where there is nothing to save, or nowhere to save it.

    The places are the chosen knowledge bases first, then the others, then shared. It proposes a further version of the
    profile that the search runs under where the principal may change that, and else a profile of its own for a
    knowledge base.
    """
    places = {str(kb.pk): kb.name for kb in (*page.chosen, *page.bases.values()) if getattr(kb, "may_edit", False)}
    if principal.user.is_superuser:
        places[SHARED] = _("all knowledge bases (shared)")
    if not places or not any(page.form[name].value() for name in SETTINGS):
        return None
    ruling = _ruling(page)
    name, place = ruling.name, str(ruling.knowledge_base_id or SHARED)
    if place not in places:
        place = next(iter(places))
        name = "".join(each for each in places[place] if each not in NOT_IN_NAMES)[:MAX_NAME_CHARACTERS]
    return DraftForm(data, places, {"name": name, "place": place})


def _ruling(page: SearchPage) -> RetrievalProfile:
    """The profile that the page's settings stand over."""
    if page.form.profile_choice is not None:
        return page.form.profile_choice.profile
    own = {kb.profile_id: kb.profile for kb in page.chosen or page.bases.values()}
    return next(iter(own.values())) if len(own) == 1 else page.profiles[DEFAULT].profile


@admin_page("search-debug/", name="search_debug")
class SearchDebugView(AdminPage):
    template_name = "quality/debug/open.html"
    rate_limit_kind = GENERAL

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ARG002
        page = open_search_page(principal_of(request), request.GET)
        return self._respond(page, draft_form(principal_of(request), page))

    def post(self, request: HttpRequest) -> HttpResponse:
        """Saves the settings of the URL as a draft, and leads back to the search, which then runs under it."""
        caller = principal_of(request)
        page = open_search_page(caller, request.GET)
        form = draft_form(caller, page, request.POST)
        if form is None or not page.form.is_valid() or not form.is_valid():
            return self._respond(page, form, status=400)
        place = form.cleaned_data["place"]
        try:
            # The settings in force, those of the profile included.
            draft = create_version(
                caller,
                form.cleaned_data["name"],
                {**_ruling(page).settings, **explicit_count(page.form.overrides)},
                description=form.cleaned_data["description"],
                knowledge_base=None if place == SHARED else page.bases[int(place)],
            )
        except (Rejected, NotAllowed) as error:
            form.add_error("name", str(error))
        except InvalidConfiguration as error:
            page.form.reject(error)
        else:
            message = _("“%(profile)s” was saved as a draft, and this search runs under it.") % {"profile": draft}
            label = _("See it, compare it, publish it")
            link = format_html('{} <a href="{}" class="kb-link">{}</a>', message, profile_url(draft), label)
            messages.success(request, link)
            kept = {name: values for name, values in request.GET.lists() if name not in SETTINGS}
            query = {**kept, "profile": profile_value(reference(draft), draft.version)}
            return HttpResponseRedirect(f"{request.path}?{urlencode(query, doseq=True)}")
        return self._respond(page, form, status=400)

    def _respond(self, page: SearchPage, draft: DraftForm | None, status: int = 200) -> HttpResponse:
        context: dict[str, Any] = {**page.context, "draft": draft, "title": _("Search debug")}
        status = max(status, self._search(page, context))
        if not (page.form.asks or page.form.errors):
            bases = page.chosen or list(page.bases.values())
            context["example"] = _example(principal_of(self.request), bases)
        return self.render_to_response(self.get_context_data(**context), status=status)

    def _search(self, page: SearchPage, context: dict[str, Any]) -> int:
        """Runs the search, if the form asks for one, and puts what came out into the context; returns the HTTP status."""
        form, caller = page.form, principal_of(self.request)
        if not form.asks:
            return 400 if form.errors else 200
        try:
            outcome = search(caller, form.request())
        except InvalidConfiguration as error:
            form.reject(error)
            return 400
        except NotVisible as error:
            raise Http404(str(error)) from error
        except NoChannelAvailable as error:
            context["outage"] = notices(error.degradations, (), page.bases)
            return 503
        explanation = explain(outcome, page.bases, caller)
        given, query = self.request.GET, form.cleaned_data["q"]
        as_side = urlencode({name_at(name, "a"): values for name, values in given.lists()}, doseq=True)
        shown = [row["chunk_id"] for name in ("results", "near_misses", "cut") for row in explanation[name]]
        eval_set = str(self.request.session.get(SESSION_KEY) or DEFAULT_SET)  # that the user has last judged in
        editable = frozenset(kb.pk for kb in page.chosen if getattr(kb, "may_edit", False))
        context |= {
            "explanation": explanation,
            "judging": judging(caller, eval_set, query, editable, shown, editable=editable),
            "why_not": f"{reverse('admin:why_not')}?{given.urlencode()}&chunk=",
            "compare": f"{reverse('admin:compare')}?{as_side}",
        }
        return 200


MOST_LISTED = 20
# So many of the newest are read: enough to find MOST_LISTED different ones, unless someone repeats the same few.
ROWS_READ = 60


@admin_page("search-debug/history/", name="search_debug_history")
class SearchHistoryView(TemplateView):
    """The last different searches of the user, the newest first, as a fragment that the page loads on request.

    Those whose text the log does not hold cannot be run again and are left out, and so are those in knowledge bases
    that were deleted or are closed to the user.
    """

    template_name = "quality/debug/history.html"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        bases = visible_bases(principal_of(self.request))
        rows = SearchLog.objects.filter(user=signed_in(self.request)).exclude(query="").order_by("-created_at")
        rows = rows.defer("trace", "configuration", "history").annotate(asked_for=F("trace__request"))
        found: dict[str, dict[str, Any]] = {}
        for row in rows[:ROWS_READ]:
            searched = [kb_id for kb_id in row.knowledge_base_ids if kb_id in bases]
            url = debug_url(searched, row.query, row.asked_for)
            if searched and url not in found:
                found[url] = {"search": row, "url": url, "kb_names": listed(bases[kb_id].name for kb_id in searched)}
        return super().get_context_data(**kwargs, searches=list(found.values())[:MOST_LISTED])


def _example(principal: Principal, bases: Sequence[KnowledgeBase]) -> dict[str, str] | None:
    """A query that finds something: the title of a document that is there."""
    ids = [kb.pk for kb in bases if getattr(kb, "has_chunks", True)]
    document = (
        Document.objects.visible_to(principal)
        .filter(knowledge_base__in=ids, status=Document.Status.READY)
        .exclude(title="")
        .order_by("-pk")
        .first()
    )
    if document is None:
        return None
    query = {"kb": document.knowledge_base_id, "q": document.title}
    return {"title": document.title, "url": f"?{urlencode(query)}"}
